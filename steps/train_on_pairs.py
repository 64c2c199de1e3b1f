"""``train_on_pairs``: the steps that a loss over pairs takes, chosen by what kind of loss it is."""

from pipeline import Input, Step
from steps.reference_logprobs import reference_logprobs
from steps.train_dpo import train_dpo
from steps.train_reference_free import train_reference_free
from steps.training.config import DpoConfig, PreferenceConfig, ReferenceFreeConfig, by_family


def train_on_pairs(
    tokens: Step | Input,
    policy: Step,
    config: PreferenceConfig,
    held_out: Step | Input | None = None,
) -> Step:
    """The model trained: after ``reference_logprobs`` of ``policy`` if the loss wants a reference.

    Args:
        held_out: other pairs; they are a part of it only if ``config.eval_every_steps`` asks for
            evaluations during training.
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
