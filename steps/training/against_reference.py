"""Training that compares the policy with cached reference logps, whatever the examples are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steps.training.config import TrainConfig
from steps.training.examples import TokenGroup
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import Objective
from steps.training.reference import Reference, read_reference
from steps.training.run import Records, Run
from steps.training.workplace import Workplace

Examples = tuple[Records, Path]
"""Tokenised examples, and the folder of their reference, which `run_reference` wrote."""


def train_against_reference(
    policy: Path,
    examples: Examples,
    held_out: Examples | None,
    config: TrainConfig,
    place: Workplace,
    *,
    loss: str,
    check_start: bool,
    read: Callable[[Records, int], list[TokenGroup]],
    objective: Callable[[Sequence[TokenGroup], Reference], Objective],
) -> dict[str, Any]:
    """Trains the model folder `policy` on what `read` makes of the examples, given the size of the
    vocabulary, by the loss of this name. Dropout is off, as the reference was computed without.

    Raises ValueError if a reference was computed in a way that the policy's logps must not be
    compared with, or of another model than the other.
    """
    records, folder = examples
    model = load_model(policy, config.dtype, on_host=place.ranks.count > 1)
    vocabulary = vocabulary_size(model)
    groups = read(records, vocabulary)
    reference = read_reference(folder)
    shown_by = reference if check_start else None
    run = Run(policy, model, groups, config, place, shown_by=shown_by)
    run.require_comparable(reference)
    evaluated = None
    if held_out is not None:
        others = read_reference(held_out[1])
        run.require_comparable(others)
        if others.model != reference.model:
            raise ValueError(
                f"the references in {others.folder} and in {folder} are of two models; compute "
                "both from the one that training starts from"
            )
        evaluated = objective(read(held_out[0], vocabulary), others)
    return run.train(
        objective(groups, reference),
        evaluated,
        title=f"{loss}, first and last step",
        at_start=run.start_check(reference) if check_start else None,
    )
