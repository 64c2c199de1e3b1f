"""Preferences without a reference: SimPO, CPO, ORPO and any other `ReferenceFreeLoss`."""

from pathlib import Path
from typing import Any

from steps.training.config import ReferenceFreeConfig
from steps.training.examples import read_pairs
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import preference_objective
from steps.training.run import Records, Run
from steps.training.workplace import Workplace


def run_reference_free(
    policy: Path,
    records: Records,
    config: ReferenceFreeConfig,
    place: Workplace,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """As `dpo.run_dpo`, with nothing to compare the policy with. Dropout is off too."""
    model = load_model(policy, config.dtype, on_host=place.ranks.count > 1)
    vocabulary = vocabulary_size(model)
    pairs = read_pairs(records, vocabulary)
    evaluated = None
    if held_out is not None:
        evaluated = preference_objective(read_pairs(held_out, vocabulary), config.loss)
    title = f"{config.loss.name}, first and last step"
    run = Run(policy, model, pairs, config, place)
    return run.train(preference_objective(pairs, config.loss), evaluated, title=title)
