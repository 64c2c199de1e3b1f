"""The log of a run: one JSON object for each optimiser step; and on request the values of rows.

The log contains nothing that depends on the clock or the machine, so equal runs write equal bytes.
Measurements such as tokens per second and memory are only reported as progress.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from steps.data.rows.parquet import write_rows
from steps.shared.execution_detail import execution_detail

StepMetrics = dict[str, float | int]


def sum_shares(shares: Mapping[str, Tensor]) -> dict[str, float]:
    """A batch's values, as sums of the shares [n] of its groups.

    The sums are computed exactly and then rounded once (Shewchuk 1997), so they do not depend on
    the order of the groups.
    """
    return {name: math.fsum(column.tolist()) for name, column in shares.items()}


class RowLog:
    """What each row of a run was worth in each step; :meth:`write` says what it holds.

    Args:
        known: `state` of the run that is gone on from.
    """

    def __init__(self, known: Mapping[str, Tensor]) -> None:
        found = {n.removeprefix(ROWS): t for n, t in known.items() if n.startswith(ROWS)}
        self._values = {name: [values] for name, values in found.items()}

    def add(self, losses: Tensor, metrics: Mapping[str, Tensor], logps: Tensor) -> None:
        """Take a step's shares of the loss and of metrics, [n] each, and logps [n, k]."""
        values = {name: share * len(share) for name, share in {"loss": losses, **metrics}.items()}
        if logps.shape[1] == 1:
            values["logps"] = logps[:, 0]
        before = sum(map(len, self._values.get("loss", ())))
        for name in {**self._values, **values}:  # a step may lack some, as the first has no history
            parts = self._values.setdefault(name, [torch.full((before,), math.nan)])
            parts.append(values.get(name, torch.full_like(losses, math.nan)))

    @property
    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must bring along."""
        return {f"{ROWS}{name}": torch.cat(parts) for name, parts in self._values.items()}

    def write(self, file: Path, rows: Sequence[tuple[int, str, int]]) -> None:
        """Write Parquet with `step`, `row` and `tokens` as given (1-based step, row id, scored
        tokens); `loss` and the metrics of the log by their names, each the row's share of the
        batch's value times the rows of the batch (NaN in a step without it); and for single
        responses `logps`."""
        columns = {name: torch.cat(self._values[name]).tolist() for name in sorted(self._values)}
        schema = pa.schema(
            [("step", pa.int32()), ("row", pa.string()), ("tokens", pa.int32())]
            + [(name, pa.float64()) for name in columns]
        )
        given = zip(rows, *columns.values(), strict=True)
        names = schema.names
        write_rows(file, schema, (dict(zip(names, (*row, *v), strict=True)) for row, *v in given))


ROWS = "rows/"
"""How the names of values of rows begin in a checkpoint."""


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
