"""Paired comparisons of two models on the same pairs, with a test of significance.

The difficulty of a pair affects both models and cancels in their difference. So a paired comparison
needs far fewer pairs than a comparison of two separate intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.evaluation.intervals import Interval, mean, proportion

_PERMUTATIONS = 9999


@dataclass(frozen=True)
class Paired:
    """The mean difference with its interval, and its two-sided p-value under the hypothesis that
    the two models are equal."""

    difference: Interval
    p: float


def paired_means(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> Paired:
    """The mean of ``other`` minus the mean of ``one``; p from a permutation test over signs."""
    from scipy.stats import permutation_test

    first, second = _both(one, other)
    differences = second - first
    if not differences.any():
        return Paired({"value": 0.0, "low": 0.0, "high": 0.0}, 1.0)
    test = permutation_test(
        (differences,),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=_PERMUTATIONS,
        rng=np.random.default_rng(0),
    )
    return Paired(mean(differences.tolist()), float(test.pvalue))


def paired_shares(one: Sequence[bool] | np.ndarray, other: Sequence[bool] | np.ndarray) -> Paired:
    """How much more often ``other`` is right than ``one``; p from McNemar's exact test (1947)."""
    from scipy.stats import binomtest

    first, second = _both(one, other)
    gained, lost = int((second > first).sum()), int((second < first).sum())
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Paired(_share_of_change(second - first), p)


def _share_of_change(changes: np.ndarray) -> Interval:
    """The mean of changes −1, 0 or 1 with its interval. If all are equal, no resample differs; then
    as many others may exist as the interval of a `proportion` of none allows."""
    if changes.min() < changes.max():
        return mean(changes.tolist())
    value, apart = float(changes[0]), proportion(0, len(changes))["high"]
    return {"value": value, "low": max(-1.0, value - apart), "high": min(1.0, value + apart)}


def _both(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray):
    first, second = (np.asarray(values, dtype=np.float64) for values in (one, other))
    if first.shape != second.shape or first.size == 0:
        raise ValueError(f"{first.size} and {second.size} values cannot be paired")
    return first, second
