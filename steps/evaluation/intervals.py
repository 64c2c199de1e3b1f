"""How sure a number is: values with 95 % intervals, as metrics report them."""

import math
from collections.abc import Sequence

import numpy as np

Interval = dict[str, float]
"""``value`` with the ``low`` and ``high`` end of its 95 % interval."""

_Z = 1.96  # of the standard normal distribution, for 95 %


def proportion(successes: int, n: int) -> Interval:
    """A share with its score interval (Wilson 1927), sound for small n and near 0 and 1.

    Raises:
        ValueError: unless 0 <= successes <= n and n > 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes of {n} is not a proportion")
    rate = successes / n
    centre = rate + _Z**2 / (2 * n)
    spread = _Z * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    low, high = max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
    return {"value": rate, "low": low, "high": high}


def mean(values: Sequence[float], seed: int = 0, resamples: int = 2000) -> Interval:
    """A mean with the 2.5th and 97.5th percentile of the means of resamples (Efron 1979).

    Raises:
        ValueError: there are no values.
    """
    if len(values) == 0:
        raise ValueError("there are no values to resample")
    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = [generator.choice(data, len(data)).mean() for _ in range(resamples)]
    low, high = np.percentile(means, [2.5, 97.5])
    return {"value": float(data.mean()), "low": float(low), "high": float(high)}
