"""What a model prefers among held-out pairs, and what it has come to be rewarded for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from steps.evaluation.intervals import Interval, mean, proportion
from steps.training.examples import TokenGroup, read_pairs
from steps.training.losses.base import PairLogps, PreferenceLoss, ReferenceLoss, Totals
from steps.training.reference import read_reference


def preference_metrics(
    records: Sequence[Mapping[str, Any]],
    policy_logps: Path,
    reference_logps: Path,
    loss: PreferenceLoss,
) -> dict[str, Any]:
    """TRL's ``eval_`` metrics with 95 % intervals, from two folders that ``run_reference`` wrote.

    ``eval_logps/accuracies`` is the raw preference: how often the model alone gives the chosen
    response the greater probability. Where policy and reference are one, rewards that compare the
    two are 0 by definition and have no interval.
    """
    pairs = read_pairs(records, vocabulary=2**31)
    logps = _logps(pairs, policy_logps, reference_logps)
    rewarded = loss.per_pair(logps)
    margins = rewarded.chosen_rewards - rewarded.rejected_rewards
    totals = Totals(len(pairs), int(logps.chosen_tokens.sum()))
    fixed = policy_logps == reference_logps and isinstance(loss, ReferenceLoss)
    return {
        "eval_loss": loss.shares(logps, totals).losses.sum().item(),
        "eval_rewards/accuracies": 0.0 if fixed else _share(margins > 0),
        "eval_rewards/margins": 0.0 if fixed else mean(margins.tolist()),
        "eval_logps/accuracies": _share(logps.chosen > logps.rejected),
        "pairs": len(pairs),
    }


def _logps(pairs: Sequence[TokenGroup], policy_logps: Path, reference_logps: Path) -> PairLogps:
    policy, reference = read_reference(policy_logps), read_reference(reference_logps)
    policy.scored_by.require_comparable(reference.scored_by, reference_logps)
    tokens = torch.tensor([[response.num_scored for response in p.responses] for p in pairs])
    return PairLogps(*policy.of(pairs).unbind(1), *tokens.unbind(1), *reference.of(pairs).unbind(1))


def _share(hits: torch.Tensor) -> Interval:
    return proportion(int(hits.sum()), len(hits))
