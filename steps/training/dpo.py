"""A DPO run: from a policy folder, token records and reference logps to a model folder."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.training.checkpoints import Checkpoints
from steps.training.config import DpoConfig, DpoLoss
from steps.training.examples import TokenPair, read_pairs
from steps.training.logps import pair_logps
from steps.training.loop import Objective, train
from steps.training.losses.dpo import dpo_loss, dpo_metrics
from steps.training.metrics import (
    OnProgress,
    ignore_progress,
    summarise,
    write_metrics,
)
from steps.training.models import load_model, save_model, vocabulary_size
from steps.training.reference import read_reference


def run_dpo(
    policy: Path,
    records: Iterable[Mapping[str, Any]],
    reference: Path,
    config: DpoConfig,
    *,
    output: Path,
    scratch: Path,
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Any]:
    """Trains the model folder `policy` on records that `examples.read_pairs` understands.

    `reference` is a folder that `run_reference` wrote. Writes the trained model folder and its
    metrics.jsonl to `output`, checkpoints to `scratch`, and resumes from there. Returns
    `metrics.summarise` of the run. Dropout is off, as the reference was computed without.
    """
    model = load_model(policy, config.dtype)
    model.eval()
    pairs = read_pairs(records, vocabulary_size(model))
    chosen, rejected = read_reference(reference, pairs, config.dtype)
    log = train(
        model,
        dpo_objective(model, pairs, chosen, rejected, config),
        config,
        Checkpoints(scratch / "checkpoints"),
        on_progress,
    )
    save_model(model, output, tokenizer_from=policy)
    write_metrics(output / "metrics.jsonl", log)
    return summarise(log)


def dpo_objective(
    model: PreTrainedModel,
    pairs: Sequence[TokenPair],
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    config: DpoLoss,
) -> Objective:
    """The mean DPO loss over pairs; reference logps are float64 [n], in the order of `pairs`."""

    def sums(indices: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        chosen, rejected = pair_logps(model, [pairs[i] for i in indices])
        selected = torch.tensor(indices)
        losses, chosen_rewards, rejected_rewards = dpo_loss(
            chosen,
            rejected,
            reference_chosen[selected].to(chosen.device),
            reference_rejected[selected].to(chosen.device),
            config,
        )
        metrics = dpo_metrics(chosen, rejected, chosen_rewards, rejected_rewards)
        return losses.sum(), {name: values.sum() for name, values in metrics.items()}

    return Objective(
        rows=[pair.row for pair in pairs],
        tokens=[len(pair) for pair in pairs],
        weights=[1] * len(pairs),
        sums=sums,
    )
