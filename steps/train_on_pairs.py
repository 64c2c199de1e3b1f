"""``train_on_pairs``: the steps that train on pairs, with a reference step if the loss needs it."""

from pipeline import Input, Step
from steps.reference_logprobs import reference_logprobs
from steps.train_dpo import train_dpo
from steps.train_reference_free import train_reference_free
from steps.training.config import DpoConfig, PreferenceConfig, ReferenceFreeConfig, by_family


def train_on_pairs(
    tokens: Step | Input,
    policy: Step | Input,
    config: PreferenceConfig,
    held_out: Step | Input | None = None,
) -> Step:
    """The step that trains ``policy``. If the loss needs a reference, ``policy`` is the reference.

    Args:
        held_out: other pairs, for evaluation during training. The step takes them only if
            ``config.eval_every_steps`` is set.
    """
    if config.eval_every_steps is None:
        held_out = None
    match by_family(config):
        case ReferenceFreeConfig() as free:
            return train_reference_free(tokens, policy, free, held_out)
        case DpoConfig() as dpo:

            def reference(pairs: Step | Input) -> Step:
                return reference_logprobs(pairs, model=policy, config=dpo.reference())

            if held_out is None:
                return train_dpo(tokens, policy, reference(tokens), dpo)
            return train_dpo(tokens, policy, reference(tokens), dpo, held_out, reference(held_out))
