"""Kinds: an edge that cannot work is refused when the DAG is built."""

from dataclasses import dataclass
from typing import Any

import pytest

from pipeline import Artifact, Output, TemperError, step


class Model(Artifact):
    """A model."""


class Adapter(Model):
    """A model of a special kind."""


class Rows(Artifact):
    """Rows."""


class Task(Artifact):
    """Parts of different kinds."""

    parts = {"train": Rows, "base": Model}  # noqa: RUF012


class Splits(Artifact):
    """Parts of one kind, whatever they are called."""

    parts = Rows


@dataclass(frozen=True)
class Mixture:
    rows: Rows
    weight: float = 1.0


@step(version="1", makes=Model)
def make_model(out: Output) -> None: ...


@step(version="1", makes=Adapter)
def make_adapter(out: Output) -> None: ...


@step(version="1", makes=Task)
def make_task(out: Output) -> None: ...


@step(version="1", makes=Splits)
def make_splits(out: Output) -> None: ...


@step(version="1")
def make_anything(out: Output) -> None: ...


@step(version="1", makes=Model)
def train(out: Output, rows: Rows, init: Model | None = None, epochs: int = 1) -> None: ...


@step(version="1")
def merge(out: Output, models: list[Model], weights: dict[str, Rows] | None = None) -> None: ...


@step(version="1")
def mix(out: Output, mixtures: tuple[Mixture, ...]) -> None: ...


@step(version="1")
def collect(out: Output, things: Any, terms: list = [], any_artifact: Artifact | None = None):  # noqa: B006
    ...


def test_what_fits_is_taken() -> None:
    train(make_task()["train"], make_task()["base"])
    train(make_splits()["whatever"], init=make_adapter())  # an Adapter is a Model
    train(make_anything(), init=None)  # a step that does not say what it makes may fit
    merge([make_model(), make_adapter()], weights={"a": make_splits()["a"]})
    mix((Mixture(make_splits()["a"]),))  # type: ignore[arg-type]
    collect(make_model(), [make_task(), 3], make_splits())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: train(make_model()),
            r"train\(rows\) takes Rows, and was given make_model, .* a M",
        ),
        (lambda: train(make_task()["base"]), r"rows\) takes Rows, .* make_task\['base'\], .*Model"),
        (lambda: train(make_task()), r"train\(rows\) takes Rows.* is a Task"),
        (lambda: train(make_splits()["a"], init=make_splits()["b"]), r"init\) takes Model or None"),
        (lambda: merge([make_model(), make_task()["train"]]), r"merge\(models\)\[1\] takes Model"),
        (lambda: merge([], weights={"x": make_model()}), r"merge\(weights\)\['x'\] takes Rows"),
        (lambda: mix((Mixture(make_model()),)), r"mix\(mixtures\)\[0\].rows takes Rows"),  # type: ignore[arg-type]
        (lambda: train("rows.jsonl"), r"takes Rows, the output of a step, .*'rows.jsonl'; adopt"),
        (lambda: train(None), r"train\(rows\) takes Rows, the output of a step"),
        (lambda: train(make_splits()["a"], epochs=make_model()), r"epochs\) takes int, .* Model"),
    ],
)
def test_what_does_not_fit_is_refused_naming_step_parameter_expected_and_given(
    build: Any, message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        build()


def test_a_part_that_the_kind_does_not_have_is_refused_when_the_dag_is_built() -> None:
    with pytest.raises(TemperError, match=r"make_task makes Task, .* no part 'tset': base, train"):
        make_task()["tset"]
