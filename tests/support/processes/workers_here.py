"""Workers in the process of the tests: for what a user sees of steps, and not of processes.

A worker of its own costs a third of a second of work, most of it for imports. What a process can
break (code that is served, signals, printing, kills) is tested with real ones.
"""

import contextlib
import io
import multiprocessing
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import Event, Lock, get_ident
from typing import IO, TextIO

import fresh_processes
import pytest

import pipeline
from pipeline.base.installed import SHIPPED_STEPS, in_library
from pipeline.dag import inputs
from pipeline.dag.resources import Resources
from pipeline.launchers.local import LocalLauncher
from pipeline.wire.launcher import Ended, Task
from pipeline.worker import attempt as worker

OURS = (SHIPPED_STEPS, str(Path(pipeline.__file__).parent))


class InThisProcess:
    """What launchers whose workers run in this process have in common."""

    kind = "here"
    detached = False
    grace_seconds = 1.0

    def shortage(self, resources: Resources) -> str | None:
        return None

    def claims(self, resources: Resources) -> dict[str, int]:
        return {}

    def capacity(self) -> dict[str, int]:
        return {}

    def ready(self, asked: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


_alone = Lock()  # streams and environment are the process's: two workers would mix theirs up


class _Printed(io.StringIO):
    """What the thread that made it prints; what others print goes where it went before."""

    def __init__(self, before: TextIO):
        super().__init__()
        self._before, self._thread = before, get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if get_ident() == self._thread else self._before.write(text)


def run_here(task: Task, log: IO[bytes]) -> Ended:
    """Does what a worker does, to its end; what it prints goes into the log."""
    with _alone:
        printed = _Printed(sys.stdout)
        before = frozenset(sys.modules)
        get_code = SourceFileLoader.get_code  # a worker sets its own, for its process
        try:
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
                _memory_of_its_own(task),
            ):
                return Ended(worker.main(task.spec_url))
        finally:
            for name in sys.modules.keys() - before:  # the next worker imports a user's code anew
                file = str(getattr(sys.modules[name], "__file__", None) or "")
                if not file.startswith(OURS) and not in_library(file):
                    del sys.modules[name]
            SourceFileLoader.get_code = get_code
            log.write(printed.getvalue().encode(errors="backslashreplace"))


@contextlib.contextmanager
def _memory_of_its_own(task: Task) -> Iterator[None]:
    """A worker looks at files and code itself; its driver still knows what it saw."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "_look_at", cache(inputs._look_at.__wrapped__))
        for name, value in task.environment.items():
            patch.setenv(name, value)
        yield


def instead_of_processes(patch: pytest.MonkeyPatch) -> None:
    """Let the local launcher run its workers in this process."""

    def run(launcher: LocalLauncher, task: Task, log: IO[bytes], _: Event) -> Ended:
        return run_here(task, log)

    def ready(launcher: LocalLauncher, asked: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # what such a worker spawns in its turn, as to judge, is forked
    patch.setattr(multiprocessing.get_context("spawn"), "Process", fresh_processes.made)
    patch.setattr(LocalLauncher, "run", run)
    patch.setattr(LocalLauncher, "ready", ready)
