"""Marked code does what the author wrote, and says which functions ran."""

import ast
import contextlib
import inspect
import linecache
import os
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from pipeline.base import user_cache
from pipeline.observed import function_marks
from pipeline.observed.marked_code import compiled
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.observed.snapshot import Snapshot

SOURCE = '''\
"""Of the module."""

from __future__ import annotations

import asyncio
import functools


def plain(x):
    """Of plain."""
    return x + 1


def documented():
    """Of documented, and no more."""


def counting(n):
    total = 0
    for number in range(n):
        total += number
        yield total


async def waiting():
    await asyncio.sleep(0)
    return "waited"


@functools.lru_cache
def decorated(x):
    def inner(y):
        return x * y

    return inner(2)


class Shape:
    """Of Shape."""

    sides: int = 4

    def area(self):
        return self.__secret() + self.sides

    @property
    def name(self):
        return "shape"

    def __secret(self):
        return 0

    class Inner:
        def deep(self):
            return "deep"


if True:

    def chosen():
        global STATE
        STATE = "set"
        return STATE


def unused():
    return None


def failing():
    x = 1; raise ValueError(
        x
    )
'''


@pytest.fixture
def observation(tmp_path: Path) -> Iterator[Observation]:
    begun = Observation.begin(Rules.of("app", [str(tmp_path)], []))
    yield begun
    begun.forget()


def imported(name: str, file: Path) -> ModuleType:
    """As the import system does it."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def marked(observation: Observation, tmp_path: Path) -> Iterator[ModuleType]:
    (file := tmp_path / "marked.py").write_text(SOURCE)
    Snapshot(observation).install()
    yield imported("marked", file)
    Snapshot.uninstall()
    linecache.cache.pop(str(file), None)


def ran(observation: Observation) -> set[str]:
    """The units that ran of the module that was loaded last."""
    import json

    *before, line = Path(observation.modules).read_text().splitlines(keepends=True)
    units = json.loads(line)[3]
    marks = observation.marks[len("".join(before)) :]
    return {unit for unit, mark in zip(units, marks, strict=False) if mark}


def test_the_functions_that_ran_are_known(marked: ModuleType, observation: Observation) -> None:
    assert ran(observation) == set()
    assert marked.plain(1) == 2
    assert list(marked.counting(3)) == [0, 1, 3]
    assert marked.asyncio.run(marked.waiting()) == "waited"
    assert marked.decorated(3) == 6
    assert marked.chosen() == "set"
    assert marked.documented() is None
    expected = {"plain", "counting", "waiting", "decorated", "chosen", "documented"}
    assert ran(observation) == expected
    assert marked.Shape().area() == 4
    assert ran(observation) == expected | {"Shape.area", "Shape.__secret"}


def test_a_marked_module_shows_nothing_new(marked: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(SOURCE)
    Snapshot.uninstall()
    plain = imported("plain", tmp_path / "plain.py")
    assert vars(marked).keys() == vars(plain).keys()
    assert (marked.__doc__, marked.plain.__doc__) == ("Of the module.", "Of plain.")
    assert marked.documented.__doc__ == plain.documented.__doc__
    assert marked.Shape.__doc__ == "Of Shape."
    assert inspect.isgeneratorfunction(marked.counting)
    assert inspect.iscoroutinefunction(marked.waiting)
    for name in ("plain", "documented", "counting", "waiting", "chosen", "failing"):
        one, other = getattr(marked, name), getattr(plain, name)
        assert inspect.getsource(one) == inspect.getsource(other)
        assert inspect.signature(one) == inspect.signature(other)
        assert one.__code__.co_firstlineno == other.__code__.co_firstlineno
        assert one.__code__.co_varnames == other.__code__.co_varnames


def test_a_traceback_names_the_lines_that_were_written(marked: ModuleType) -> None:
    try:
        marked.failing()
    except ValueError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        assert frame.line == "x = 1; raise ValueError("
        assert SOURCE.splitlines()[(frame.lineno or 0) - 1] == "    x = 1; raise ValueError("


def test_source_that_is_edited_later_is_shown_as_it_runs(
    marked: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "marked.py").write_text("# nothing left\n")
    linecache.checkcache()
    assert "return x + 1" in inspect.getsource(marked.plain)


def test_code_is_compiled_once_for_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("marked.py", "copy.py"):
        (tmp_path / name).write_text("# mine\n" + SOURCE)
    (first := tmp_path / "first.py").write_text("def other():\n    return 1\n")

    def parts(code: CodeType) -> list[object]:
        """All of it except the names and numbers of marks."""
        inner = [
            part for const in code.co_consts if isinstance(const, CodeType) for part in parts(const)
        ]
        return [code.co_code, code.co_varnames, code.co_linetable, code.co_qualname, *inner]

    seen = []
    for number, file in enumerate(map(tmp_path.joinpath, ("marked.py", "copy.py"))):
        observation = Observation.begin(Rules.of("app", [str(tmp_path)], []))
        Snapshot(observation).install()
        if number:  # marks have other numbers
            imported("first", first)
            monkeypatch.setattr(ast, "parse", lambda *_: pytest.fail("it was compiled again"))
        module = imported("marked", file)
        seen.append([parts(f.__code__) for f in (module.plain, module.counting, module.failing)])
        Snapshot.uninstall()
        monkeypatch.undo()
        assert ran(observation) == set()
        assert (module.plain(1), list(module.counting(3))) == (2, [0, 1, 3])
        assert ran(observation) == {"plain", "counting"}
        assert {f.__code__.co_filename for f in (module.plain, module.Shape.area)} == {str(file)}
        observation.forget()
    assert seen[0] == seen[1]


def test_an_edited_file_is_compiled_again_whatever_its_size_and_time(tmp_path: Path) -> None:
    (file := tmp_path / "edited.py").write_text("def value():\n    return 1\n")
    times = file.stat()

    def value() -> int:
        observation = Observation.begin(Rules.of("app", [str(tmp_path)], []))
        Snapshot(observation).install()
        try:
            return imported("edited", file).value()
        finally:
            Snapshot.uninstall()
            observation.forget()

    assert [value(), value()] == [1, 1]
    file.write_text("def value():\n    return 2\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [value(), value()] == [2, 2]


def test_damaged_and_foreign_code_in_the_cache_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "entry.json"
    monkeypatch.setattr(user_cache, "place", lambda kind, about: place)
    loader = SourceFileLoader("app", "app.py")
    code = compiled("app.py", b"def f():\n    pass\n", loader)
    for value in ([["f"], "no code"], ["f"], None, [["f"], ""]):
        user_cache.save(place, value)
        assert compiled("app.py", b"def f():\n    pass\n", loader) == code
    place.write_bytes(place.read_bytes()[:-9])
    assert compiled("app.py", b"def f():\n    pass\n", loader) == code


def test_no_constant_of_a_module_is_taken_for_the_number_of_a_mark() -> None:
    loader = SourceFileLoader("app", "app.py")
    [mark] = {
        constant
        for code in compiled("app.py", b"def f():\n    pass\n", loader)._code.co_consts
        if isinstance(code, CodeType)
        for constant in code.co_consts
        if isinstance(constant, bytes)
    }
    source = f"def f():\n    return {mark!r}\n".encode()
    names: dict[str, Any] = {"mark": [].append}
    exec(compiled("app.py", source, loader).placed("app.py", "mark", 7), names)
    assert names["f"]() == mark


def test_code_for_a_compiler_of_byte_code_is_left_alone() -> None:
    def is_left_alone(text: str) -> bool:
        return function_marks.is_for_a_compiler(ast.parse(text), text.encode())

    assert is_left_alone("from numba import njit\n@njit\ndef f(x):\n    return x\n")
    assert is_left_alone(
        "try:\n    import numba.cuda as cuda\nexcept ImportError:\n    cuda = None"
    )
    assert not is_left_alone("# as numba does\nimport numpy\n")


def test_marked_code_compiles_with_torch(observation: Observation, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    (file := tmp_path / "compiled.py").write_text(
        "def inner(x):\n    return x.sin()\n\ndef outer(x):\n    return inner(x) + 1\n"
    )
    Snapshot(observation).install()
    module = imported("compiled", file)
    Snapshot.uninstall()
    compiled = torch.compile(module.outer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))
    assert ran(observation) == {"inner", "outer"}, "tracing a function runs it"


# --- which paths count ---------------------------------------------------------------------------


def test_the_longer_prefix_says_whether_a_path_counts() -> None:
    rules = Rules.of("app", ["/tmp/project"], ["/tmp/project/store", "/data/input.txt"])
    assert rules.counts("/tmp/project/prompts/a.txt")
    assert rules.counts("/data/other.txt")
    assert rules.counts("/tmp/project/storeroom/a.txt")
    assert not rules.counts("/tmp/project/store/temper.json")
    assert not rules.counts("/tmp/project/__pycache__/x.pyc")
    assert not rules.counts("/tmp/elsewhere.txt")
    assert not rules.counts("/data/input.txt")
    assert not rules.counts(str(Path("~/.cache/model.bin").expanduser()))
    assert not rules.counts(pytest.__file__)


def test_an_observation_that_is_over_holds_nothing_open(tmp_path: Path) -> None:
    def opened() -> set[str]:
        """The files; what threads of other tests do with sockets is not ours."""
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing itself
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        return {path for path in found if path.startswith("/") and not path.startswith("/proc/")}

    before = opened()
    for _ in range(3):
        begun = Observation.begin(Rules.of("app", [str(tmp_path)], []))
        Snapshot(begun).install()
        Snapshot.uninstall()
        begun.forget()
        assert not Path(begun.folder).exists()
        del begun
    assert opened() <= before
