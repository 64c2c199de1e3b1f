"""The log of a run: one JSON object for each optimiser step.

The log contains nothing that depends on the clock or the machine, so equal runs write equal bytes.
Measurements such as tokens per second and memory are only reported as progress.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from steps.shared.execution_detail import execution_detail

StepMetrics = dict[str, float | int]


def sum_shares(shares: Mapping[str, Tensor]) -> dict[str, float]:
    """A batch's values, as sums of the shares [n] of its groups.

    The sums are computed exactly and then rounded once (Shewchuk 1997), so they do not depend on
    the order of the groups.
    """
    return {name: math.fsum(column.tolist()) for name, column in shares.items()}


def summarise(log: list[StepMetrics]) -> dict[str, Any]:
    """A summary of a run: ``steps``, ``tokens``, and the metrics of its ``first`` and ``final``
    step."""
    curves = [n for n in log[-1] if n in ("loss", "mean_token_accuracy") or "/" in n]
    return {
        "steps": log[-1]["step"],
        "tokens": log[-1]["num_tokens"],
        "first": {name: log[0][name] for name in curves if name in log[0]},
        "final": {name: log[-1][name] for name in curves},
    }


@execution_detail
def first_and_final(loss: str, summary: Mapping[str, Any]) -> str:
    """The ``summary.md`` of a trained model: the result of `summarise` as a Markdown table.

    No step reads it, and a summary with an old heading stays correct. So an edit of this function
    does not rerun training.
    """
    columns = {"step 1": summary["first"], f"step {summary['steps']}": summary["final"]}
    title = "the only step" if len(columns) == 1 else "first and last step"
    return side_by_side(f"{loss}, {title}", columns)


@execution_detail
def side_by_side(title: str, columns: Mapping[str, Mapping[str, float]]) -> str:
    """Metrics as a Markdown table with one column for each entry of `columns`. A row is a metric
    that all columns have."""
    heading = "".join(f" {name} |" for name in columns)
    lines = [f"### {title}", "", f"| |{heading}", "|---|" + "---:|" * len(columns)]
    first, *others = columns.values()
    for name in first:
        if all(name in other for other in others):
            rounded = (round(column[name], 6) + 0.0 for column in columns.values())  # no minus zero
            values = "".join(f" {value:.6f} |" for value in rounded)
            lines.append(f"| {name} |{values}")
    return "\n".join(lines) + "\n"
