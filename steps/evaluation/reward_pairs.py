"""A reward model's accuracy and calibration on held-out pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steps.data.rows.completions import are_numbers, require_once
from steps.evaluation.calibration import calibration_error
from steps.evaluation.intervals import mean, proportion
from steps.evaluation.length_control import length_controlled


def require_pairs(records: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Raise ValueError, which names the file and the row, unless each record has its pair's two
    scores and numbers of tokens, and each pair is there once."""
    for number, record in enumerate(records, 1):
        where = f"{file}: record {number}, row {record.get('row')!r},"
        if not {"row", "pair_id"} <= record.keys():
            raise ValueError(f"{where} is no pair; give its row and pair_id, or leave it out")
        for name in ("scores", "tokens"):
            if not are_numbers(found := record.get(name), 2):
                raise ValueError(
                    f"{where} has the {name} {found!r:.80}; give a finite number for each of its "
                    "two responses, the chosen one first, or leave it out"
                )
    require_once(records, file, "row", "pair_id")


def pair_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Metrics with 95 % intervals, from records with the ``scores`` and ``tokens`` of both
    responses, the chosen one first:

    - ``pairs/accuracy``: the share of pairs in which the chosen response has the higher score; a
      tie counts as wrong. ``pairs/accuracy_at_equal_length``: see `length_control`.
    - ``pairs/margin``: the mean difference of scores. ``pairs/loss``: the mean of −log σ(margin).
    - ``pairs/calibration_error``: see `calibration`.
    - ``pairs``: the number of pairs, without an interval.
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
    """For each pair, the score of the chosen response minus that of the rejected one."""
    return [record["scores"][0] - record["scores"][1] for record in records]
