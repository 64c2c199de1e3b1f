"""What the driver has set in its own memory reaches no worker, so a plan refuses it."""

import importlib
import math
import secrets
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline import Store, TemperError, look_again
from pipeline.plan import set_here
from pipeline.plan.planning import make_plan

CONFIG = """
    RATE = 3
    READY = False
    NAMES = {"RATES": RATE}

    class Model:
        width = 2

        def act(self):
            return self.width

    def scale():
        return RATE

    def get():
        global READY
        READY = True
        return READY
    """
STEPS = """
    from pipeline import step
    import CONFIG

    @step
    def train(out):
        found = CONFIG.Model().act(), CONFIG.scale(), CONFIG.get(), CONFIG.RATE
        return {"found": str(found)}

    def set_rate(value):
        CONFIG.RATE = value
    """


class Project:
    """``config``, and the module ``steps`` that uses it; both are older than this process."""

    def __init__(self, folder: Path):
        self.folder, self.names = folder, {n: f"{n}_{secrets.token_hex(4)}" for n in ("c", "s")}
        self.write("c", CONFIG)
        self.write("s", STEPS)

    def write(self, module: str, text: str) -> None:
        file = self.folder / f"{self.names[module]}.py"
        file.write_text(textwrap.dedent(text).replace("CONFIG", self.names["c"]))
        importlib.invalidate_caches()

    @property
    def config(self) -> ModuleType:
        return importlib.import_module(self.names["c"])

    @property
    def steps(self) -> ModuleType:
        return importlib.import_module(self.names["s"])

    def plan(self) -> Any:
        look_again()
        return make_plan({"r": self.steps.train()}, Store(str(self.folder / "store")))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(set_here, "_BEGAN", math.inf)
    project = Project(tmp_path)
    yield project
    for name in project.names.values():
        sys.modules.pop(name, None)


def mine(_: Any = None) -> int:
    return 4


@pytest.mark.parametrize(
    ("name", "set_it"),
    [
        ("RATE is 9 in this process, and 3 in", lambda p: setattr(p.config, "RATE", 9)),
        ("RATE is 9 in this process, and 3 in", lambda p: p.steps.set_rate(9)),
        ("RATE is True in this process, and 3 in", lambda p: setattr(p.config, "RATE", True)),
        ("Model.width is 5 in", lambda p: setattr(p.config.Model, "width", 5)),
        ("scale is a function of .*test_set_here.py", lambda p: setattr(p.config, "scale", mine)),
        ("Model.act is a function of", lambda p: setattr(p.config.Model, "act", mine)),
    ],
)
def test_what_only_this_process_has_set_is_refused_as_no_worker_would_have_it(
    project: Project, name: str, set_it: Callable[[Project], None]
) -> None:
    project.plan()
    set_it(project)
    with pytest.raises(TemperError, match=rf"{project.names['c']}\.{name}.*pass it to the step"):
        project.plan()


def test_what_the_code_of_a_step_sets_itself_is_no_difference(project: Project) -> None:
    project.config.get()
    project.plan()


def test_what_a_module_that_a_worker_imports_too_has_set_is_no_difference(project: Project) -> None:
    project.write("s", STEPS + "\n    CONFIG.RATE = 9\n    CONFIG.Model.act = set_rate\n")
    assert project.steps.train
    assert project.config.RATE == 9
    project.plan()


@pytest.mark.parametrize(
    "code",
    ["if __name__ != '__main__':\n    {}", "if __name__ == '__main__':\n    pass\nelse:\n    {}"],
)
def test_what_a_module_sets_unless_it_is_the_script_is_no_difference(
    project: Project, code: str
) -> None:
    """A worker imports it, too, so it is set there."""
    for name, what in (("c", "RATE = 9"), ("s", "CONFIG.RATE = 9")):
        project.write("c", CONFIG)
        project.write("s", STEPS)
        text = CONFIG if name == "c" else STEPS
        project.write(name, f"{text}\n{textwrap.indent(code.format(what), '    ')}\n")
        for module in project.names.values():
            sys.modules.pop(module, None)
        assert project.steps.train
        assert project.config.RATE == 9
        project.plan()


def test_a_module_that_is_older_than_its_file_is_no_difference(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_here, "_BEGAN", 0)
    project.plan()
    project.write("c", CONFIG.replace("RATE = 3", "RATE = 4"))
    project.plan()


def test_values_that_no_file_says_are_not_compared(project: Project) -> None:
    vars(project.config)["NAMES"] = {}
    project.config.Model.depth = 4
    project.plan()


def test_what_a_star_import_or_the_makers_of_a_class_have_set_is_no_difference(
    project: Project, tmp_path: Path
) -> None:
    """Such as `from local_settings import *` at the end, or a decorator of a library."""
    other = f"{project.names['c']}_other"
    (tmp_path / f"{other}.py").write_text(
        "RATE = 7\ndef widened(kind):\n    type.__setattr__(kind, 'wid' + 'th', 7)\n"
        "    return kind\n"
    )
    begun = CONFIG.replace("class Model", f"from {other} import widened\n\n    class Model")
    project.write("c", f"{begun}\n    from {other} import *\n")
    assert project.config.RATE == 7
    project.plan()
    wide = "class Wide:\n        def __init_subclass__(cls):\n            widened(cls)\n\n    "
    for before, base in (("@widened\n    ", ""), (wide, "(Wide)")):
        for name in project.names.values():
            sys.modules.pop(name)
        project.write("c", begun.replace("class Model", f"{before}class Model{base}"))
        assert project.config.Model.width == 7
        project.plan()
    sys.modules.pop(other)
