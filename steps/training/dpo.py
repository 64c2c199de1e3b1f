"""Preferences against a reference: DPO, and whatever else is a `ReferenceLoss` over pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.training.config import DpoConfig
from steps.training.examples import TokenGroup, read_pairs
from steps.training.leaving import Stopping, never
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import Objective, preference_objective
from steps.training.ranks import ALONE, Ranks
from steps.training.reference import Reference
from steps.training.run import Records, Run


def run_dpo(
    policy: Path,
    records: Records,
    reference: Path,
    config: DpoConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
    held_out: tuple[Records, Path] | None = None,
) -> dict[str, Any]:
    """Trains the model folder `policy` on records that `examples.read_pairs` understands.

    `reference` is a folder that `run_reference` wrote. Writes the trained model folder and its
    metrics.jsonl to `output`, checkpoints to `scratch`, and resumes from there. Returns
    `metrics.summarise` of the run. Dropout is off, as the reference was computed without.
    `held_out`: records to evaluate on during training, and their reference.
    """
    model = load_model(policy, config.dtype, on_host=ranks.count > 1)
    vocabulary = vocabulary_size(model)
    pairs = read_pairs(records, vocabulary)
    run = Run(policy, model, pairs, config, ranks)
    before = run.reference(reference)

    def objective(pairs: Sequence[TokenGroup], reference: Reference) -> Objective:
        return preference_objective(pairs, config.loss, reference.of(pairs))

    evaluated = None
    if held_out is not None:
        beside = run.reference(held_out[1], beside=before)
        evaluated = objective(read_pairs(held_out[0], vocabulary), beside)
    return run.train(
        objective(pairs, before),
        evaluated,
        output=output,
        scratch=scratch,
        on_progress=on_progress,
        stopping=stopping,
        title=f"{config.loss.name}, first and last step",
        at_start=run.start_check(before) if config.check_start else None,
    )
