"""Win rates corrected for length, as a model may only have learnt to prefer longer responses.

As in length-controlled AlpacaEval (Dubois et al. 2024), a logistic regression models the
probability of a win as a function of the difference in length. The corrected rate is its prediction
for equal lengths.
"""

from collections.abc import Sequence

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, proportion

_RIDGE = 0.01
"""Keeps the fit finite if every pair of a resample is a win, or if length alone separates wins from
losses."""
_STEPS, _CLOSE, _LONGEST = 30, 1e-6, 2.0


def length_controlled(
    wins: Sequence[bool] | np.ndarray,
    length_differences: Sequence[float] | np.ndarray,
) -> Interval:
    """The probability of a win at equal lengths, with a bootstrap interval. If every pair is a win,
    or none is, lengths explain nothing, and it is the share of wins with its `proportion` interval.

    Args:
        wins: for each pair, whether the response that should win does.
        length_differences: for each pair, the length of the response that should win, minus that of
            the other.

    Raises:
        ValueError: there are no pairs, or the two arguments have different lengths.
    """
    won = np.asarray(wins, dtype=np.float64)
    apart = np.asarray(length_differences, dtype=np.float64)
    if len(won) == 0 or len(won) != len(apart):
        raise ValueError(f"{len(won)} wins and {len(apart)} length differences cannot be paired")
    if won.all() or not won.any():  # no resample differs: a bootstrap would find no uncertainty
        return proportion(int(won.sum()), len(won))
    scaled = apart / (apart.std() or 1.0)
    return bootstrap(len(won), lambda chosen: _rates(won[chosen], scaled[chosen]))


def _rates(won: np.ndarray, scaled: np.ndarray) -> np.ndarray:
    """The probability of a win at length difference 0, for each row of k [k, pairs]: logistic
    regressions by Newton's method, until the last of them no longer moves."""

    def summed(of_pairs: np.ndarray) -> np.ndarray:
        return of_pairs.sum(axis=1, keepdims=True)

    start = slope = np.zeros((len(won), 1))
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-(start + slope * scaled)))
        weight, off = chance * (1 - chance), won - chance
        down = summed(off) - _RIDGE * start
        across = summed(off * scaled) - _RIDGE * slope
        a = summed(weight) + _RIDGE
        b = summed(weight * scaled)
        c = summed(weight * scaled**2) + _RIDGE
        determinant = a * c - b * b
        ahead = (c * down - b * across) / determinant
        aside = (a * across - b * down) / determinant
        start = start + np.clip(ahead, -_LONGEST, _LONGEST)
        slope = slope + np.clip(aside, -_LONGEST, _LONGEST)
        if max(np.abs(ahead).max(), np.abs(aside).max()) < _CLOSE:
            break
    return (1 / (1 + np.exp(-start)))[:, 0]
