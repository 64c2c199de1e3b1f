"""``train_dpo``: direct preference optimisation against cached reference logps."""

from pipeline import Metrics, Output, step
from steps.data.parquet import iter_rows
from steps.kinds import Model, PairTokens, ReferenceLogps
from steps.training.config import DpoConfig


@step(makes=Model)
def train_dpo(
    out: Output,
    tokens: PairTokens,
    policy: Model,
    reference: ReferenceLogps,
    config: DpoConfig = DpoConfig(),
) -> Metrics:
    """Write a model folder, its ``metrics.jsonl`` and a ``summary.md``; resumes from checkpoints.

    Args:
        policy: the model to start from.
        reference: what :func:`steps.reference_logprobs.reference_logprobs` made of the same
            tokens, in the same dtype.
    """
    from steps.training.dpo import run_dpo
    from steps.training.metrics import first_and_final

    summary = run_dpo(
        policy.path,
        iter_rows(tokens.path),
        reference.path,
        config,
        output=out.path,
        scratch=out.scratch,
        on_progress=out.progress,
    )
    (out.path / "summary.md").write_text(first_and_final("DPO, first and last step", summary))
    return summary
