"""``train_reference_free``: preference training by a loss without a reference model."""

from pipeline import Metrics, Output, step
from steps.core_adapters.own_tokens import tokens_for, with_template_of
from steps.core_adapters.workplace_of import at_work
from steps.data.images.images_of_rows import rows_with_images
from steps.kinds import Model, PairTokens
from steps.training.config import ReferenceFreeConfig


@step(
    makes=Model,
    estimate="steps.step_needs:of_model",
    rests_on="steps.core_adapters.workplace_of:base_of_adapters",
)
def train_reference_free(
    out: Output,
    tokens: PairTokens,
    policy: Model,
    config: ReferenceFreeConfig = ReferenceFreeConfig(),
    held_out: PairTokens | None = None,
) -> Metrics:
    """Write a model folder, ``metrics.jsonl`` and ``summary.md``. An interrupted step resumes from
    its last checkpoint.

    Args:
        policy: the model to start from.
        held_out: other pairs, for evaluation during training.
    """
    from steps.training.recipes import run_reference_free

    with at_work(out, policy) as place:
        metrics = run_reference_free(
            policy.path,
            rows_with_images(tokens_for(policy, tokens)),
            config,
            place,
            None if held_out is None else rows_with_images(tokens_for(policy, held_out)),
        )
        return with_template_of(tokens, place, metrics)
