"""How often a reward model prefers what people preferred, on held-out pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steps.evaluation.calibration import calibration_error
from steps.evaluation.intervals import mean, proportion
from steps.evaluation.length_control import length_controlled


def pair_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of records with ``scores`` and ``tokens``, the chosen response's first, each with a 95 %
    interval:

    - ``pairs/accuracy``: the share in which the chosen response has the higher score; a tie is no
      hit. ``pairs/accuracy_at_equal_length``: see `length_control`.
    - ``pairs/margin``: how much higher its score is. ``pairs/loss``: the mean of −log σ(margin).
    - ``pairs/calibration_error``: see `calibration`.

    And ``pairs``, how many there are.
    """
    scores = np.array([record["scores"] for record in records], dtype=np.float64)
    tokens = np.array([record["tokens"] for record in records])
    margins = scores[:, 0] - scores[:, 1]
    hits, longer = margins > 0, tokens[:, 0] - tokens[:, 1]
    return {
        "pairs/accuracy": proportion(int(hits.sum()), len(hits)),
        "pairs/accuracy_at_equal_length": length_controlled(hits, longer),
        "pairs/margin": mean(margins.tolist()),
        "pairs/loss": mean(np.logaddexp(0, -margins).tolist()),
        "pairs/calibration_error": calibration_error(margins),
        "pairs": len(records),
    }


def pair_margins(records: Sequence[Mapping[str, Any]]) -> list[float]:
    """Of each pair, the score of the chosen response less that of the rejected."""
    return [record["scores"][0] - record["scores"][1] for record in records]
