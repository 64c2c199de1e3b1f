"""Single responses, each marked good or bad, against a reference: KTO."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.training.against_reference import Examples, train_against_reference
from steps.training.config import KtoConfig
from steps.training.examples import TokenGroup, read_unpaired
from steps.training.mismatched import mismatched
from steps.training.objectives import Objective, unpaired_objective
from steps.training.reference import Reference
from steps.training.run import Records
from steps.training.workplace import Workplace


def run_kto(
    policy: Path,
    records: Records,
    reference: Path,
    config: KtoConfig,
    place: Workplace,
    held_out: Examples | None = None,
) -> dict[str, Any]:
    """As `dpo.run_dpo`, on records that `examples.read_unpaired` understands."""

    def objective(groups: Sequence[TokenGroup], reference: Reference) -> Objective:
        others = mismatched(groups)
        return unpaired_objective(
            groups, config.loss, reference.of(groups)[:, 0], others, reference.of(others)[:, 0]
        )

    return train_against_reference(
        policy,
        (records, reference),
        held_out,
        config,
        place,
        loss=config.loss.name,
        check_start=config.check_start,
        read=read_unpaired,
        objective=objective,
    )
