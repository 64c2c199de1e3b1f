"""What a run reports: progress while it works, and a log of one JSON object an optimiser step.

Nothing in the log depends on the clock or the machine's name, so equal runs write equal bytes. What
does (tokens per second, memory) is for whoever watches, and goes into progress alone.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.shared.execution_detail import execution_detail

StepMetrics = dict[str, float | int]


def sum_shares(shares: Mapping[str, Tensor]) -> dict[str, float]:
    """A batch's values from the shares [n] that its groups have in them.

    The sums are exact before they are rounded (Shewchuk 1997), so the forwards that the groups came
    from do not show in them.
    """
    return {name: math.fsum(column.tolist()) for name, column in shares.items()}


def write_metrics(path: Path, log: Iterable[StepMetrics]) -> None:
    """Writes a metrics.jsonl; floats keep all their digits."""
    write_json_lines(path, log)


def read_metrics(path: Path) -> list[StepMetrics]:
    """The steps of a metrics.jsonl."""
    return read_json_lines(path)


def summarise(log: list[StepMetrics]) -> dict[str, Any]:
    """A run in short: ``steps``, ``tokens``, and the ``first`` and ``final`` step's curves."""
    curves = [name for name in log[-1] if name == "loss" or "/" in name]
    return {
        "steps": log[-1]["step"],
        "tokens": log[-1]["num_tokens"],
        "first": {name: log[0][name] for name in curves if name in log[0]},
        "final": {name: log[-1][name] for name in curves},
    }


@execution_detail
def first_and_final(loss: str, summary: Mapping[str, Any]) -> str:
    """What `summarise` gave of a run with this loss, as a Markdown table of the first step beside
    the last: the ``summary.md`` of a trained model, for people.

    No step reads it, and one with an old heading is still right, so an edit of how it looks trains
    nothing again.
    """
    lines = [
        f"### {loss}, first and last step",
        "",
        f"| | step 1 | step {summary['steps']} |",
        "|---|---:|---:|",
    ]
    for name, value in summary["first"].items():
        if name in summary["final"]:
            lines.append(f"| {name} | {value:.6f} | {summary['final'][name]:.6f} |")
    return "\n".join(lines) + "\n"
