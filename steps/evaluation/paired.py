"""Paired comparisons of two models on the same pairs, with a test of significance.

The difficulty of a pair affects both models and cancels in their difference. So a paired comparison
needs far fewer pairs than a comparison of two separate intervals.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from steps.evaluation.intervals import Interval, mean, mean_share

_PERMUTATIONS = 9999
_AT_ONCE = 2**22
"""Signs that are drawn at once."""


@dataclass(frozen=True)
class Paired:
    """The mean difference with its interval, and its two-sided p-value under the hypothesis that
    the two models are equal."""

    difference: Interval
    p: float


def paired_means(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> Paired:
    """The mean of ``other`` minus the mean of ``one``; p from a permutation test over signs (Fisher
    1935)."""
    first, second = _both(one, other)
    differences = second - first
    if not differences.any():
        return Paired({"value": 0.0, "low": 0.0, "high": 0.0}, 1.0)
    return Paired(mean(differences.tolist()), _p_of_mean(differences))


def paired_shares(one: Sequence[bool] | np.ndarray, other: Sequence[bool] | np.ndarray) -> Paired:
    """How much more often ``other`` is right than ``one``; p from McNemar's exact test (1947)."""
    first, second = _both(one, other)
    gained, lost = int((second > first).sum()), int((second < first).sum())
    change = mean_share((second - first).tolist(), least=-1.0)
    return Paired(change, _p_of_heads(gained, gained + lost))


def _p_of_mean(differences: np.ndarray) -> float:
    """How likely a mean at least as far from zero is if each difference had a random sign: over all
    signs if they are few, else over random ones and those that there are."""
    every = 2 ** len(differences) <= _PERMUTATIONS
    signs = _all_signs if every else _random_signs
    means = np.concatenate([(s * differences).mean(axis=1) for s in signs(len(differences))])
    found = differences.mean()
    near = 100 * np.finfo(np.float64).eps * abs(found)  # equal means may differ by rounding
    fewest = min((means <= found + near).sum(), (means >= found - near).sum())
    own = 0 if every else 1
    return min(1.0, float(2 * (fewest + own) / (len(means) + own)))


def _all_signs(count: int) -> Iterator[np.ndarray]:
    yield np.array(list(product([1, -1], repeat=count)))


def _random_signs(count: int) -> Iterator[np.ndarray]:
    random, rows = np.random.default_rng(0), max(1, _AT_ONCE // count)
    for start in range(0, _PERMUTATIONS, rows):
        coins = np.tile([1, -1], (min(rows, _PERMUTATIONS - start), count, 1))
        yield random.permuted(coins, axis=-1)[..., 0]


def _p_of_heads(heads: int, tosses: int) -> float:
    """How likely a number of heads at least as far from half of the tosses of a fair coin is."""
    fewest = min(heads, tosses - heads)
    term, total = math.comb(tosses, fewest) / 2**tosses, 0.0
    while term > total * 1e-17:  # each is smaller than the one before
        total += term
        term *= fewest / (tosses - fewest + 1)
        fewest -= 1
    return min(1.0, 2 * total)


def _both(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray):
    first, second = (np.asarray(values, dtype=np.float64) for values in (one, other))
    if first.shape != second.shape or first.size == 0:
        raise ValueError(f"{first.size} and {second.size} values cannot be paired")
    return first, second
