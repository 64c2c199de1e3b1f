"""Preferences without a reference: SimPO, CPO, ORPO and any other `ReferenceFreeLoss`."""

from pathlib import Path
from typing import Any

from steps.training.config import ReferenceFreeConfig
from steps.training.examples import read_pairs
from steps.training.leaving import Stopping, never
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import preference_objective
from steps.training.ranks import ALONE, Ranks
from steps.training.run import Records, Run


def run_reference_free(
    policy: Path,
    records: Records,
    config: ReferenceFreeConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """As `dpo.run_dpo`, with nothing to compare the policy with. Dropout is off too."""
    model = load_model(policy, config.dtype, on_host=ranks.count > 1)
    vocabulary = vocabulary_size(model)
    pairs = read_pairs(records, vocabulary)
    evaluated = None
    if held_out is not None:
        evaluated = preference_objective(read_pairs(held_out, vocabulary), config.loss)
    return Run(policy, model, pairs, config, ranks).train(
        preference_objective(pairs, config.loss),
        evaluated,
        output=output,
        scratch=scratch,
        on_progress=on_progress,
        stopping=stopping,
        title=f"{config.loss.name}, first and last step",
    )
