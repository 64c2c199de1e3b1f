"""Preferences against a reference: DPO, and whatever else is a `ReferenceLoss` over pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.training.against_reference import Examples, train_against_reference
from steps.training.config import DpoConfig
from steps.training.examples import TokenGroup, read_pairs
from steps.training.objectives import Objective, preference_objective
from steps.training.reference import Reference
from steps.training.run import Records
from steps.training.workplace import Workplace


def run_dpo(
    policy: Path,
    records: Records,
    reference: Path,
    config: DpoConfig,
    place: Workplace,
    held_out: Examples | None = None,
) -> dict[str, Any]:
    """Trains the model folder `policy` on records that `examples.read_pairs` understands.

    `reference` is a folder that `run_reference` wrote. Writes the trained model folder and its
    metrics.jsonl, and resumes from checkpoints. Returns `metrics.summarise` of the run.
    `held_out`: records to evaluate on during training, and their reference.
    """

    def objective(pairs: Sequence[TokenGroup], reference: Reference) -> Objective:
        return preference_objective(pairs, config.loss, reference.of(pairs))

    return train_against_reference(
        policy,
        (records, reference),
        held_out,
        config,
        place,
        loss=config.loss.name,
        check_start=config.check_start,
        read=read_pairs,
        objective=objective,
    )
