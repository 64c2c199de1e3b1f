"""``select_model``: of several models the one with the best result, such as a snapshot of a run."""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pipeline import Artifact, Metrics, Output, Step, TemperError, step
from steps.data.rows.jsonl import read_json_lines
from steps.kinds import Evaluation, Model, Scores
from steps.models.config import ADAPTED


@step(makes=Model)
def select_model(
    out: Output,
    models: dict[str, Model],
    results: dict[str, Artifact],
    metric: str = "exact_match",
    lowest: bool = False,
) -> Metrics:
    """Write a copy of the best model, whole, and ``selection.json`` with the value of each.

    Args:
        results: for each model, by the same names, its :class:`~steps.kinds.Scores`, or an
            :class:`~steps.kinds.Evaluation`, which has more metrics.
        metric: what decides; of equal models the first by name is taken, which of snapshots is the
            earliest.
        lowest: take the lowest value, as of a loss.

    Raises:
        TemperError: models and results have other names, or a result lacks the metric.
    """
    if models.keys() != results.keys() or not models:
        raise TemperError(f"models has {sorted(models)} and results has {sorted(results)}")
    values = {name: _value(name, results[name], metric) for name in models}
    sign = 1 if lowest else -1
    best = min(values, key=lambda name: (sign * values[name], _by_number(name)))
    left_out = shutil.ignore_patterns("step-*", ADAPTED)
    shutil.copytree(models[best].path, out.path, False, left_out, shutil.copyfile, True, True)
    said = {"metric": metric, "chosen": best, "values": values}
    (out.path / "selection.json").write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    return {"chosen": best, metric: values[best]}


def select_snapshot(
    model: Step,
    at: Iterable[int],
    evaluate: Callable[[Any], Step],
    metric: str = "exact_match",
    lowest: bool = False,
) -> Step:
    """The best of a training run's snapshots and its last model.

    Args:
        model: a training step with ``snapshot_every_steps``.
        at: the steps whose snapshots are evaluated.
        evaluate: from a model to its :class:`~steps.kinds.Scores` or
            :class:`~steps.kinds.Evaluation`, on rows that neither training nor the final evaluation
            reads.
    """
    models: dict[str, Any] = {f"step-{number}": model[f"step-{number}"] for number in at}
    models["the last"] = model  # behind the others by name
    return select_model(models, {n: evaluate(m) for n, m in models.items()}, metric, lowest)


def _by_number(name: str) -> list[str]:
    return [part.zfill(20) for part in re.split(r"(\d+)", name)]


def _value(name: str, result: Artifact, metric: str) -> float:
    if isinstance(result, Scores) and metric == "exact_match":
        right = [score["right"] for score in read_json_lines(result / "scores.jsonl")]
        return sum(right) / len(right)
    told: dict[str, Any] = {}
    if isinstance(result, Evaluation) and Path(result / "metrics.json").is_file():
        told = json.loads((result / "metrics.json").read_text("utf-8"))
    value = told.get(metric)
    value = value.get("value") if isinstance(value, dict) else value
    if not isinstance(value, int | float):
        raise TemperError(
            f"the result of {name} has no metric {metric!r}; it has: "
            f"{', '.join(told) or 'exact_match'}"
        )
    return float(value)
