"""Drivers in processes and sessions of their own, for tests that kill or stop them.

An interpreter of its own spends half a second on imports of which these tests see nothing. So a
driver is forked from a server that has imported Temper. Its workers and their parents are
interpreters of their own.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import fresh_processes
from places import SUPPORT
from waiting import HANGS_SECONDS


def start_driver(code: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """Begins a script with these arguments, which finds what tests find; it prints into a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


class Driver:
    """``python SCRIPT WORDS`` in a folder and an environment, forked; like ``subprocess.Popen``."""

    def __init__(self, words: Sequence[str], folder: Path, environment: Mapping[str, str]):
        self._printed = tempfile.NamedTemporaryFile()  # noqa: SIM115: until the test has read it
        self._process = fresh_processes.start(
            _drive, list(words), str(folder), dict(environment), self._printed.name
        )
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self) -> str:
        """What it has printed at its end."""
        self._process.join(HANGS_SECONDS)
        assert self.returncode is not None, "the driver hangs"
        with self._printed:
            return Path(self._printed.name).read_text("utf-8")


def _drive(words: list[str], folder: str, environment: dict[str, str], printed: str) -> None:
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # as on Linux where nobody asks
    for stream, target in enumerate((os.devnull, printed, printed)):
        os.dup2(os.open(target, os.O_RDWR | os.O_APPEND), stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.orig_argv = words, [sys.executable, *words]
    ours = environment["PYTHONPATH"].split(os.pathsep)
    libraries = [place for place in sys.path if not Path(place).is_relative_to(SUPPORT.parent)]
    sys.path[:] = dict.fromkeys([folder, *ours, *libraries])
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
