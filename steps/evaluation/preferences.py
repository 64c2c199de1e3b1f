"""What a model prefers among held-out pairs, and what it has come to be rewarded for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from steps.evaluation.intervals import Interval, mean, proportion
from steps.training.config import Dtype
from steps.training.examples import read_pairs
from steps.training.reference import read_reference


def preference_metrics(
    records: Sequence[Mapping[str, Any]],
    policy_logps: Path,
    reference_logps: Path,
    dtype: Dtype,
    beta: float,
) -> dict[str, Any]:
    """TRL's ``eval_`` metrics with 95 % intervals, from two folders with ``logps.parquet``.

    ``eval_logps/accuracies`` is the raw preference: how often the model alone gives the chosen
    response the greater probability. Where policy and reference are one, the rewards are 0 by
    definition and have no interval.
    """
    pairs = read_pairs(records, vocabulary=2**31)
    chosen, rejected = read_reference(policy_logps, pairs, dtype)
    reference_chosen, reference_rejected = read_reference(reference_logps, pairs, dtype)
    margins = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))
    is_reference = policy_logps == reference_logps
    return {
        "eval_loss": float(-functional.logsigmoid(margins).mean()),
        "eval_rewards/accuracies": 0.0 if is_reference else _share(margins > 0),
        "eval_rewards/margins": 0.0 if is_reference else mean(margins.tolist()),
        "eval_logps/accuracies": _share(chosen > rejected),
        "pairs": len(pairs),
    }


def _share(hits: torch.Tensor) -> Interval:
    return proportion(int(hits.sum()), len(hits))
