"""What a run reports: progress while it works, and a log of one JSON object an optimiser step.

Nothing in the log depends on the clock or the machine's name, so equal runs write equal bytes.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

StepMetrics = dict[str, float | int]
OnProgress = Callable[[int, int, Mapping[str, float]], None]  # done, total, metrics of the last


def ignore_progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
    """The `OnProgress` of a caller who does not care."""


def write_metrics(path: Path, log: Iterable[StepMetrics]) -> None:
    """Writes a metrics.jsonl; floats keep all their digits."""
    lines = (json.dumps(metrics, allow_nan=False) + "\n" for metrics in log)
    path.write_text("".join(lines), encoding="utf-8")


def read_metrics(path: Path) -> list[StepMetrics]:
    """The steps of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summarise(log: list[StepMetrics]) -> StepMetrics:
    """A run in one row: steps, tokens, first and final value of all that the loss logs."""
    first, final = log[0], log[-1]
    curves = [name for name in final if name == "loss" or "/" in name]
    return {
        "steps": final["step"],
        "tokens": final["num_tokens"],
        **{f"first_{name}": first[name] for name in curves},
        **{f"final_{name}": final[name] for name in curves},
    }
