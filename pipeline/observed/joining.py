"""Observes a Python that a step has started, and that is no process of Temper's.

It runs a script or a module of its own and imports project code from the files, as it would
without Temper. Each module that it imports counts whole, since no function of it has a mark.
"""

import contextlib
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pipeline.base.installed import settle
from pipeline.observed.hook import HOOK, unobserved
from pipeline.observed.observation import Observation

STARTED = "TEMPER_STARTED"
"""Set in such a Python: what `multiprocessing` starts there joins in the same way."""
_RUNS_A_MODULE = "<frozen runpy>"


def join_as_started() -> None:
    """Observe this process, and what it starts in turn."""
    if (observation := Observation.join()) is not None:
        settle()
        _note_imports(observation)
        os.environ[STARTED] = "1"


def _note_imports(observation: Observation) -> None:
    plain = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        is_main = sys._getframe(1).f_code.co_filename == _RUNS_A_MODULE
        with unobserved():
            _note(observation, fullname, os.path.abspath(loader.get_filename(fullname)), is_main)
            return plain(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def _note(observation: Observation, module: str, path: str, is_main: bool) -> None:
    if not observation.rules.counts(path):
        return
    if is_main:  # ``if __name__ == "__main__":`` counts here
        HOOK.note_source(path)
        return
    with contextlib.suppress(OSError):  # what cannot be read cannot be imported either
        content = Path(path).read_bytes()
        observation.add_whole_module(module, path, content)
