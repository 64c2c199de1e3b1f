"""What a model prefers among held-out pairs, and what it has come to be rewarded for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from steps.evaluation.calibration import calibration_error
from steps.evaluation.intervals import Interval, mean, proportion
from steps.evaluation.length_control import length_controlled
from steps.evaluation.paired import paired_means, paired_shares
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

    ``eval_loss`` is what training minimises, with the weights of the pairs; all else counts each
    pair once. ``eval_logps/accuracies`` is the raw preference: how often the model alone gives the
    chosen response the greater probability. Where policy and reference are one, rewards that
    compare the two are 0 by definition and have no interval; else there is also

    - ``eval_rewards/accuracies_at_equal_length``: see `length_control`;
    - ``eval_rewards/calibration_error``: see `calibration`;
    - ``gain/…``: what the model prefers against what the reference model does, pair by pair, each
      with a ``p``: see `paired`.
    """
    pairs = read_pairs(records, vocabulary=2**31)
    logps = _logps(pairs, policy_logps, reference_logps)
    rewarded = loss.per_pair(logps)
    margins = rewarded.chosen_rewards - rewarded.rejected_rewards
    totals = Totals(len(pairs), int(logps.chosen_tokens.sum()))
    weights = torch.tensor([pair.weight for pair in pairs], dtype=torch.float64)
    fixed = policy_logps == reference_logps and isinstance(loss, ReferenceLoss)
    metrics = {
        "eval_loss": loss.shares(logps, totals, weights).losses.sum().item(),
        "eval_rewards/accuracies": 0.0 if fixed else _share(margins > 0),
        "eval_rewards/margins": 0.0 if fixed else mean(margins.tolist()),
        "eval_logps/accuracies": _share(logps.chosen > logps.rejected),
        "pairs": len(pairs),
    }
    if not fixed:
        longer = (logps.chosen_tokens - logps.rejected_tokens).numpy()
        wins = length_controlled((margins > 0).numpy(), longer)
        metrics["eval_rewards/accuracies_at_equal_length"] = wins
        metrics["eval_rewards/calibration_error"] = calibration_error(margins.numpy())
    if policy_logps != reference_logps:
        metrics |= _gain(logps)
    return metrics


def reward_margins(
    records: Sequence[Mapping[str, Any]],
    policy_logps: Path,
    reference_logps: Path,
    loss: PreferenceLoss,
) -> list[float]:
    """Of each pair, the reward of the chosen response less that of the rejected."""
    pairs = read_pairs(records, vocabulary=2**31)
    rewarded = loss.per_pair(_logps(pairs, policy_logps, reference_logps))
    return (rewarded.chosen_rewards - rewarded.rejected_rewards).tolist()


def _gain(logps: PairLogps) -> dict[str, Any]:
    """How much more the policy prefers the chosen responses than the reference does."""
    assert logps.reference_chosen is not None
    assert logps.reference_rejected is not None
    after = (logps.chosen - logps.rejected).numpy()
    before = (logps.reference_chosen - logps.reference_rejected).numpy()
    accuracies, margins = paired_shares(before > 0, after > 0), paired_means(before, after)
    return {
        "gain/logps/accuracies": accuracies.difference,
        "gain/logps/accuracies/p": accuracies.p,
        "gain/logps/margins": margins.difference,
        "gain/logps/margins/p": margins.p,
    }


def _logps(pairs: Sequence[TokenGroup], policy_logps: Path, reference_logps: Path) -> PairLogps:
    policy, reference = read_reference(policy_logps), read_reference(reference_logps)
    policy.scored_by.require_comparable(reference.scored_by, reference_logps)
    tokens = torch.tensor([[response.num_scored for response in p.responses] for p in pairs])
    return PairLogps(*policy.of(pairs).unbind(1), *tokens.unbind(1), *reference.of(pairs).unbind(1))


def _share(hits: torch.Tensor) -> Interval:
    return proportion(int(hits.sum()), len(hits))
