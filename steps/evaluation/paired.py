"""Two models on the same pairs: how far apart they are, and whether that may be chance.

Pair by pair, what makes a pair hard for both cancels out, so far fewer are needed than for two
intervals side by side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.evaluation.intervals import Interval, mean

_PERMUTATIONS = 9999


@dataclass(frozen=True)
class Paired:
    """The mean of the differences with its interval, and how likely one at least as large is if
    the two models were the same (two-sided)."""

    difference: Interval
    p: float


def paired_means(
    one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray, seed: int = 0
) -> Paired:
    """How far the mean of ``other`` lies above that of ``one``; p by random changes of sign."""
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
        rng=np.random.default_rng(seed),
    )
    return Paired(mean(differences.tolist(), seed), float(test.pvalue))


def paired_shares(
    one: Sequence[bool] | np.ndarray, other: Sequence[bool] | np.ndarray, seed: int = 0
) -> Paired:
    """How much more often ``other`` is right; p by McNemar's exact test (1947)."""
    from scipy.stats import binomtest

    first, second = _both(one, other)
    gained, lost = int((second > first).sum()), int((second < first).sum())
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Paired(mean((second - first).tolist(), seed), p)


def _both(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray):
    first, second = (np.asarray(values, dtype=np.float64) for values in (one, other))
    if first.shape != second.shape or first.size == 0:
        raise ValueError(f"{first.size} and {second.size} values are no pairs")
    return first, second
