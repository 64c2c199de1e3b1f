"""``train_dpo``: preference training by DPO or a related loss, against cached reference logps."""

from pipeline import Metrics, Output, step
from steps.core_adapters.held_out_rows import with_reference
from steps.core_adapters.own_tokens import tokens_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.data.images.images_of_rows import rows_with_images
from steps.kinds import Model, PairTokens, ReferenceLogps
from steps.training.config import DpoConfig


@step(
    makes=Model,
    estimate="steps.step_needs:of_model",
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_dpo(
    out: Output,
    tokens: PairTokens,
    policy: Model,
    reference: ReferenceLogps,
    config: DpoConfig = DpoConfig(),
    held_out: PairTokens | None = None,
    held_out_reference: ReferenceLogps | None = None,
) -> Metrics:
    """Write a model folder, ``metrics.jsonl`` and ``summary.md``. An interrupted step resumes from
    its last checkpoint.

    Args:
        policy: the model to start from.
        reference: the logps of the same tokens, from
            :func:`steps.reference_logprobs.reference_logprobs` with ``config.reference()``.
        held_out: other pairs, for evaluation during training.
        held_out_reference: the reference logps of ``held_out``.
    """
    from steps.training.recipes import run_dpo

    with at_work(out, policy) as place:
        metrics = run_dpo(
            policy.path,
            rows_with_images(tokens_for(policy, tokens)),
            reference.path,
            config,
            place,
            with_reference(policy, held_out, held_out_reference),
        )
        return with_template_of(tokens, place, metrics)
