"""Supervised fine-tuning: a model learns to write given responses."""

from pathlib import Path
from typing import Any

from steps.training.config import TrainConfig
from steps.training.examples import read_demonstrations
from steps.training.leaving import Stopping, never
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import sft_objective
from steps.training.ranks import ALONE, Ranks
from steps.training.run import Records, Run


def run_sft(
    init: Path,
    records: Records,
    config: TrainConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
    stopping: Stopping = never,
    ranks: Ranks = ALONE,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """Trains the model folder `init` on records that `examples.read_demonstrations` understands.

    Writes the trained model folder and its metrics.jsonl to `output`, checkpoints to `scratch`,
    and resumes from there. Returns `metrics.summarise` of the run. Dropout, where the model has
    any, is on. `held_out`: records to evaluate on during training.
    """
    model = load_model(init, config.dtype, on_host=ranks.count > 1)
    vocabulary = vocabulary_size(model)
    groups = read_demonstrations(records, vocabulary)
    evaluated = None
    if held_out is not None:
        evaluated = sft_objective(read_demonstrations(held_out, vocabulary))
    return Run(init, model, groups, config, ranks, dropout=True).train(
        sft_objective(groups),
        evaluated,
        output=output,
        scratch=scratch,
        on_progress=on_progress,
        stopping=stopping,
    )
