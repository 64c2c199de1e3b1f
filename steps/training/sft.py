"""Supervised fine-tuning: a model learns to write given responses."""

from pathlib import Path
from typing import Any

from steps.training.config import TrainConfig
from steps.training.examples import read_demonstrations
from steps.training.models import load_model, vocabulary_size
from steps.training.objectives import sft_objective
from steps.training.run import Records, Run
from steps.training.workplace import Workplace


def run_sft(
    init: Path,
    records: Records,
    config: TrainConfig,
    place: Workplace,
    held_out: Records | None = None,
) -> dict[str, Any]:
    """Trains the model folder `init` on records that `examples.read_demonstrations` understands.

    Writes the trained model folder and its metrics.jsonl, and resumes from checkpoints. Returns
    `metrics.summarise` of the run. Dropout, where the model has any, is on. `held_out`: records to
    evaluate on during training.
    """
    model = load_model(init, config.dtype, on_host=place.ranks.count > 1)
    vocabulary = vocabulary_size(model)
    groups = read_demonstrations(records, vocabulary)
    evaluated = None
    if held_out is not None:
        evaluated = sft_objective(read_demonstrations(held_out, vocabulary))
    run = Run(init, model, groups, config, place, dropout=True)
    return run.train(sft_objective(groups), evaluated)
