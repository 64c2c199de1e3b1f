"""Sweeps as a user writes and reads them."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from toy_steps import Times, journal_lines, multiply, only_train

from pipeline import Step, Store, TemperError, run
from pipeline.dag.grid import grid
from pipeline.plan.planning import topological
from pipeline.show.results import compare
from pipeline.store.manifest import Manifest
from steps.training.config import DpoConfig, OptimizerConfig

pytestmark = pytest.mark.usefixtures("workers_here")


def test_a_grid_is_every_combination_by_name_the_last_axis_fastest() -> None:
    base = DpoConfig(batch_size=16)
    variants = grid(base, {"optimizer.learning_rate": [1e-6, 5e-6]}, batch_size=[8, 4])
    assert list(variants.items()) == [
        (f"learning_rate={rate} batch_size={size}",
         replace(base, batch_size=size, optimizer=OptimizerConfig(learning_rate=rate)))
        for rate in (1e-6, 5e-6)
        for size in (8, 4)
    ]  # fmt: skip
    assert next(iter(variants)) == "learning_rate=1e-06 batch_size=8"
    assert base == DpoConfig(batch_size=16)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"loss.betta": [0.1]}, "DpoConfig has no field 'loss.betta'; did you mean loss.beta"),
        ({"optimizer.learn_rate": [0.1]}, "did you mean optimizer.learning_rate"),
        ({"optimizer.schedule.name": ["x"]}, "has no field 'optimizer.schedule.name'"),
        ({"loss.beta": 0.1}, "beta=0.1; give a list of values"),
        ({"optimizer.schedule": "cosine"}, "give a list of values"),
        ({"loss.beta": []}, "give a list of values"),
        ({"loss.beta": {0.1, 0.2}}, "give a list of values"),
        ({"loss.beta": [0.1, 0.5, 0.1]}, "beta is to be 0.1 more than once"),
        ({"loss.beta": [0.1, -1]}, "Dpo refuses beta=-1: beta must be above 0"),
        ({"optimizer.learning_rate": [-1]}, "OptimizerConfig refuses learning_rate=-1"),
        ({"optimizer.learning_rate": [1e-6], "optimizer": [OptimizerConfig()]}, "lies within"),
    ],
)
def test_a_mistake_in_a_grid_is_refused_by_name(axes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(TemperError, match=message):
        grid(DpoConfig(), axes)


def test_a_grid_needs_a_config_and_each_field_once() -> None:
    with pytest.raises(TemperError, match="is no config dataclass"):
        grid({"epochs": 0.1}, epochs=[0.1])
    with pytest.raises(TemperError, match="epochs is given twice"):
        grid(DpoConfig(), {"epochs": [0.1]}, epochs=[0.2])


def test_variants_share_the_steps_that_do_not_differ(
    store: Store, tmp_path: Path, console: Console
) -> None:
    journal = str(tmp_path / "journal.txt")

    def experiment(config: Times) -> Step:
        return multiply(only_train(journal)["train"], config, journal)

    roots = {
        name: experiment(c) for name, c in grid(Times(), factor=[2, 3], workers=[1, 8]).items()
    }
    assert len(roots) == 4
    # workers is an execution detail: two products, of one `only_train`
    assert [step.name for step in topological(roots.values())].count("multiply") == 2
    made = run(roots, store, console=console)
    assert {name: m.metrics["largest"] for name, m in made.items()} == {
        "factor=2 workers=1": 6, "factor=2 workers=8": 6,
        "factor=3 workers=1": 9, "factor=3 workers=8": 9,
    }  # fmt: skip
    assert journal_lines(journal) == ["multiply", "multiply"]


# --- results side by side ----------------------------------------------------------------------


def result(**metrics: Any) -> Manifest:
    return Manifest(
        step="evaluate", key="", attempt="", digest="", recipe={}, inputs=(), files={},
        metrics=metrics, seconds=0.0,
    )  # fmt: skip


RESULTS = {
    "before": result(loss=0.693147, margin=0, pairs=24, note="text"),
    "beta=0.1": result(
        loss=0.25, margin={"value": 0.52, "low": 0.4, "high": 0.6123}, pairs=24, extra=True
    ),
}


def printed(comparison: RenderableType, width: int = 120) -> list[str]:
    """The lines that a terminal of this width shows."""
    console = Console(file=io.StringIO(), width=width)
    console.print(comparison)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def shown(comparison: RenderableType, width: int = 120) -> list[list[str]]:
    """The cells of every line with cells."""
    lines = printed(comparison, width)
    bars = str.maketrans("┃", "│")
    return [
        [cell.strip() for cell in line.translate(bars).strip("│").split("│")]
        for line in lines
        if line.translate(bars).startswith("│")
    ]


def test_results_are_rows_and_intervals_keep_their_ends() -> None:
    heading, before, after = shown(compare(RESULTS))
    assert heading == ["", "loss", "margin", "extra"]
    assert before == ["before", "0.6931", "0", "–"]
    assert after == ["beta=0.1", "0.25", "0.52 (0.4 – 0.612)", "True"]
