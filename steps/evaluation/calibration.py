"""Whether a margin says how often it is right: the calibration of the implicit reward.

Under the Bradley-Terry model that preference losses assume, a margin ``m`` between two responses
says that the better rewarded one is preferred with probability σ(|m|). Of pairs that say so with
about 0.8, four in five should be right.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from steps.evaluation.intervals import Interval, bootstrap, proportion

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Pairs of about one confidence: the mean of it, and the share that is right."""

    predicted: float
    observed: float
    low: float
    high: float
    pairs: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def reliability(margins: Sequence[float] | np.ndarray) -> list[Bin]:
    """Pairs by confidence, in ten bins of equal width from 0.5 to 1; empty ones are left out.

    Args:
        margins: of held-out pairs, the reward of the chosen response less that of the rejected.
    """
    confidence, right = _verdicts(margins)
    bins = []
    for members in _binned(confidence):
        share = proportion(int(right[members].sum()), int(members.sum()))
        predicted = float(confidence[members].mean())
        bins.append(Bin(predicted, share["value"], share["low"], share["high"], int(members.sum())))
    return bins


def calibration_error(margins: Sequence[float] | np.ndarray) -> Interval:
    """The expected calibration error (Naeini et al. 2015): how far confidence and share of right
    ones lie apart, on average over pairs; with a bootstrap interval."""
    data = np.asarray(margins, dtype=np.float64)
    return bootstrap(len(data), lambda chosen: _error(data[chosen]))


def _error(margins: np.ndarray) -> float:
    confidence, right = _verdicts(margins)
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
