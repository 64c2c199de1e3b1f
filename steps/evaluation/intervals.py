"""Estimates with 95 % confidence intervals, as metrics report them."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Interval = dict[str, float]
"""``value`` with the ``low`` and ``high`` end of its 95 % interval."""

RESAMPLES = 2000
_AT_ONCE = 2**16
"""Indices that are drawn at once."""
Z = 1.96  # of the standard normal distribution, for 95 %


def proportion(successes: int, n: int) -> Interval:
    """A share with its score interval (Wilson 1927), which is valid for small n and near 0 and 1.

    Raises:
        ValueError: unless 0 <= successes <= n and n > 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n} is not a proportion")
    rate = successes / n
    centre = rate + Z**2 / (2 * n)
    spread = Z * math.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    scale = 1 + Z**2 / n
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return {"value": rate, "low": low, "high": high}


def mean(values: Sequence[float], seed: int = 0) -> Interval:
    """A mean with its :func:`bootstrap` interval.

    Raises:
        ValueError: there are no values.
    """
    data = np.asarray(values, dtype=np.float64)
    return bootstrap(len(data), lambda chosen: data[chosen].mean(axis=1), seed)


def mean_share(shares: Sequence[float], least: float = 0.0) -> Interval:
    """The mean of shares with its :func:`bootstrap` interval. If all are equal, no resample
    differs; then as many others may exist as the interval of a :func:`proportion` of none allows.

    Args:
        least: the least value that a share can have: -1 for changes of shares.

    Raises:
        ValueError: there are no shares.
    """
    if not len(shares) or min(shares) < max(shares):
        return mean(shares)
    value, apart = float(shares[0]), proportion(0, len(shares))["high"]
    return {"value": value, "low": max(least, value - apart), "high": min(1.0, value + apart)}


def bootstrap(
    n: int, statistics: Callable[[np.ndarray], Sequence[float] | np.ndarray], seed: int = 0
) -> Interval:
    """A statistic of n observations, with its 2.5th and 97.5th percentile over bootstrap resamples
    (Efron 1979).

    Args:
        statistics: maps indices of observations, int64 [k, n], to k numbers.

    Raises:
        ValueError: there are no observations.
    """
    if n == 0:
        raise ValueError("there are no values to resample")
    generator = np.random.default_rng(seed)
    drawn = [statistics(generator.integers(0, n, (some, n))) for some in portions(n)]
    low, high = np.percentile(np.concatenate(drawn), [2.5, 97.5])
    (value,) = statistics(np.arange(n)[None])
    return {"value": float(value), "low": float(low), "high": float(high)}


def portions(n: int) -> list[int]:
    """How many resamples of n observations are drawn at once, until all are."""
    rows = max(1, _AT_ONCE // n)
    return [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
