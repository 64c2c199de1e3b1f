"""``train_kto``: training on responses labelled good or bad, against cached reference logps."""

from pipeline import Metrics, Output, step
from steps.data.rows.parquet import iter_rows
from steps.glue.held_out_rows import with_reference
from steps.glue.workplace_of import at_work
from steps.kinds import Model, ReferenceLogps, UnpairedTokens
from steps.training.config import KtoConfig


@step(makes=Model, estimate="steps.prices.of_training:PREFERENCE")
def train_kto(
    out: Output,
    tokens: UnpairedTokens,
    policy: Model,
    reference: ReferenceLogps,
    config: KtoConfig = KtoConfig(),
    held_out: UnpairedTokens | None = None,
    held_out_reference: ReferenceLogps | None = None,
) -> Metrics:
    """Write a model folder, ``metrics.jsonl`` and ``summary.md``. An interrupted step resumes from
    its last checkpoint.

    The arguments mean the same as in :func:`steps.train_dpo.train_dpo`.
    """
    from steps.training.recipes import run_kto

    with at_work(out) as place:
        return run_kto(
            policy.path,
            iter_rows(tokens.path),
            reference.path,
            config,
            place,
            with_reference(held_out, held_out_reference),
        )
