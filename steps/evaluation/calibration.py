"""The calibration of rewards: whether margins predict how often pairs are ranked right.

In the Bradley-Terry model, which preference losses assume, a margin ``m`` between two responses
predicts that the one with the higher reward is preferred with probability σ(|m|). Of pairs with a
prediction of about 0.8, four in five should be ranked right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.evaluation.intervals import RESAMPLES, Interval, bootstrap, proportion

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Pairs of similar predicted probability: its mean, and the observed share of right pairs with
    its 95 % interval."""

    predicted: float
    observed: float
    low: float
    high: float
    pairs: int


def reliability(margins: Sequence[float] | np.ndarray) -> list[Bin]:
    """Pairs in ten bins of equal width by predicted probability, from 0.5 to 1, without empty bins.

    Args:
        margins: for each held-out pair, the reward of the chosen minus that of the rejected
            response.
    """
    confidence, right = _verdicts(margins)
    bins = []
    for members in _binned(confidence):
        share = proportion(int(right[members].sum()), int(members.sum()))
        predicted = float(confidence[members].mean())
        bins.append(Bin(predicted, share["value"], share["low"], share["high"], int(members.sum())))
    return bins


def calibration_error(margins: Sequence[float] | np.ndarray) -> Interval:
    """The expected calibration error (Naeini et al. 2015): the mean absolute difference, over
    pairs, between a bin's predicted and observed probability.

    Chance alone raises it, and in a resample once more. So the 95 % interval mirrors the
    percentiles of the bootstrap at the value (Efron's basic interval), and begins at 0 where
    margins that mean what they say have an error as large in more than 2.5 % of draws.
    """
    confidence, right = _verdicts(margins)
    found = bootstrap(
        len(right), lambda chosen: list(map(_error, confidence[chosen], right[chosen]))
    )
    value = found["value"]
    low, high = max(0.0, 2 * value - found["high"]), min(1.0, 2 * value - found["low"])
    if value <= _by_chance(confidence):
        low = 0.0
    return {"value": value, "low": low, "high": max(value, high)}


def _by_chance(confidence: np.ndarray) -> float:
    """The error that margins which mean what they say exceed in 2.5 % of draws (Bröcker and Smith
    2007)."""
    random = np.random.default_rng(0)
    draws = (random.random(len(confidence)) < confidence for _ in range(RESAMPLES))
    return float(np.percentile([_error(confidence, right) for right in draws], 97.5))


def _error(confidence: np.ndarray, right: np.ndarray) -> float:
    gaps = [
        abs(confidence[members].mean() - right[members].mean()) * members.mean()
        for members in _binned(confidence)
    ]
    return float(sum(gaps))


def _verdicts(margins: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    data = np.asarray(margins, dtype=np.float64)
    return 1 / (1 + np.exp(-np.abs(data))), data > 0


def _binned(confidence: np.ndarray) -> list[np.ndarray]:
    place = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    return [place == number for number in range(BINS) if (place == number).any()]
