"""A supervised fine-tuning run: from a model folder and token records to a model folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from steps.training.batches import pad_right
from steps.training.checkpoints import Checkpoints
from steps.training.config import TrainConfig
from steps.training.examples import TokenDemonstration, read_demonstrations
from steps.training.logps import response_logps
from steps.training.loop import Objective, train
from steps.training.losses.sft import sft_loss
from steps.training.metrics import (
    OnProgress,
    ignore_progress,
    summarise,
    write_metrics,
)
from steps.training.models import load_model, save_model, vocabulary_size


def run_sft(
    init: Path,
    records: Iterable[Mapping[str, Any]],
    config: TrainConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Trains the model folder `init` on records that `examples.read_demonstrations` understands.

    Writes the trained model folder and its metrics.jsonl to `output`, checkpoints to `scratch`,
    and resumes from there. Returns `metrics.summarise` of the run. Dropout, where the model has
    any, is on.
    """
    model = load_model(init, config.dtype)
    model.train()
    demonstrations = read_demonstrations(records, vocabulary_size(model))
    log = train(
        model,
        sft_objective(model, demonstrations),
        config,
        Checkpoints(scratch / "checkpoints"),
        on_progress,
    )
    save_model(model, output, tokenizer_from=init)
    write_metrics(output / "metrics.jsonl", log)
    return summarise(log)


def sft_objective(
    model: PreTrainedModel, demonstrations: Sequence[TokenDemonstration]
) -> Objective:
    """The mean over response tokens of their negative log-likelihood."""

    def sums(indices: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        batch = pad_right([demonstrations[i].sequence for i in indices]).to(model.device)
        return sft_loss(response_logps(model, batch)).sum(), {}

    return Objective(
        rows=[demonstration.row for demonstration in demonstrations],
        tokens=[len(demonstration.sequence) for demonstration in demonstrations],
        weights=[demonstration.sequence.num_scored for demonstration in demonstrations],
        sums=sums,
    )
