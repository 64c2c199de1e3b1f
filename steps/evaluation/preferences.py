"""A model's preferences and implicit rewards on held-out pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from steps.evaluation.calibration import calibration_error
from steps.evaluation.intervals import Interval, mean, proportion
from steps.evaluation.length_control import length_controlled
from steps.evaluation.paired import paired_means, paired_shares
from steps.losses.base import PairLogps, PreferenceLoss, ReferenceLoss, Totals
from steps.scoring.examples import TokenGroup, read_pairs
from steps.scoring.packing import lengths_of
from steps.scoring.reference import read_reference
from steps.training.objectives import weights_of


def preference_metrics(
    records: Sequence[Mapping[str, Any]],
    policy_logps: Path,
    reference_logps: Path,
    loss: PreferenceLoss | None,
) -> dict[str, Any]:
    """TRL's ``eval_`` metrics with 95 % intervals, from two folders that ``run_reference`` wrote.

    ``eval_logps/accuracies`` is the raw preference: how often the model, without a reference, gives
    the chosen response the higher probability. Given a loss, ``eval_loss`` is the quantity that
    training minimises, with the weights of the pairs; all other metrics count each pair once. A
    loss that `needs_alignment` or `needs_divergence` has none: logps alone do not give the
    probabilities of all tokens.
    Metrics of rewards exist if the loss defines rewards. If the policy is its own reference, a loss
    with a reference defines none. Further metrics are

    - ``eval_rewards/accuracies_at_equal_length``: see `length_control`;
    - ``eval_rewards/calibration_error``: see `calibration`;
    - ``gain/…``: the model's preferences compared with the reference's, pair by pair, each with a
      ``p``: see `paired`; only if the policy is not its own reference.

    Raises FloatingPointError, as `reward_margins`.
    """
    pairs = read_pairs(records, vocabulary=2**31)
    logps = _logps(pairs, policy_logps, reference_logps, loss)
    is_own_reference = policy_logps == reference_logps
    metrics: dict[str, Any] = {}
    if loss is not None and not (loss.needs_alignment or loss.needs_divergence):
        metrics["eval_loss"] = _mean_loss(pairs, logps, loss)
    if loss is not None and not (is_own_reference and isinstance(loss, ReferenceLoss)):
        metrics |= _rewards(pairs, logps, loss)
    metrics |= {"eval_logps/accuracies": _share(logps.chosen > logps.rejected), "pairs": len(pairs)}
    return metrics if is_own_reference else metrics | _gain(logps)


def reward_margins(
    records: Sequence[Mapping[str, Any]],
    policy_logps: Path,
    reference_logps: Path,
    loss: PreferenceLoss,
) -> list[float]:
    """For each pair, the reward of the chosen response minus that of the rejected one.

    Raises FloatingPointError, which names the rows, for a margin that is not finite.
    """
    pairs = read_pairs(records, vocabulary=2**31)
    return _margins(pairs, _logps(pairs, policy_logps, reference_logps, loss), loss).tolist()


def _mean_loss(pairs: Sequence[TokenGroup], logps: PairLogps, loss: PreferenceLoss) -> float:
    totals = Totals(len(pairs), int(logps.chosen_tokens.sum()))
    return loss.shares(logps, totals, weights_of(pairs)).losses.sum().item()


def _margins(pairs: Sequence[TokenGroup], logps: PairLogps, loss: PreferenceLoss) -> torch.Tensor:
    rewarded = loss.per_pair(logps)
    margins = rewarded.chosen_rewards - rewarded.rejected_rewards
    finite = margins.isfinite().tolist()
    if rows := [pair.row for pair, good in zip(pairs, finite, strict=True) if not good]:
        raise FloatingPointError(
            f"the margin of the rewards that {type(loss).__name__} gives to {rows[:8]} is not "
            "finite; mend the loss or its settings, or drop the rows"
        )
    return margins


def _rewards(pairs: Sequence[TokenGroup], logps: PairLogps, loss: PreferenceLoss) -> dict[str, Any]:
    margins = _margins(pairs, logps, loss)
    longer = (logps.chosen_tokens - logps.rejected_tokens).numpy()
    return {
        "eval_rewards/accuracies": _share(margins > 0),
        "eval_rewards/margins": mean(margins.tolist()),
        "eval_rewards/accuracies_at_equal_length": length_controlled((margins > 0).numpy(), longer),
        "eval_rewards/calibration_error": calibration_error(margins.numpy()),
    }


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


def _logps(
    pairs: Sequence[TokenGroup],
    policy_logps: Path,
    reference_logps: Path,
    loss: PreferenceLoss | None,
) -> PairLogps:
    """The logps of `pairs` as one batch, with those of single tokens if the loss needs them."""
    policy, reference = read_reference(policy_logps), read_reference(reference_logps)
    policy.scored_by.require_comparable(reference.scored_by, reference_logps)
    (chosen, rejected), (theirs, others) = (
        each.of(pairs).unbind(1) for each in (policy, reference)
    )
    chosen_tokens, rejected_tokens = lengths_of(pairs).unbind(1)
    logps = PairLogps(chosen, rejected, chosen_tokens, rejected_tokens, theirs, others)
    if loss is not None and loss.needs_tokens:
        logps = replace(
            logps,
            tokens=policy.tokens_of(pairs).tokens,
            reference_tokens=reference.tokens_of(pairs).tokens,
        )
    if loss is not None:  # for its rewards, which do not depend on these
        zeros = torch.zeros_like(chosen)
        if loss.needs_alignment:
            logps = replace(logps, aligned_chosen=zeros, aligned_rejected=zeros)
        if loss.needs_divergence:
            logps = replace(logps, chosen_kl=zeros, rejected_kl=zeros)
    return logps.as_batch()


def _share(hits: torch.Tensor) -> Interval:
    return proportion(int(hits.sum()), len(hits))
