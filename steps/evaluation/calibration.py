"""The calibration of rewards: whether margins predict how often pairs are ranked right.

In the Bradley-Terry model, which preference losses assume, a margin ``m`` between two responses
predicts that the one with the higher reward is preferred with probability σ(|m|). Of pairs with a
prediction of about 0.8, four in five should be ranked right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, portions, proportion

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
    place = _places(confidence)
    for members in (place == number for number in np.unique(place)):
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
    found = bootstrap(len(right), lambda chosen: _errors(confidence[chosen], right[chosen]))
    value = found["value"]
    low, high = max(0.0, 2 * value - found["high"]), min(1.0, 2 * value - found["low"])
    if value <= _by_chance(confidence):
        low = 0.0
    return {"value": value, "low": low, "high": max(value, high)}


def _by_chance(confidence: np.ndarray) -> float:
    """The error that margins which mean what they say exceed in 2.5 % of draws (Bröcker and Smith
    2007)."""
    random, pairs = np.random.default_rng(0), len(confidence)
    drawn = [
        _errors(
            np.broadcast_to(confidence, (some, pairs)), random.random((some, pairs)) < confidence
        )
        for some in portions(pairs)
    ]
    return float(np.percentile(np.concatenate(drawn), 97.5))


def _errors(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The error of each row of k [k, pairs]. A bin's gap, weighted by its share of the pairs, is
    what its predictions and outcomes differ by in sum, over all pairs."""
    rows, pairs = confidence.shape
    place = _places(confidence) + BINS * np.arange(rows)[:, None]
    gaps = np.bincount(place.ravel(), (confidence - right).ravel(), rows * BINS)
    return np.abs(gaps).reshape(rows, BINS).sum(axis=1) / pairs


def _verdicts(margins: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    data = np.asarray(margins, dtype=np.float64)
    return 1 / (1 + np.exp(-np.abs(data))), data > 0


def _places(confidence: np.ndarray) -> np.ndarray:
    """The number of each prediction's bin."""
    return np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
