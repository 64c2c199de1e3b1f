"""Single responses, each marked good or bad, against a reference: KTO."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.training.config import KtoConfig
from steps.training.examples import TokenGroup, read_unpaired
from steps.training.leaving import Stopping, never
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.mismatched import mismatched
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import Objective, unpaired_objective
from steps.training.ranks import ALONE, Ranks
from steps.training.reference import Reference
from steps.training.run import Records, Run


def run_kto(
    policy: Path,
    records: Records,
    reference: Path,
    config: KtoConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
    held_out: tuple[Records, Path] | None = None,
) -> dict[str, Any]:
    """As `dpo.run_dpo`, on records that `examples.read_unpaired` understands."""
    model = load_model(policy, config.dtype, on_host=ranks.count > 1)
    vocabulary = vocabulary_size(model)
    groups = read_unpaired(records, vocabulary)
    run = Run(policy, model, groups, config, ranks)
    before = run.reference(reference)

    def objective(groups: Sequence[TokenGroup], reference: Reference) -> Objective:
        others = mismatched(groups)
        return unpaired_objective(
            groups, config.loss, reference.of(groups)[:, 0], others, reference.of(others)[:, 0]
        )

    evaluated = None
    if held_out is not None:
        beside = run.reference(held_out[1], beside=before)
        evaluated = objective(read_unpaired(held_out[0], vocabulary), beside)
    return run.train(
        objective(groups, before),
        evaluated,
        output=output,
        scratch=scratch,
        on_progress=on_progress,
        stopping=stopping,
        title=f"{config.loss.name}, first and last step",
        at_start=run.start_check(before) if config.check_start else None,
    )
