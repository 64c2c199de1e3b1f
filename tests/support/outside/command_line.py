"""The ``temper`` command and scripts, called in this process as a shell would call them."""

import contextlib
import io
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from places import REPOSITORY

from pipeline import experiment
from pipeline.cli import main, recipes
from pipeline.configs.groups import Choices
from pipeline.configs.schemas import store_schema


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that a foreseen mistake ends with."""
        assert self.status in (1, 3), (self.out, self.err)
        assert "Traceback" not in self.err
        (line,) = self.err.strip().splitlines()
        return line


def temper(*words: str) -> Said:
    """``temper WORDS``."""
    return _called(["temper", *words], main)


def script(path: Path | str, *words: str) -> Said:
    """``python PATH WORDS``."""
    return _called([str(path), *words], lambda: run_path(str(path), run_name="__main__"))


def run_path(path: str, run_name: str) -> None:
    """``runpy.run_path``. The experiments that ship are executed once, so that all their commands
    have one type of config, and Hydra's schema of it is made once; then `main` is called again."""
    script = Path(path).resolve()
    if script.parent != REPOSITORY / "experiments" or run_name != "__main__":
        runpy.run_path(path, run_name=run_name)
        return
    program, given = _executed(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", program)
        experiment.main(*given)


@cache
def _executed(script: Path) -> tuple[ModuleType, tuple[Any, ...]]:
    """The program, and what it gives to `main`."""
    program, calls = ModuleType("__main__"), []
    program.__file__ = str(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", program)
        patch.setattr(experiment, "main", lambda *given: calls.append(given))
        exec(compile(script.read_bytes(), str(script), "exec"), vars(program))
    (given,) = calls
    return program, given


def _called(words: list[str], call: Callable[[], object]) -> Said:
    out, err, status = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", words)
        patch.setattr(sys, "orig_argv", [sys.executable, *words])
        patch.setattr(sys, "path", [str(Path(words[0]).resolve().parent), *sys.path])
        patch.setattr(experiment, "CALLED", [])
        Plugins.instance()  # they store configs, once
        known = ConfigStore.instance()  # each process has its own
        patch.setattr(known, "repo", _copied(known.repo))
        patch.setattr(experiment, "store_schema", _store_as_before)
        patch.setattr(recipes, "runpy", SimpleNamespace(run_path=run_path))
        patch.setenv("HYDRA_FULL_ERROR", "1")  # which `main` sets
        patch.setenv("COLUMNS", "100")
        try:
            call()
        except SystemExit as left:
            status = int(left.code or 0)
    return Said(status, out.getvalue(), err.getvalue())


def _copied(groups: dict[str, Any]) -> dict[str, Any]:
    """Groups with configs that are shared: Hydra copies a config when it loads it."""
    return {n: _copied(g) if isinstance(g, dict) else g for n, g in groups.items()}


def _store_as_before(schema: type, choices: Choices) -> None:
    """Registers what the first command with these types registered."""
    chosen = tuple((field, tuple(types.items())) for field, types in choices.items())
    _add(_stored(schema, chosen), ConfigStore.instance().repo)


@lru_cache(maxsize=32)
def _stored(schema: type, chosen: tuple[tuple[str, tuple[tuple[str, type], ...]], ...]) -> dict:
    known = ConfigStore.instance()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "repo", {})
        store_schema(schema, {field: dict(types) for field, types in chosen})
        return known.repo


def _add(groups: dict[str, Any], to: dict[str, Any]) -> None:
    for name, group in groups.items():
        if isinstance(group, dict):
            _add(group, to.setdefault(name, {}))
        else:
            to[name] = group
