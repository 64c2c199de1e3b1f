"""Which edits of a project's code reach a step, and which do not.

Every test writes a small package, asks for the closure of a function in it, edits a file, and asks
again. What is compared is the names of the units that differ.
"""

import ast
import importlib
import json
import py_compile
import secrets
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import GOLDEN, REPOSITORY

from pipeline import TemperError
from pipeline.code import Closure, forget, shelf, source
from pipeline.code import closure as closure_of
from pipeline.dag.canonical import hash_json


def closure(function: Callable[..., Any], types: Iterable[type] = ()) -> Closure:
    """That of the source as it is now."""
    forget()
    return closure_of(function, types)


class Project:
    """A package in a folder of its own; ``APP`` in its files is the package's name."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.name = f"app_{secrets.token_hex(6)}"
        self.write("__init__.py", "")

    def path(self, file: str) -> Path:
        return self.folder / self.name / file

    def write(self, file: str, text: str) -> None:
        self.path(file).parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(text).replace("APP", self.name)
        self.path(file).write_text(text, "utf-8")

    def load(self, module: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{module}")

    def closure(self, types: Iterable[str] = ()) -> dict[str, str]:
        """Of ``train`` in ``steps.py``, with the names of units less the package's."""
        steps = self.load("steps")
        found = closure(steps.train, [getattr(steps, name) for name in types]).units
        return {unit.replace(f"{self.name}.", "", 1): digest for unit, digest in found.items()}

    def edit(self, file: str, old: str, new: str, types: Iterable[str] = ()) -> set[str]:
        """The units that an edit changes, adds or takes away; the file is put back after it."""
        source, before = self.path(file).read_text(), self.closure(types)
        assert source.count(old) == 1, f"{old!r} is not once in {file}"
        self.path(file).write_text(source.replace(old, new))
        after = self.closure(types)
        self.path(file).write_text(source)
        return {unit for unit, _ in before.items() ^ after.items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(tmp_path)
    return Project(tmp_path)


# --- what a function calls and reads ---------------------------------------------------------


def test_an_edit_of_a_helper_is_seen_and_an_edit_of_its_neighbour_is_not(project: Project) -> None:
    project.write(
        "steps.py",
        """
        def train(out):
            return helper(2)

        def helper(n):
            return n + 1

        def neighbour(n):
            return n + 5
        """,
    )
    assert set(project.closure()) == {"steps:train", "steps:helper"}
    assert project.edit("steps.py", "n + 1", "n + 2") == {"steps:helper"}
    assert project.edit("steps.py", "helper(2)", "helper(3)") == {"steps:train"}
    assert project.edit("steps.py", "n + 5", "n + 6") == set()


def test_helpers_of_helpers_imported_inside_functions_are_followed(project: Project) -> None:
    project.write(
        "steps.py",
        """
        def train(out):
            def inner():
                from APP.deep.loss import loss as compute
                return compute()
            return inner()
        """,
    )
    project.write(
        "deep/loss.py",
        """
        def loss():
            import APP.deep.mathematics as m
            return m.square(3)

        def unused():
            import APP.deep.other
        """,
    )
    project.write("deep/mathematics.py", "def square(n):\n    return n * n\ndef cube(n): return n")
    assert set(project.closure()) == {
        "steps:train",
        "deep.loss:loss",
        "deep.mathematics:square",
    }
    assert project.edit("deep/mathematics.py", "n * n", "n ** 2") == {"deep.mathematics:square"}
    assert project.edit("deep/mathematics.py", "cube(n): return n", "cube(n): pass") == set()


def test_an_edit_of_a_constant_is_seen(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP.constants import RATE

        def train(out):
            return RATE
        """,
    )
    project.write(
        "constants.py",
        """
        BASE: float = 2.0
        RATE, OTHER = BASE / 4, 1
        UNUSED = 7
        """,
    )
    assert project.edit("constants.py", "2.0", "2") == {"constants:BASE"}
    assert project.edit("constants.py", "/ 4", "/ 5") == {"constants:RATE"}
    assert project.edit("constants.py", "7", "8") == set()


@pytest.mark.parametrize(
    "other", ["1.0", "True", "'1'", "b'1'", "-1", "1j", "None", "[1]", "(1,)", "1e400", "0x11"]
)
def test_constants_of_different_types_or_values_are_told_apart(
    project: Project, other: str
) -> None:
    project.write("steps.py", "def train(out):\n    return 1")
    assert project.edit("steps.py", "return 1", f"return {other}") == {"steps:train"}


def test_what_changes_a_constant_at_the_top_level_belongs_to_it(project: Project) -> None:
    project.write(
        "steps.py",
        """
        TABLE = {}
        NAMES = ["a"]
        OTHER = {}

        def square(n):
            return n * n

        TABLE["square"] = square
        NAMES += ["b"]
        OTHER["x"] = 1
        for number in range(3):
            TABLE[number] = str(number)

        def train(out):
            return TABLE[NAMES[0]]
        """,
    )
    assert project.edit("steps.py", "n * n", "n + n") == {"steps:square"}
    assert project.edit("steps.py", '"b"', '"c"') == {"steps:NAMES"}
    assert project.edit("steps.py", "range(3)", "range(4)") == {"steps:TABLE", "steps:number"}
    assert project.edit("steps.py", '["x"] = 1', '["x"] = 2') == set()


def test_a_block_belongs_to_every_name_bound_in_it(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import sys
        try:
            from APP.fast import power
        except ImportError:
            from APP.slow import power
        if sys.version_info > (3, 0):
            LIMIT = 3
        else:
            LIMIT = 4

        def train(out):
            return power(LIMIT)
        """,
    )
    project.write("fast.py", "def power(n):\n    return n ** 2")
    project.write("slow.py", "def power(n):\n    return n * n")
    assert set(project.closure()) == {
        *("steps:train", "steps:power", "steps:LIMIT"),
        *("fast:power", "slow:power"),
    }
    assert project.edit("steps.py", "LIMIT = 4", "LIMIT = 5") == {"steps:LIMIT"}
    assert project.edit("slow.py", "n * n", "n + n") == {"slow:power"}


def test_an_edit_of_a_method_is_seen_wherever_its_class_is_used(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP.models import Child, Unused

        def train(out):
            return Child().run()
        """,
    )
    project.write(
        "models.py",
        """
        class Base:
            def run(self):
                return scale(1)

        class Child(Base):
            pass

        class Unused(Base):
            value = 3

        def scale(n):
            return n * 10
        """,
    )
    assert project.edit("models.py", "scale(1)", "scale(2)") == {"models:Base"}
    assert project.edit("models.py", "n * 10", "n * 11") == {"models:scale"}
    assert project.edit("models.py", "value = 3", "value = 4") == set()


def test_a_library_whose_name_begins_like_a_known_one_is_another(project: Project) -> None:
    """``json_forms`` may read the hints of a class, which ``json`` does not."""
    project.write(
        "steps.py",
        """
        def train(out):
            from APP.settings import Setting, plain
            return Setting(), plain(1)
        """,
    )
    project.write(
        "settings.py",
        """
        import functools
        from json_forms import form

        @form
        class Setting:
            rate: float = 1

            def named(self) -> str:
                return ""

        @functools.cache
        def plain(n: int):
            return n
        """,
    )
    assert "settings:Setting" in project.edit("settings.py", "-> str", "-> object")
    assert project.edit("settings.py", "n: int", "n: object") == set()


def test_a_class_may_derive_from_another_one_of_its_name(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import enum
        from collections import UserDict as Module
        from json import JSONDecodeError as Failure
        from enum import Enum as Colour

        class Module(Module):
            def size(self):
                return 1

        class Failure(Failure):
            pass

        class Colour(Colour):
            RED = 1

        def train(out):
            if out is None:
                raise Failure("no output", "", 0)
            return Module().size(), Colour.RED
        """,
    )
    assert project.edit("steps.py", "return 1", "return 2") == {"steps:Module"}
    assert project.edit("steps.py", "RED = 1", "RED = 2") == {"steps:Colour"}


def test_an_edit_of_a_decorator_is_seen(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP.wrapping import doubled

        def train(out):
            return helper()

        @doubled
        def helper():
            return 1
        """,
    )
    project.write(
        "wrapping.py",
        """
        import functools

        def doubled(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)
            return wrapper
        """,
    )
    assert project.edit("wrapping.py", "2 *", "3 *") == {"wrapping:doubled"}


def test_a_wrapped_step_function_is_seen_with_its_wrapper(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import functools

        def doubled(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)
            return wrapper

        @doubled
        def train(out):
            return 1
        """,
    )
    assert project.edit("steps.py", "return 1", "return 5") == {"steps:train"}
    assert project.edit("steps.py", "2 *", "3 *") == {"steps:doubled"}


def test_a_closure_made_by_a_factory_at_the_top_level_is_followed(project: Project) -> None:
    project.write(
        "steps.py",
        """
        def make(power):
            def apply(n):
                return n ** power
            return apply

        square = make(2)
        cube = make(3)

        def train(out):
            return square(3)
        """,
    )
    assert project.edit("steps.py", "n ** power", "power ** n") == {"steps:make"}
    assert project.edit("steps.py", "make(2)", "make(4)") == {"steps:square"}
    assert project.edit("steps.py", "make(3)", "make(5)") == set()


def test_recursion_and_import_cycles_come_to_an_end(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP import other

        def train(out, n=3):
            return n and other.down(n - 1)
        """,
    )
    project.write(
        "other.py",
        """
        from APP import steps

        def down(n):
            from APP.other import down as itself
            return steps.train(None, n) + itself(n - 1)
        """,
    )
    assert set(project.closure()) == {"steps:train", "other:down"}
    assert project.edit("other.py", "(n - 1)", "(n - 2)") == {"other:down"}


# --- scopes ----------------------------------------------------------------------------------


def test_a_local_name_that_shadows_a_global_is_no_reference(project: Project) -> None:
    project.write(
        "steps.py",
        """
        def scale(n):
            return n * 10

        def shift(n):
            return n + 10

        class Model:
            def scale(self):
                return shift(1)
            again = scale

        def train(out):
            def scale(n):
                return n
            values = [scale for scale in range(3)]
            return scale(1), lambda scale: scale, values, Model
        """,
    )
    assert set(project.closure()) == {"steps:train", "steps:Model", "steps:shift"}
    assert project.edit("steps.py", "n * 10", "n * 11") == set()


@pytest.mark.parametrize(
    "body",
    [
        "return [helper(n) for n in range(3)]",
        "return lambda: helper(1)",
        "f'{helper(1):>{WIDTH}}'",
        "class Inner:\n        helper = helper\n    return Inner",
        "class Inner:\n        if out:\n            helper = 1\n        x = helper",
        "class Inner:\n        helper = 1\n        def run(self): return helper(1)",
        "helper = 1\n    def inner():\n        global helper\n        return helper(1)",
        "global helper\n    helper += 1",
        "async def inner():\n        async with helper(1): ...\n    return inner",
        "match out:\n        case helper.kind: return 1",
        "global helper\n    helper = helper",
        "def inner(n=helper(1)): ...\n    return inner",
        "return [n for n in helper(1)]",
    ],
)
def test_a_global_read_from_any_nested_scope_is_a_reference(project: Project, body: str) -> None:
    project.write(
        "steps.py",
        f"WIDTH = 3\ndef helper(n):\n    return n + 1\n\n\ndef train(out):\n    {body}\n",
    )
    assert project.edit("steps.py", "n + 1", "n + 2") == {"steps:helper"}


@pytest.mark.parametrize(
    "declared", ["", "nonlocal library; library = None", "from APP import library"]
)
def test_an_imported_name_is_followed_from_the_scope_that_imports_it(
    project: Project, declared: str
) -> None:
    project.write(
        "steps.py",
        f"""
        def train(out):
            from APP import library
            def inner():
                {declared}
                return library.used()
            return inner

        def other():
            library = 3
        """,
    )
    project.write("library.py", "def used():\n    return 1\ndef unused():\n    return 2\n")
    assert project.edit("library.py", "return 1", "return 3") == {"library:used"}
    assert project.edit("library.py", "return 2", "return 3") == set()


# --- what names stand for --------------------------------------------------------------------


def test_only_the_attributes_read_of_a_module_are_followed(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import APP.library as lib
        import APP.other

        def train(out):
            return lib.used(APP.other.used())
        """,
    )
    functions = "def used(*values):\n    return 1\ndef unused(n):\n    return 2\n"
    project.write("library.py", functions)
    project.write("other.py", functions)
    assert set(project.closure()) == {"steps:train", "library:used", "other:used"}
    assert project.edit("library.py", "return 2", "return 3") == set()
    assert project.edit("library.py", "return 1", "return 3") == {"library:used"}
    assert project.edit("other.py", "return 1", "return 3") == {"other:used"}


@pytest.mark.parametrize(
    "use",
    [
        "from APP import library\n    return getattr(library, out)",
        "import importlib\n    return importlib.import_module('APP.library')",
        "import importlib\n    return importlib.import_module('.library', __package__)",
        "from importlib import import_module\n    return import_module('APP.library').anything",
        "import importlib\n    return importlib.import_module(name='APP.library')",
        "return __import__('APP.library')",
        "from APP import library\n    return library.__dict__[out]",
    ],
)
def test_a_module_used_as_a_value_counts_whole(project: Project, use: str) -> None:
    project.write("steps.py", f"def train(out):\n    {use}\n")
    project.write(
        "library.py",
        "from APP.more import offered\nfrom APP.all import *\nONE = 1\ndef two():\n    return 2",
    )
    project.write("all.py", "def starred():\n    return 6")
    project.write("more.py", "def offered():\n    return 3\ndef kept():\n    return 4")
    assert project.edit("all.py", "return 6", "return 5") == {"all:starred"}
    assert project.edit("library.py", "ONE = 1", "ONE = 5") == {"library:ONE"}
    assert project.edit("library.py", "return 2", "return 5") == {"library:two"}
    assert project.edit("more.py", "return 3", "return 5") == {"more:offered"}
    assert project.edit("more.py", "return 4", "return 5") == set()


def test_a_function_that_looks_names_up_counts_its_whole_module(project: Project) -> None:
    project.write(
        "steps.py",
        """
        def train(out):
            return globals()["loss_" + out]

        def loss_dpo():
            return 1
        """,
    )
    assert project.edit("steps.py", "return 1", "return 2") == {"steps:loss_dpo"}


@pytest.mark.parametrize(
    "lookup",
    [
        "eval('loss()')",
        "builtins.eval('loss()')",
        "vars(sys.modules[__name__])[out]",
        "getattr(sys.modules.get(__name__), out)",
        "train.__globals__[out]",
        "sys._getframe().f_globals[out]",
        "TABLE[out]",
    ],
)
@pytest.mark.parametrize("star", ["", "from math import *"])
def test_code_that_may_look_up_any_name_counts_its_whole_module(
    project: Project, star: str, lookup: str
) -> None:
    project.write(
        "steps.py",
        f"""
        import builtins, sys
        {star}

        TABLE = vars()

        def train(out):
            return {lookup}

        def loss():
            return 1
        """,
    )
    assert project.edit("steps.py", "return 1", "return 2") == {"steps:loss"}


@pytest.mark.parametrize("lookup", ["f.__globals__['other']", "sys.modules['APP.library'].other"])
def test_another_module_of_which_any_name_may_be_looked_up_counts_whole(
    project: Project, lookup: str
) -> None:
    project.write(
        "steps.py", f"import sys\nfrom APP.library import f\ndef train(out):\n    return {lookup}()"
    )
    project.write("library.py", "def f(): pass\ndef other():\n    return 1")
    assert project.edit("library.py", "return 1", "return 2") == {"library:other"}


@pytest.mark.parametrize(
    "lookup",
    ["getattr(losses, out)", "vars(losses)[out]", "sys.modules['APP.losses.dpo']"],
)
def test_a_module_that_is_only_loaded_and_may_be_looked_up_counts_whole(
    project: Project, lookup: str
) -> None:
    project.write(
        "steps.py",
        f"""
        import sys
        import APP.library
        from APP import losses

        def train(out):
            return {lookup}.loss()
        """,
    )
    project.write("library.py", "from APP.losses import dpo")
    project.write("losses/__init__.py", "")
    project.write("losses/dpo.py", "def loss():\n    return 1")
    assert project.edit("losses/dpo.py", "return 1", "return 2") == {"losses.dpo:loss"}


def test_a_re_export_through_a_package_is_followed_to_the_definition(project: Project) -> None:
    project.write("steps.py", "from APP.losses import dpo\n\ndef train(out):\n    return dpo()")
    project.write(
        "losses/__init__.py", "from .dpo import loss as dpo\nfrom .ipo import loss as ipo"
    )
    project.write("losses/dpo.py", "def loss():\n    return 1")
    project.write("losses/ipo.py", "def loss():\n    return 2")
    assert set(project.closure()) == {"steps:train", "losses.dpo:loss"}
    assert project.edit("losses/dpo.py", "return 1", "return 3") == {"losses.dpo:loss"}
    assert project.edit("losses/ipo.py", "return 2", "return 3") == set()


def test_a_name_that_comes_to_stand_for_something_else_is_seen(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import math as numbers
        from APP.library import low as first, high as second

        def train(out):
            return first(second(numbers.pi))
        """,
    )
    project.write("library.py", "def low(n):\n    return n\ndef high(n):\n    return -n\n")
    swapped = project.edit(
        "steps.py", "low as first, high as second", "low as second, high as first"
    )
    assert swapped == {"steps:train"}
    assert project.edit("steps.py", "import math", "import cmath") == {"steps:train"}


def test_a_star_import_is_followed(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP.library import *
        from APP.listed import *

        def train(out):
            return used(), other()
        """,
    )
    project.write("library.py", "from APP.more import *\ndef other():\n    return 2")
    project.write("more.py", "def used():\n    return 1\ndef unused():\n    return 3")
    project.write("listed.py", "__all__ = []\ndef other():\n    return 4")
    assert set(project.closure()) == {"steps:train", "more:used", "library:other"}
    assert project.edit("more.py", "return 1", "return 5") == {"more:used"}
    assert project.edit("more.py", "return 3", "return 5") == set()


def test_a_star_import_of_a_module_that_computes_its_list_may_give_any_name(
    project: Project,
) -> None:
    project.write(
        "steps.py",
        "from APP.sure import *\nfrom APP.computed import *\n\ndef train(out):\n    return _f()",
    )
    project.write("sure.py", "__all__ = ['_f']\ndef _f():\n    return 1")
    project.write("computed.py", "__all__ = []\n__all__ += ['_f']\ndef _f():\n    return 1")
    assert project.edit("computed.py", "return 1", "return 2") == {"computed:_f"}
    assert project.edit("computed.py", "['_f']", "[]") == {"computed:__all__"}
    assert project.edit("sure.py", "return 1", "return 2") == {"sure:_f"}


def test_a_star_import_of_a_library_is_told_from_one_of_another(project: Project) -> None:
    project.write("steps.py", "from math import *\ndef train(out):\n    return sqrt(2)")
    assert project.edit("steps.py", "math", "cmath") == {"steps:train"}


def test_a_star_import_imports_the_submodules_it_lists(project: Project) -> None:
    project.write("steps.py", "from APP.deep import *\n\ndef train(out):\n    return 1")
    project.write("deep/__init__.py", "__all__ = ['inner']")
    project.write("deep/inner.py", "print('imported')")
    project.write("deep/other.py", "print('not')")
    assert set(project.closure()) == {"steps:train", "deep.inner:(import)"}


def test_relative_imports_are_followed(project: Project) -> None:
    project.write("steps.py", "def train(out):\n    from .deep.inner import run\n    return run()")
    project.write(
        "deep/inner/__init__.py",
        """
        from . import beside
        from ..outer import scale
        from ...top import shift

        def run():
            return scale(shift(beside.value()))
        """,
    )
    project.write("deep/__init__.py", "")
    project.write("deep/outer.py", "def scale(n):\n    return n * 2")
    project.write("deep/inner/beside.py", "def value():\n    return 1")
    project.write("top.py", "def shift(n):\n    return n + 3")
    assert set(project.closure()) == {
        *("steps:train", "deep.inner:run", "deep.outer:scale"),
        *("deep.inner.beside:value", "top:shift"),
    }


def test_a_namespace_package_is_followed(project: Project) -> None:
    project.path("__init__.py").unlink()
    project.write("steps.py", "from APP.deep import inner\n\ndef train(out):\n    return inner.f()")
    project.write("deep/inner.py", "def f():\n    return 1")
    assert project.edit("deep/inner.py", "return 1", "return 2") == {"deep.inner:f"}


def test_a_module_imported_in_a_block_is_followed_by_the_attributes_read(project: Project) -> None:
    project.write(
        "steps.py",
        """
        try:
            import APP.library as lib
        except ImportError:
            lib = None

        def train(out):
            return lib.used()
        """,
    )
    project.write("library.py", "def used():\n    return 1\ndef unused():\n    return 2\n")
    assert set(project.closure()) == {"steps:train", "steps:lib", "library:used"}


def test_a_module_imported_into_another_scope_counts_whole(project: Project) -> None:
    project.write(
        "steps.py",
        """
        lib = None

        def train(out):
            helper = None
            def load():
                global lib
                nonlocal helper
                import APP.library as lib
                from APP.other import helper
            load()
            return lib.used(), helper()
        """,
    )
    project.write("other.py", "def helper():\n    return 1\n")
    project.write("library.py", "def used():\n    return 1\n")
    assert project.edit("other.py", "return 1", "return 2") == {"other:helper"}
    assert project.edit("library.py", "return 1", "return 2") == {"library:used"}


def test_a_module_level_getattr_answers_for_names_that_are_not_there(project: Project) -> None:
    project.write("steps.py", "from APP.lazy import heavy\n\ndef train(out):\n    return heavy")
    project.write("lazy.py", "def __getattr__(name):\n    return 1")
    assert project.edit("lazy.py", "return 1", "return 2") == {"lazy:__getattr__"}


# --- what importing does ---------------------------------------------------------------------

REGISTRY = """
    LOSSES = {}

    def register(name):
        def add(function):
            LOSSES[name] = function
            return function
        return add

    class Loss:
        made = []

        def __init_subclass__(cls):
            Loss.made.append(cls)

    class Meta(type):
        def __init__(cls, *args):
            LOSSES[cls.__name__] = cls
    """


@pytest.mark.parametrize(
    ("registration", "seen"),
    [
        ("@register('dpo')\ndef dpo():\n    return 1", "losses:(import)"),
        ("def dpo():\n    return 1\nLOSSES.update(dpo=dpo)", "losses:dpo"),
        ("def dpo():\n    return 1\nLOSSES['dpo'] = dpo", "losses:dpo"),
        ("def dpo():\n    return 1\nfor name in 'dpo':\n    LOSSES[name] = dpo", "losses:dpo"),
        ("def dpo():\n    return 1\nLOSSES |= {'dpo': dpo}", "losses:dpo"),
        ("class Dpo(metaclass=Meta):\n    value = 'return 1'", "losses:(import)"),
        (
            "class Base(metaclass=Meta): ...\nclass Dpo(Base):\n    value = 'return 1'",
            "losses:(import)",
        ),
        ("def dpo():\n    return 1\nregistry.LOSSES = {'dpo': dpo}", "losses:dpo"),
        (
            "class Middle(Loss):\n    pass\nclass Dpo(Middle):\n    value = 'return 1'",
            "losses:(import)",
        ),
    ],
)
def test_a_registry_filled_by_a_module_that_is_imported_is_seen(
    project: Project, registration: str, seen: str
) -> None:
    project.write("registry.py", REGISTRY)
    project.write("steps.py", "from APP.registry import LOSSES\ndef train(out):\n    return LOSSES")
    project.write(
        "losses.py",
        "from APP import registry\nfrom APP.registry import LOSSES, Loss, Meta, register\n"
        f"{registration}\ndef unrelated():\n    return 2",
    )
    assert project.edit("losses.py", "return 1", "return 3") == set()
    project.write("steps.py", "import APP.losses\n" + project.path("steps.py").read_text())
    assert project.edit("losses.py", "return 1", "return 3") == {seen}
    assert project.edit("losses.py", "return 2", "return 3") == set()


def test_functions_that_call_each_other_act_if_one_of_them_does(project: Project) -> None:
    """Wherever the circle is entered first."""
    project.write(
        "tables.py",
        """
        TABLE = []

        def put(n):
            TABLE.append(n)

        def even(n):
            odd(n - 1) if n else 0
            put(n)

        def odd(n):
            even(n - 1) if n else 0

        FIRST = even(2)
        SECOND = odd(3)
        """,
    )
    project.write("steps.py", "from APP.tables import TABLE\ndef train(out):\n    return TABLE")
    assert project.edit("tables.py", "even(2)", "even(4)") == {"tables:(import)"}
    assert project.edit("tables.py", "odd(3)", "odd(5)") == {"tables:(import)"}


ACTS = {
    "a method of a table": "_ = TABLE.setdefault('a', 'low')",
    "a method of another module's table": "_ = tables.TABLE.setdefault('a', 'low')",
    "a method of another name for a table": "T = tables.TABLE\n_ = T.setdefault('a', 'low')",
    "a method of an object": "_ = tables.OBJECT.add('low')",
    "a table of a class": "_ = tables.Object.all.append('low')",
    "an annotated assignment": "x: int = TABLE.setdefault('a', 'low')",
    "a comprehension": "_ = [TABLE.setdefault('a', n) for n in ('low',)]",
    "a default": "def q(x=TABLE.setdefault('a', 'low')): pass",
    "a class body": "class P:\n    TABLE.setdefault('a', 'low')",
    "a store in a class body": "class P:\n    TABLE['a'] = 'low'",
    "a default of a method": "class P:\n    def q(self, x=TABLE.setdefault('a', 'low')): pass",
    "a table given to a function": "_ = tables.fill(TABLE, 'low')",
    "a function that sets a global": "_ = tables.init('low')",
    "a function that stores": "_ = tables.put('a')('low')",
    "a function that calls a method of a table": "_ = tables.extend('low')",
    "a class method that stores": "_ = tables.Object.note('low')",
    "a constructor": "_ = tables.Object('low')",
    "a constructor of a base": "_ = tables.Heir('low')",
    "a class that it makes with a base": "class P(tables.Object): ...\n_ = P('low')",
    "a descriptor": "_ = tables.Heir.noted + 'low'",
    "a default that is made anew": "_ = tables.Given('low')",
    "a store through another name": "T = tables.TABLE\nT['a'] = 'low'",
    "a store through a name for a result": "T = tables.table()\nT['a'] = 'low'",
    "a change in place through another name": "T = tables.TABLE\nT |= {'a': 'low'}",
    "a store in a loop": "for T in [tables.TABLE]:\n    T['a'] = 'low'",
}


@pytest.mark.parametrize("how", ACTS)
def test_what_a_definition_or_assignment_does_besides_binding_a_name_is_seen(
    project: Project, how: str
) -> None:
    project.write("steps.py", "import APP.acting, APP.tables\ndef train(out): APP.tables.get()")
    project.write(
        "tables.py",
        """
        from dataclasses import dataclass, field

        TABLE = {}
        STATE = None

        def get():
            return TABLE, STATE, OBJECT

        def table():
            return TABLE

        def fill(table, n):
            table["a"] = n

        def init(n):
            global STATE
            STATE = n

        def put(name):
            def add(n):
                TABLE[name] = n
            return add

        def extend(n):
            TABLE.update(a=n)

        class Object:
            all = []

            def __init__(self, n=0):
                TABLE["n"] = n

            def add(self, n):
                self.n = n

            @classmethod
            def note(cls, n):
                cls.last = n

        class Noted:
            def __get__(self, owned, owner):
                return TABLE.setdefault("a", "")

        class Heir(Object):
            noted = Noted()

        @dataclass
        class Given:
            name: str
            objects: Object = field(default_factory=Object)

        OBJECT = Object()
        """,
    )
    project.write("acting.py", f"from APP import tables\nfrom APP.tables import TABLE\n{ACTS[how]}")
    assert "acting:(import)" in project.edit("acting.py", "low", "high")


@pytest.mark.parametrize(
    "statement",
    [
        "T = TABLE.get('a', 1)",
        "T = sorted(TABLE, key=1)",
        "T = {}\nT['a'] = 1",
        "T = Path('a').joinpath('b')",
        "P = Path()\nT = P.joinpath('b')",
        "T = pure(1)",
        "T = pure(TABLE)",
        "T = lambda: TABLE.setdefault('a', 1)",
        "class P:\n    own = {}\n    own['a'] = 1",
        "def q():\n    TABLE['a'] = 1",
        "@dataclass\nclass P:\n    a: list = field(default_factory=list)\nT = P()",
        "class P: ...\nclass Q(P): ...\nT = Q()",
        "def q():\n    own = []\n    own.append(1)\n    return own\nT = q()",
    ],
)
def test_what_only_binds_a_name_that_nobody_reads_is_not_seen(
    project: Project, statement: str
) -> None:
    project.write("steps.py", "import APP.quiet\ndef train(out): pass")
    project.write(
        "quiet.py",
        "from dataclasses import dataclass, field\nfrom pathlib import Path\nTABLE = {}\n"
        "def pure(n):\n    made = {}\n    made['n'] = n\n    return made\n" + statement,
    )
    assert set(project.closure()) == {"steps:train"}


def test_a_subclass_is_seen_where_code_asks_for_the_subclasses(project: Project) -> None:
    project.write("steps.py", "import APP.checks\nfrom APP.base import run\ndef train(o): run()")
    project.write(
        "base.py",
        "class Check: ...\ndef run():\n    return [c().f() for c in Check.__subclasses__()]",
    )
    project.write(
        "checks.py", "from APP.base import Check\nclass Positive(Check):\n    def f(self): return 1"
    )
    assert project.edit("checks.py", "return 1", "return 2") == {"checks:(import)"}
    assert project.edit("base.py", "c().f() for c in Check.__subclasses__()", "") >= {
        "base:run",
        "checks:(import)",
    }


@pytest.mark.parametrize(
    "reads", ["B = A * 2", "def B(n=A): pass", "class B:\n    n = A", "B = read()", "B = [A]"]
)
@pytest.mark.parametrize("second", ["A = 8", "A += 4", "set_up()"])
def test_where_a_name_is_read_between_the_statements_that_bind_it_is_seen(
    project: Project, reads: str, second: str
) -> None:
    functions = "def read(): return A\ndef set_up():\n    global A\n    A = 8"
    project.write(
        "steps.py", f"{functions}\nA = 4\n{reads}\n{second}\ndef train(out):\n    return A, B"
    )
    before = project.closure()
    project.write(
        "steps.py", f"{functions}\n\nA = 4\n{second}\n{reads}\ndef train(out):\n    return A, B"
    )
    assert {unit for unit, _ in before.items() ^ project.closure().items()} == {"steps:B"}


def test_where_a_function_stands_is_not_seen(project: Project) -> None:
    project.write("steps.py", "A = 4\ndef train(out):\n    return A\nA = 8")
    before = project.closure()
    project.write("steps.py", "A = 4\nA = 8\ndef train(out):\n    return A")
    assert project.closure() == before


def test_a_module_imported_by_a_function_acts_only_if_the_function_is_reached(
    project: Project,
) -> None:
    project.write(
        "steps.py",
        """
        def train(out):
            return out

        def other(out):
            import APP.settings
        """,
    )
    project.write("settings.py", "print('set up')")
    assert project.edit("settings.py", "set up", "ready") == set()
    project.write("steps.py", "def train(out):\n    import APP.settings")
    assert project.edit("settings.py", "set up", "ready") == {"settings:(import)"}


@pytest.mark.parametrize(
    "statement",
    [
        "import APP.settings",
        "from APP import settings",
        "class Unused:\n    from . import settings",
    ],
)
def test_a_module_that_is_imported_and_not_used_acts_all_the_same(
    project: Project, statement: str
) -> None:
    project.write("steps.py", f"{statement}\n\ndef train(out):\n    return 1")
    project.write("settings.py", "print('set up')\nUNUSED = 3")
    assert set(project.closure()) == {"steps:train", "settings:(import)"}


def test_a_parent_package_acts_when_its_module_is_imported(project: Project) -> None:
    project.write("steps.py", "from APP.deep.inner import f\n\ndef train(out):\n    return f()")
    project.write("deep/__init__.py", "import os\nos.environ['MODE'] = 'fast'")
    project.write("deep/inner.py", "def f():\n    return 1")
    assert project.edit("deep/__init__.py", "fast", "slow") == {"deep:(import)"}


def test_what_only_runs_as_a_script_or_for_a_type_checker_is_left_out(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from APP.types import Config

        def train(out, config: "Config"):
            return 1

        if __name__ == "__main__":
            print("from the command line")
        """,
    )
    project.write("types.py", "print('never')\nclass Config:\n    size = 1")
    assert set(project.closure()) == {"steps:train"}
    assert project.edit("steps.py", "the command line", "a shell") == set()
    assert project.edit("types.py", "never", "ever") == set()


# --- normal form -----------------------------------------------------------------------------


def test_comments_layout_docstrings_and_quotes_are_not_code(project: Project) -> None:
    project.write(
        "steps.py",
        """
        'The module.'

        def train(out, name='a'):
            'Docstring.'
            value = {'a': 1, 'b': (2)}  # a comment
            if value:
                pass
            return (value['a'] +
                    'text'.count("t"), 'a' 'b', not name in value, not name is None)
        """,
    )
    before = project.closure()
    project.write(
        "steps.py",
        '''
        """Another module."""


        def train(
            out,
            name="a",
        ):
            """Another docstring."""
            value = {
                "a": 1,
                "b": 2,
            }
            if value:
                ...
            return value["a"] + "text".count("t"), f"ab", name not in value, name is not None
        ''',
    )
    assert project.closure() == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value + 1", "1 + value"),
        ("value = out", "value  =  out; value = 2"),
        ("name: str", "named: str"),
        ("*, key", "key"),
        ("if out:", "while out:"),
        ("def train", "async def train"),
        ("        return 0\n    else:\n", "        return 0\n    if not out:\n"),
        ("f'{value}'", "f'{value!r}'"),
        ("f'{value}'", "'{value}'"),
    ],
)
def test_everything_else_in_a_function_is_code(project: Project, old: str, new: str) -> None:
    project.write(
        "steps.py",
        """
        def train(out, name: str, *, key=None) -> int:
            value = out
            if out:
                return 0
            else:
                return value + 1, f'{value}'
        """,
    )
    assert project.edit("steps.py", old, new) == {"steps:train"}


# --- what arrives in the arguments -----------------------------------------------------------


def test_defaults_of_the_step_itself_are_part_of_its_arguments(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from pipeline import step

        def default():
            return 3

        @step(version="1")
        def decorated(out, size: int = default(), *, rate=0.5):
            return helper()

        def helper(size=7):
            return size

        train = decorated.function
        """,
    )
    assert set(project.closure()) == {"steps:decorated", "steps:helper"}
    assert project.edit("steps.py", "rate=0.5", "rate=0.25") == set()
    assert project.edit("steps.py", "default(),", "4,") == set()
    assert project.edit("steps.py", '"1"', '"2"') == set()
    assert project.edit("steps.py", "size=7", "size=8") == {"steps:helper"}


@pytest.mark.parametrize("body", ["train(out, top=False)", "helper(out)"])
def test_defaults_of_a_step_that_calls_itself_are_code(project: Project, body: str) -> None:
    project.write(
        "steps.py",
        f"def train(out, size=3, top=True):\n    return {body}\n"
        "def helper(out):\n    return train(out)",
    )
    assert project.edit("steps.py", "size=3", "size=4") == {"steps:train"}


@pytest.mark.parametrize("star", ["", "from pipeline import *"])
def test_other_decorators_of_the_step_are_code(project: Project, star: str) -> None:
    project.write(
        "steps.py",
        f"""
        import pipeline
        {star}
        from functools import singledispatch

        @pipeline.step(version="1")
        @singledispatch
        def decorated(out):
            return 1

        train = decorated.function
        """,
    )
    assert project.edit("steps.py", 'version="1"', 'version="2"') == set()
    assert "steps:decorated" in project.edit("steps.py", "@singledispatch", "")


CONFIG = """
    import dataclasses
    from dataclasses import dataclass as data
    from typing import ClassVar

    @data(frozen=True)
    class Inner:
        depth: int = 1

    @dataclasses.dataclass(frozen=True)
    class Base:
        seed: int = 0

        def check(self):
            return require(self.seed)

    @data(frozen=True)
    class Config(Base):
        size: int = 2
        inner: Inner = Inner()
        limit: ClassVar[int] = 100
        cached: int = dataclasses.field(default=11, init=False)

        def __post_init__(self):
            Base.check(self)

    def require(value):
        return value > 0
    """


def test_hints_of_attributes_of_self_are_in_no_key(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from APP.holders import Counter, touch

        def train(out):
            touch()
            return Counter().count
        """,
    )
    project.write(
        "holders.py",
        """
        class Counter:
            def __init__(self):
                self.count: int = 1

        def made(number):
            return Counter()

        def touch():
            made(1).count: int
        """,
    )
    assert project.edit("holders.py", "self.count: int = 1", "self.count = 1") == set()
    assert project.edit("holders.py", "self.count: int = 1", "self.count: float = 1") == set()
    assert project.edit("holders.py", "self.count: int = 1", "self.count: int = 2") == {
        "holders:Counter"
    }
    assert project.edit("holders.py", "made(1)", "made(2)") == {"holders:touch"}


@pytest.mark.parametrize("between", ["Fields", "Middle"])
def test_hints_count_in_every_ancestor_of_a_class_that_a_library_reads(
    project: Project, between: str
) -> None:
    project.write(
        "steps.py",
        """
        from APP.config import Config

        def train(out):
            return Config(rate="3").rate
        """,
    )
    project.write(
        "config.py",
        f"""
        from pydantic import BaseModel

        class Fields:
            rate: int = 1

        class Middle(Fields):
            pass

        class Root(BaseModel):
            name: str = "a"

        class Config({between}, Root):
            pass
        """,
    )
    assert project.edit("config.py", "rate: int", "rate: str") == {"config:Fields"}
    assert project.edit("config.py", "name: str", "name: object") == {"config:Root"}


def test_a_field_added_to_a_config_that_only_arrives_does_not_bear_on_the_step(
    project: Project,
) -> None:
    project.write("config.py", CONFIG)
    project.write(
        "steps.py",
        """
        from APP.config import Config

        def train(out, config: "Config | None" = None, more: list[Config] = []):
            return helper(config)

        def helper(config: Config):
            local: Config = config
            return local
        """,
    )
    for old, new in [
        ("size: int = 2", "size: int = 2\n    added: int = 5"),
        ("size: int = 2", "size: int = 3"),
        ("seed: int = 0", "seed: int = 0\n    added: int = 5"),
        ("depth: int = 1", "depth: int = 2"),
    ]:
        assert project.edit("config.py", old, new) == set()
        if "added" not in new:  # the class that was imported has no such field
            assert project.edit("config.py", old, new, types=["Config"]) == set()
    assert project.edit("config.py", "Base.check(self)", "pass") == {"config:Config"}
    assert project.edit("config.py", "value > 0", "value > 1") == {"config:require"}
    assert project.edit("config.py", "= 100", "= 101") == {"config:Config"}
    assert project.edit("config.py", "default=11", "default=12") == set()  # its value is in the key


@pytest.mark.parametrize(
    "use",
    [
        "return Config()",
        "return Config.size",
        "return isinstance(out, Config)",
        "return make(Config)",
        "class Child(Config): ...\n    return Child",
    ],
)
def test_a_config_that_the_code_makes_counts_with_its_fields(project: Project, use: str) -> None:
    project.write("config.py", CONFIG)
    project.write(
        "steps.py", f"from APP.config import Config\n\ndef train(out, c: Config):\n    {use}"
    )
    assert project.edit("config.py", "size: int = 2", "size: int = 3") == {"config:Config"}
    assert project.edit("config.py", "depth: int = 1", "depth: int = 2") == {"config:Inner"}
    assert project.edit("config.py", "seed: int = 0", "seed: int = 1") == {"config:Base"}


@pytest.mark.parametrize("annotation", ["Inner", "'Inner | None'", "list[Inner]"])
def test_a_config_named_in_a_field_of_a_class_that_is_made_counts_with_its_fields(
    project: Project, annotation: str
) -> None:
    project.write("config.py", CONFIG)
    project.write(
        "steps.py",
        f"""
        from dataclasses import dataclass
        from APP.config import Inner
        from APP.library import structured

        @dataclass
        class Outer:
            inner: {annotation}

            def replaced(self, inner: Inner): ...

        def train(out):
            return structured(Outer)
        """,
    )
    project.write("library.py", "def structured(definition):\n    return definition")
    assert project.edit("config.py", "depth: int = 1", "depth: int = 2") == {"config:Inner"}
    steps = project.path("steps.py").read_text()
    project.path("steps.py").write_text(steps.replace("out):", "out, o: Outer):", 1))
    project.path("steps.py").write_text(steps.replace("structured(Outer)", "None"))
    assert project.edit("config.py", "depth: int = 1", "depth: int = 2") == set()


def test_the_class_of_an_argument_is_code_without_being_named(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import enum
        from pathlib import Path
        from APP.config import Config

        class Mode(enum.Enum):
            FAST = 1

        def train(out, config, mode):
            return config.check()
        """,
    )
    project.write("config.py", CONFIG)
    assert project.edit("config.py", "value > 0", "value > 1") == set()
    types = ["Config", "Mode", "Path"]
    assert project.edit("config.py", "value > 0", "value > 1", types) == {"config:require"}
    assert project.edit("steps.py", "FAST = 1", "FAST = 2", types) == {"steps:Mode"}


def test_a_class_named_only_in_the_text_of_an_annotation_is_code(project: Project) -> None:
    project.write("config.py", CONFIG)
    project.write(
        "steps.py",
        """
        from APP.config import Config

        Setting = Config | None

        def train(out, config: "Setting"):
            return config.check()
        """,
    )
    assert project.edit("config.py", "value > 0", "value > 1") == {"config:require"}
    assert project.edit("config.py", "size: int = 2", "size: int = 3") == set()
    assert project.edit("steps.py", "Config | None", "None | Config") == {"steps:Setting"}


def test_a_class_that_no_statement_defines_counts_with_its_whole_module(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import collections

        Point = collections.namedtuple("Hidden", "x y")

        def train(out, point):
            return point.x
        """,
    )
    assert project.edit("steps.py", '"x y"', '"x y z"') == set()
    assert project.edit("steps.py", '"x y"', '"x y z"', ["Point"]) == {"steps:Point"}


def test_data_in_an_annotation_is_no_reference(project: Project) -> None:
    project.write(
        "steps.py",
        """
        from typing import Annotated, Literal

        def fast():
            return 1

        def train(out, mode: Literal["fast"], note: "Annotated[int, 'fast']"):
            return mode
        """,
    )
    assert project.edit("steps.py", "return 1", "return 2") == set()


# --- names and places --------------------------------------------------------------------------


def test_moving_and_renaming_change_no_digest(project: Project) -> None:
    project.write("steps.py", "from APP.helpers import scale\ndef train(out):\n    return scale(2)")
    project.write("helpers.py", "FACTOR = 3\ndef scale(n):\n    return n * FACTOR")
    before = closure(project.load("steps").train).digest
    project.write("deep/er.py", "TIMES = 3\ndef enlarge(m):\n    return m * TIMES")
    project.path("deep/er.py").write_text(
        "TIMES = 3\n\ndef enlarge(n):\n    product = n * TIMES\n    return product\n"
    )
    project.write(
        "steps.py", "def train(out):\n    from APP.deep import er\n    return er.enlarge(2)"
    )
    assert closure(project.load("steps").train).digest != before, "it says it in two statements"
    project.write("deep/er.py", "TIMES = 3\ndef enlarge(n):\n    return n * TIMES")
    assert closure(project.load("steps").train).digest == before


@pytest.mark.parametrize("declared_by", ["from pipeline import execution_detail", ""])
def test_what_bears_on_no_result_is_not_followed(project: Project, declared_by: str) -> None:
    project.write(
        "steps.py",
        f"""
        {declared_by or "def execution_detail(given): return given"}

        @execution_detail
        def show(n):
            print(shown(n))

        def shown(n):
            return n + 1

        @execution_detail
        class Usage:
            peak = 3

        class Model:
            @execution_detail
            def describe(self):
                return "a model"

            def run(self):
                return 4

        def train(out):
            show(1)
            Usage()
            return Model().run()
        """,
    )
    assert project.edit("steps.py", "n + 1", "n + 2") == set()
    assert project.edit("steps.py", "peak = 3", "peak = 4") == set()
    assert project.edit("steps.py", '"a model"', '"the model"') == set()
    assert project.edit("steps.py", "return 4", "return 5") == {"steps:Model"}
    found = closure(project.load("steps").train)
    assert f"{project.name}.steps:shown" in found.details


def test_a_text_of_an_error_counts_where_such_texts_are_read(project: Project) -> None:
    project.write(
        "steps.py",
        """
        import logging

        LOG = logging.getLogger(__name__)

        def check(n):
            if n < 0:
                raise ValueError(f"{n} is too small")
            LOG.info("checked %s", n)

        def train(out):
            check(1)

        def tell(out):
            try:
                check(1)
            except ValueError as error:
                return str(error)
        """,
    )
    assert project.edit("steps.py", "is too small", "is negative") == set()
    assert project.edit("steps.py", "checked %s", "looked at %s") == set()
    project.path("steps.py").write_text(
        project.path("steps.py").read_text().replace("check(1)\n\ndef tell", "tell(1)\n\ndef tell")
    )
    assert project.edit("steps.py", "is too small", "is negative") == {"steps:check"}


@pytest.mark.parametrize(
    "listens",
    [
        "logging.Logger.info = keep", "LOG.info = keep", "LOG.filters.append(keep)",
        "LOG.filters[0] = keep", "logging.root.filters.append(keep)",
        "logging.root.filters[0] = keep", "LOG.addHandler(keep)", "logging.lastResort = keep",
        "logging.root.handlers += [keep]", "sys.stderr = keep",
    ],
)  # fmt: skip
def test_a_logged_text_counts_where_the_step_may_hear_it(project: Project, listens: str) -> None:
    project.write(
        "steps.py",
        f"""
        import logging, sys

        LOG = logging.getLogger(__name__)

        def keep(*heard):
            HEARD.append(heard)

        HEARD = []

        def listen():
            {listens}

        def check():
            LOG.info("low")

        def train(out):
            listen()
            check()
            return HEARD
        """,
    )
    assert project.edit("steps.py", '"low"', '"high"') == {"steps:check"}


# --- what is project code --------------------------------------------------------------------


def test_installed_libraries_are_not_followed_unless_the_step_is_in_one(project: Project) -> None:
    site = project.folder / "site-packages"
    (site / "installed").mkdir(parents=True)
    library = Project(site)
    library.write("steps.py", "from APP.helper import f\n\ndef train(out):\n    return f()")
    library.write("helper.py", "def f():\n    return 1")
    sys.path.insert(0, str(site))
    try:
        project.write(
            "steps.py",
            f"""
            import json, blake3
            from {library.name}.helper import f

            def train(out):
                return f(), json.dumps(blake3.blake3())
            """,
        )
        assert set(project.closure()) == {"steps:train"}
        assert set(library.closure()) == {"steps:train", "helper:f"}
    finally:
        sys.path.remove(str(site))


@pytest.mark.parametrize("use", ["from APP.compiled import f", "import APP.compiled"])
def test_a_module_without_source_is_known_by_its_bytes(project: Project, use: str) -> None:
    project.write("steps.py", f"{use}\n\ndef train(out):\n    return f()")
    project.write("compiled.py", "def f(): return 1")
    py_compile.compile(str(project.path("compiled.py")), str(project.path("compiled.pyc")))
    project.path("compiled.py").unlink()
    before = project.closure()
    assert set(before) == {"steps:train", "compiled:(binary)"}
    project.path("compiled.pyc").write_bytes(project.path("compiled.pyc").read_bytes() + b"\0")
    assert {unit for unit, _ in before.items() ^ project.closure().items()} == {"compiled:(binary)"}


def test_the_caching_core_itself_is_no_project_code(project: Project) -> None:
    project.write(
        "steps.py",
        "from pipeline.dag.canonical import hash_json\n\ndef train(out):\n    return hash_json(1)",
    )
    assert set(project.closure()) == {"steps:train"}
    assert set(closure(hash_json).units) - {"pipeline.dag.canonical:(import)"} >= {
        *("pipeline.dag.canonical:hash_json", "pipeline.dag.canonical:canonical_bytes"),
        "pipeline.dag.canonical:Json",
    }


def test_nothing_is_imported_to_be_read(project: Project) -> None:
    project.write("steps.py", "def train(out):\n    from APP.deep.heavy import run\n    run()")
    project.write("deep/heavy.py", "raise RuntimeError('imported')\ndef run():\n    return 1")
    assert {"deep.heavy:run", "deep.heavy:(import)"} <= set(project.closure())
    assert f"{project.name}.deep" not in sys.modules


@pytest.mark.parametrize("module", ["settings", "deep.settings"])
def test_a_module_that_puts_an_object_in_its_place_counts_before_and_after_its_import(
    project: Project, module: str
) -> None:
    """A driver has imported it and a worker has not, so they would disagree for ever."""
    source = """
        import sys
        class Settings:
            rate = 1
            def __getattr__(self, name):
                return name.upper()
        sys.modules[__name__] = Settings()
        """
    project.write(f"{module.replace('.', '/')}.py", source)
    project.write(
        "steps.py", f"def train(out):\n    import APP.{module} as found\n    return found.rate"
    )
    before = project.closure()
    assert f"{module}:Settings" in before
    project.load(module)
    assert project.closure() == before
    assert project.edit(f"{module.replace('.', '/')}.py", "rate = 1", "rate = 2")
    sys.modules.pop(f"{project.name}.{module}")


def test_a_script_that_puts_an_object_in_its_place_counts_after_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"settings_{secrets.token_hex(6)}"
    text = "import sys\nclass Settings:\n    rate = 1\nsys.modules[__name__] = Settings()\n"
    (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / f"steps_{name}.py").write_text(
        f"import {name}\ndef train(out):\n    return {name}.rate\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert f"{name}:Settings" in closure(importlib.import_module(f"steps_{name}").train).units


# --- errors ----------------------------------------------------------------------------------


def test_a_function_without_a_file_is_refused_saying_what_to_do() -> None:
    namespace: dict = {"__name__": "typed_in"}
    exec("def train(out): ...", namespace)
    with pytest.raises(TemperError, match=r"train is defined interactively.*put it in a file"):
        closure(namespace["train"])


def test_a_function_that_is_not_in_its_file_is_refused(project: Project) -> None:
    project.write("steps.py", "exec('def train(out): ...')")
    with pytest.raises(TemperError, match=r"train is defined interactively.*put it in a file"):
        project.closure()


def test_a_file_that_is_not_python_is_named_with_its_line(project: Project) -> None:
    project.write("steps.py", "def train(out):\n    import APP.broken")
    project.write("broken.py", "ok = 1\nnot ok = 2")
    with pytest.raises(TemperError, match=r"broken\.py, line 2: "):
        project.closure()


# --- what is kept of files that were read ------------------------------------------------------


def test_an_entry_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("os.replace", refused)
    shelf.save(tmp_path / "kind" / "entry.json", 1)
    assert [*(tmp_path / "kind").iterdir()] == []


def test_a_damaged_entry_of_the_shelf_is_read_anew(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "_folder", lambda: tmp_path / "shelf")
    project.write("steps.py", "def train(out):\n    return 1")
    source.read_module.cache_clear()
    before = project.closure()
    entries = list((tmp_path / "shelf").rglob("*.json"))
    assert entries
    for entry in entries:
        entry.write_bytes(entry.read_bytes().replace(b"0x1", b"0x2"))
    source.read_module.cache_clear()
    assert project.closure() == before


# --- driver and worker -----------------------------------------------------------------------


def test_a_script_and_the_worker_that_imports_it_agree(tmp_path: Path, repository: Path) -> None:
    script = tmp_path / f"script_{secrets.token_hex(6)}.py"
    script.write_text(
        textwrap.dedent(
            """
            import dataclasses, json
            from pipeline.code import closure

            @dataclasses.dataclass
            class Config:
                size: int = 1

            def helper():
                return 1

            def train(out, config: Config):
                return helper()

            def show():
                found = closure(train, [Config])
                print(json.dumps([found.digest, {**found.units}]))

            if __name__ == "__main__":
                show()
            """
        )
    )
    as_script = _run("-P", str(script), path=repository)  # without its folder on the path
    as_worker = _run("-c", f"import {script.stem}; {script.stem}.show()", path=tmp_path)
    assert as_script == as_worker
    assert f'"{script.stem}:helper"' in as_script


def test_the_real_dpo_step_reaches_its_loss_and_nothing_foreign(repository: Path) -> None:
    code = """
        import sys
        from pipeline.code import closure
        from steps.losses.dpo import Dpo
        from steps.train_dpo import train_dpo
        from steps.training.config import DpoConfig

        found = closure(train_dpo.function, [DpoConfig, Dpo])
        print(*found.units, "torch" in sys.modules, sep="\\n")
    """
    *units, torch_imported = _run("-c", textwrap.dedent(code), path=repository).split()
    assert torch_imported == "False"
    assert {"steps.training.recipes:run_dpo", "steps.losses.dpo:Dpo"} <= set(units)
    assert not [
        u for u in units if u.startswith(("steps.generation", "steps.data.rows.arithmetic"))
    ]
    assert not [
        u for u in units if any(f"losses.{other}" in u for other in ("simpo", "kto", "registry"))
    ]
    assert not [u for u in units if u.startswith(("torch", "transformers", "pipeline"))]


def _run(*arguments: str, path: Path) -> str:
    repository = REPOSITORY
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": f"{repository}:{path}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


# --- digests that must never change ----------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``golden/code_sample.py.txt``, kept as a text so that no tool rewrites it, as a module."""
    folder = tmp_path / "golden_package"
    folder.mkdir()
    shutil.copyfile(GOLDEN / "code_sample.py.txt", folder / "code_sample.py")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("golden_package.code_sample")
    del sys.modules["golden_package.code_sample"], sys.modules["golden_package"]


def test_the_digests_of_code_are_those_of_the_release(sample: ModuleType) -> None:
    """If this fails, every key of a step without a version changes.

    Python 3.11, 3.12 and 3.13 agree on ``golden/code.json``. If the change is meant, whatever was
    made before will be made again: say so in the release, then write the file anew with
    ``PYTHONPATH=.:tests/support python -m tests.code.test_code``.
    """
    expected = json.loads((GOLDEN / "code.json").read_text("utf-8"))
    assert _of_sample(sample) == expected


def _of_sample(sample: ModuleType) -> dict[str, object]:
    found = closure(sample.step, [sample.Config, sample.Argument])
    return {"digest": found.digest, "units": dict(found.units)}


def test_the_golden_sample_holds_every_kind_of_syntax() -> None:
    tree = ast.parse((GOLDEN / "code_sample.py.txt").read_bytes())
    bases = (ast.stmt, ast.expr, ast.pattern, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    later = {"TypeAlias", "TemplateStr", "Interpolation"}  # than Python 3.11
    kinds = {kind.__name__ for base in bases for kind in base.__subclasses__()} - later
    assert kinds - {type(node).__name__ for node in ast.walk(tree)} == set()
    constants = {type(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert constants == {type(None), bool, int, float, complex, str, bytes, type(...)}


# --- any program -----------------------------------------------------------------------------


@st.composite
def call_graphs(draw: st.DrawFn) -> tuple[list[set[int]], int]:
    """Functions by the numbers of those that they call, and one that is edited."""
    count = draw(st.integers(2, 8))
    calls = [draw(st.sets(st.integers(0, count - 1), max_size=3)) for _ in range(count)]
    return calls, draw(st.integers(0, count - 1))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(graph=call_graphs(), styles=st.randoms(use_true_random=False))
def test_an_edit_is_seen_exactly_if_its_function_is_reachable(
    graph: tuple[list[set[int]], int],
    styles: Random,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, edited = graph
    monkeypatch.syspath_prepend(tmp_path)
    project = Project(tmp_path)
    sources: dict[str, str] = {"m0": "", "m1": "", "m2": ""}
    for number, called in enumerate(calls):
        lines = [f"def f{number}():", f"    total = {number * 100}"]
        for other in sorted(called):
            lines += _call(number, other, styles)
        sources[f"m{number % 3}"] += "\n".join([*lines, "    return total", "", ""])
    for name, text in sources.items():
        others = [f"import APP.{other}" for other in sources if other != name]
        project.write(f"{name}.py", "\n".join([*others, text]))
    project.write("steps.py", "from APP.m0 import f0\n\ndef train(out):\n    return f0()")

    reachable, waiting = {0}, [0]
    while waiting:
        new = calls[waiting.pop()] - reachable
        reachable |= new
        waiting.extend(new)
    assert set(project.closure()) == {"steps:train"} | {f"m{n % 3}:f{n}" for n in reachable}
    changed = project.edit(f"m{edited % 3}.py", f"total = {edited * 100}\n", "total = 7\n")
    assert changed == ({f"m{edited % 3}:f{edited}"} if edited in reachable else set())


def _call(caller: int, called: int, styles: Random) -> list[str]:
    """Lines that call a function in one of the ways in which one is named."""
    module, name = f"APP.m{called % 3}", f"f{called}"
    if caller % 3 == called % 3 and styles.random() < 0.5:
        return [f"    total += {name}()"]
    return styles.choice(
        [
            [f"    from {module} import {name} as g", "    total += g()"],
            [f"    import {module} as m", f"    total += sum(m.{name}() for m.x in [])"],
            [f"    import {module}", f"    total += {module}.{name}()"],
            [f"    from .m{called % 3} import {name}", f"    total += (lambda: {name}())()"],
            ["    from APP import m" + str(called % 3), f"    total += m{called % 3}.{name}()"],
        ]
    )


# --- what gets past by-value ----------------------------------------------------------------------

REFLECTIVE = {
    "a class method": ("@classmethod\n    def of(cls): return cls()", "config.of().rate"),
    "type(self)": ("def fresh(self): return type(self)()", "config.fresh().rate"),
    "type of the argument": ("def other(self): ...", "type(config)().rate"),
    "__class__": ("def other(self): ...", "config.__class__.rate"),
    "dataclasses.fields": ("def other(self): ...", "dataclasses.fields(config)[0].default"),
    "type hints": ("def other(self): ...", "typing.get_type_hints(config)"),
}


@pytest.mark.parametrize("how", REFLECTIVE)
def test_a_default_counts_where_code_can_come_to_it_from_a_value(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, expression = REFLECTIVE[how]
    assert len({_reflective(tmp_path, monkeypatch, method, expression, d) for d in (1, 2)}) == 2


@pytest.mark.parametrize(
    "use",
    [
        "type(config).__name__",
        "dataclasses.replace(config, rate=3)",
        "dataclasses.asdict(config)",
        "dataclasses.astuple(config)",
        "[getattr(config, field.name) for field in dataclasses.fields(config)]",
    ],
)
def test_a_default_does_not_count_where_no_declaration_is_read(
    use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = {
        _reflective(tmp_path, monkeypatch, "def other(self): ...", use, default)
        for default in (1, 2)
    }
    assert len(digests) == 1


def _reflective(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str, expression: str, default: int
) -> tuple[str]:
    name = f"reflective_{abs(hash((str(folder), method, expression)))}"
    (folder / f"{name}.py").write_text(
        "import dataclasses, typing\n"
        "@dataclasses.dataclass(frozen=True)\n"
        f"class Config:\n    rate: int = {default}\n    {method}\n"
        f"def body(out, config: Config):\n    return {expression}\n"
    )
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop(name, None)
    module = importlib.import_module(name)
    return (closure(module.body, [module.Config]).digest,)


def test_docstrings_count_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(doc: str, expression: str) -> tuple[str]:
        name = f"documented_{abs(hash((str(tmp_path), expression)))}"
        (tmp_path / f"{name}.py").write_text(
            f"def prompt():\n    '''{doc}'''\ndef body(out):\n    return {expression}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop(name, None)
        return (closure(importlib.import_module(name).body).digest,)

    assert digest("You are kind.", "prompt.__doc__") != digest("You are terse.", "prompt.__doc__")
    assert digest("You are kind.", "prompt()") == digest("You are terse.", "prompt()")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (package := Path(folder) / "golden_package").mkdir()
        shutil.copyfile(GOLDEN / "code_sample.py.txt", package / "code_sample.py")
        sys.path.insert(0, folder)
        found = _of_sample(importlib.import_module("golden_package.code_sample"))
        (GOLDEN / "code.json").write_text(json.dumps(found, indent=1) + "\n")


def test_a_default_of_an_argument_s_base_counts_once_a_step_makes_another_class_of_that_base(
    project: Project,
) -> None:
    """The values of an argument are in the key, so its base is first met without defaults."""
    project.write(
        "steps.py",
        """
        from dataclasses import dataclass

        @dataclass
        class Base:
            rate: float = 1.0

        @dataclass
        class Given(Base):
            steps: int = 1

        @dataclass
        class Made(Base):
            scale: float = 2.0

        def train(config: Given):
            return Made().rate + config.rate
        """,
    )
    edit = "steps.py", "rate: float = 1.0", "rate: float = 3.0"
    assert "steps:Base" in project.edit(*edit, types=["Given"])
