"""Methods of dataclasses whose code the parent of warm workers has kept."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from pipeline.code import shelf
from pipeline.worker.libraries.known_methods import methods_known

METHODS = ("__init__", "__repr__", "__eq__", "__lt__", "__hash__", "__setattr__", "__delattr__")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shelf, "_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The texts that are compiled because nothing is kept of them."""
    texts = list[Any]()

    def compiling(text: Any, *how: Any, **more: Any) -> CodeType:
        texts.append(text)
        return compile(text, *how, **more)

    monkeypatch.setattr("pipeline.worker.libraries.known_methods.compile", compiling, raising=False)
    return texts


def point(default: int = 2) -> type:
    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        x: int
        y: int = default
        names: list[str] = dataclasses.field(default_factory=list, compare=False)

    return Point


def known(define: Callable[[], type], *packages: str) -> type:
    with methods_known(packages or ("torch",)):
        return define()


def code_of(kind: Any) -> list[CodeType]:
    return [vars(kind)[name].__code__ for name in METHODS]


def shared(one: Any, other: Any) -> list[bool]:
    return [a is b for a, b in zip(code_of(one), code_of(other), strict=True)]


def test_the_methods_are_those_of_a_plain_dataclass(compilations: list[Any]) -> None:
    plain, first, second = point(), known(point), known(point)
    assert code_of(plain) == code_of(first) == code_of(second)
    for one, other in zip(code_of(plain), code_of(second), strict=True):
        assert (one.co_filename, one.co_firstlineno) == (other.co_filename, other.co_firstlineno)
    assert repr(second(1)).endswith("Point(x=1, y=2, names=[])")
    assert second(1) == second(1, names=["one"]) < second(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        second(1).x = 3
    assert second(1).names is not second(1).names


def test_a_text_is_compiled_once(compilations: list[Any]) -> None:
    known(point)
    assert compilations
    compilations.clear()
    known(point)
    assert compilations == []
    assert known(lambda: point(default=5))(1).y == 5  # the same text, with other names in it
    assert compilations == []
    known(lambda: dataclasses.make_dataclass("Line", ["start", "end"]))
    assert any("start" in text for text in compilations)


def test_what_is_kept_is_that_of_the_packages_of_the_last_import(
    compilations: list[Any], cache: Path
) -> None:
    known(point)
    known(lambda: dataclasses.make_dataclass("Line", ["start", "end"]), "numpy")
    compilations.clear()
    known(point)
    assert compilations == []
    for entry in cache.rglob("*.json"):
        entry.write_text("damaged")
    known(point)
    assert compilations


def test_dataclasses_is_left_as_it_was() -> None:
    before = dict(vars(dataclasses))
    known(point)
    with pytest.raises(ZeroDivisionError), methods_known(["torch"]):
        _ = 1 / 0
    assert vars(dataclasses) == before


def test_classes_of_equal_texts_have_code_of_their_own() -> None:
    """As in a fresh interpreter: torch.compile and tracers tell functions apart by their code."""
    plain = shared(point(), point())  # such as what keeps __repr__ from recursion
    for _ in range(2):
        with methods_known(["torch"]):
            one, other = point(), point()
        assert shared(one, other) == plain
