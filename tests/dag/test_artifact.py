"""Kinds: an edge that cannot work is refused when the DAG is built."""

import enum
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, List, Literal, TypeVar  # noqa: UP035

import pytest

from pipeline import Artifact, File, Output, TemperError, step


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


@dataclass(frozen=True)
class Shape:
    width: int = 1
    dropout: float | None = None
    tied: bool = False
    names: tuple[str, ...] = ()
    mode: Literal["fast", "exact"] = "fast"
    size: int = "auto"  # type: ignore[assignment]


@step(version="1")
def load(out: Output, rows: File) -> None: ...


@step(version="1")
def build(
    out: Output,
    shape: Shape = Shape(),
    shapes: list[Shape] = [],  # noqa: B006
    by_name: dict[str, float] | None = None,
    steps: int = None,  # type: ignore[assignment]  # noqa: RUF013
    anything: Sequence[str] = (),
    some: List = [],  # noqa: B006, UP006
    odd: [int] = 0,  # type: ignore[valid-type]
) -> None: ...


as_any: Any = lambda value: value  # noqa: E731


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (
            lambda: build(Shape(width=as_any("3"))),
            "build(shape).width takes a whole number (int), and was given the text '3'; write 3",
        ),
        (lambda: build(Shape(width=as_any(1e3))), "and was given 1000.0; write 1000"),
        (lambda: load(as_any([{"a": 1}])), "was given a list: write the rows to a file"),
        (lambda: build(as_any(Frozen())), "build(shape) takes Shape, and was given a Frozen"),
        (
            lambda: build(Shape(dropout=as_any("1e-5"))),
            "dropout takes a number (float) or None, and was given the text '1e-5'; write 1e-05",
        ),
        (
            lambda: build(Shape(tied=as_any("false"))),
            "tied takes True or False (bool), and was given the text 'false'; write False",
        ),
        (lambda: build(Shape(tied=as_any(2))), "takes True or False (bool), and was given 2"),
        (
            lambda: build(Shape(names=as_any("en"))),
            "names takes a tuple of texts, and was given the text 'en'; write ('en',)",
        ),
        (lambda: build(Shape(names=as_any((1,)))), "names[0] takes a text (str)"),
        (lambda: build(Shape(mode=as_any("fats"))), "mode takes 'fast' or 'exact', and was"),
        (lambda: build(shapes=[Shape(), Shape(width=as_any([2]))]), "build(shapes)[1].width takes"),
        (lambda: build(by_name=as_any({"a": "b"})), "build(by_name)['a'] takes a number (float)"),
        (lambda: build(some=as_any("a")), "some) takes a list, and was given the text 'a'"),
        (lambda: build(steps=as_any("1e3")), "(int), and was given the text '1e3'; write 1000"),
    ],
)
def test_a_setting_of_another_type_is_refused_naming_step_setting_value_and_type(
    build_it: Any, message: str
) -> None:
    """``tied="false"`` would be true, and ``names="en"`` two names."""
    with pytest.raises(TemperError, match=re.escape(message)):
        build_it()


def test_settings_that_python_takes_as_the_annotated_type_are_taken() -> None:
    build(Shape(dropout=1), steps=3, by_name={"a": 2}, anything=as_any("text"), odd=1)
    build(Shape(names=as_any(["en", "de"]), size=as_any("auto")), steps=as_any(None))
    build(Shape(width=True, dropout=False, tied=as_any(1)), by_name={"a": True})


def test_where_a_default_is_of_another_type_than_annotated_others_of_its_type_are_taken() -> None:
    """As in ``rate: int = 1e-3``: it is the annotation that is wrong."""
    build(Shape(size=as_any("large")))


@functools.wraps(len)  # which has no code
def _parted(config: Any) -> None:
    config.sizes = [int(size) for size in str(config.sizes).strip("[]").split(",")]


class Whole:
    """A descriptor that stores a whole number."""

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return "7" if owner is None else vars(owner)["_rank"]

    def __set__(self, owner: Any, value: str) -> None:
        vars(owner)["_rank"] = int(value)


@dataclass
class Parted:
    sizes: str = "1,2"
    depth: int = 2

    def __post_init__(self) -> None:
        self._take()

    def _take(self) -> None:
        _parted(self)


@dataclass(frozen=True)
class Frozen:
    name: str = "10M"
    depth: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", int(str(self.name).rstrip("M")))


@dataclass
class Described:
    rank: str = Whole()  # type: ignore[assignment]
    depth: int = 2


def _set(config: Any, name: str, value: Any) -> None:
    object.__setattr__(config, name, value)


@dataclass(frozen=True)
class Chosen:
    kind: str = "7"
    depth: int = 2

    def __post_init__(self) -> None:
        _set(self, "kind", int(self.kind))
        if self.depth == 0:
            raise ValueError("depth must be above 0")


NAMED = {"warm": int}


@dataclass(frozen=True)
class Looped:
    warm: str = "3"
    depth: int = 2

    def __post_init__(self) -> None:
        for name, kind in NAMED.items():
            _set(self, name, kind(getattr(self, name)))


@dataclass
class Fixed:
    size: str = "3"
    depth: int = 2

    def __post_init__(self) -> None:
        def fix() -> None:
            tiny_conversions.fix(self)

        fix()


@dataclass
class AnyOf:
    size: str = "3"
    depth: str = "2"

    def __post_init__(self) -> None:
        for field in fields(self):
            setattr(self, field.name, int(getattr(self, field.name)))


def _fix(config: Any) -> None:
    config.size = int(config.size)


tiny_conversions: Any = ModuleType("tiny_conversions")
tiny_conversions.fix = _fix


@step(version="1")
def convert(out: Output, config: Parted | Frozen | Described | Chosen | Looped | Fixed) -> None: ...


@step(version="1")
def convert_all(out: Output, config: AnyOf) -> None: ...


def test_fields_that_are_converted_whatever_they_are_called_are_not_checked() -> None:
    convert_all(AnyOf())


@pytest.mark.parametrize("kind", [Parted, Frozen, Described, Chosen, Looped, Fixed])
def test_a_field_that_the_constructor_converts_is_annotated_as_what_it_is_given(kind: Any) -> None:
    convert(kind())
    with pytest.raises(TemperError, match=r"depth takes a whole number .*; write 3"):
        convert(kind(depth="3"))


class Heat(float, enum.Enum):
    HOT = 1.5


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[int] | list[float], [0.5]),
        (list[int] | dict[str, str], {"a": "b"}),
        (dict[str, int] | dict[str, str], {"a": "b"}),
        (tuple[int, int] | tuple[float, float], (0.5, 0.5)),
        (tuple[int, str] | list[float], [0.5, 2]),
        (list | list[int], ["a"]),
        (type[int] | list[str], ["a"]),
        (Callable[..., int] | dict[str, str], {"a": "b"}),
        (TypeVar("Several") | list[int], ["a"]),
        (list[[int]] | list[str], ["a"]),  # type: ignore[valid-type]
        (tuple[int, str], [1, "a"]),
        (list[tuple[str, float]], [["a", 1]]),
        (tuple[()] | tuple[int, int], ()),
        (Iterable[str], {"a": 1}),
        (Heat, 1.5),
    ],
)
def test_what_an_annotation_allows_is_taken(annotation: Any, value: Any) -> None:
    def given(out: Output, value: Any) -> None: ...

    given.__annotations__["value"] = annotation
    step(version="1")(given)(value=value)


def test_a_part_that_the_kind_does_not_have_is_refused_when_the_dag_is_built() -> None:
    with pytest.raises(TemperError, match=r"make_task makes Task, .* no part 'tset': base, train"):
        make_task()["tset"]
