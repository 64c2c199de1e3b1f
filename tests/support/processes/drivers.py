"""Drivers in processes and sessions of their own, for tests that kill or stop them.

An interpreter of its own spends half a second on imports of which these tests see nothing. So a
driver is forked from a server that has imported Temper, and so are its workers and their parents:
see :mod:`forked_workers`. What differs between an interpreter and a fork is tested with
interpreters.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import forked_workers
import fresh_processes
import pytest
from places import SUPPORT
from waiting import HANGS_SECONDS

from pipeline.uncaught import excepthook


def start_driver(code: str, *arguments: str | Path, is_parent: bool = False) -> "Driver":
    """Begins ``python -c CODE ARGUMENTS``, which finds what tests find."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    return Driver(["-c", code, *map(str, arguments)], Path.cwd(), environment, is_parent)


def printed_by(script: Path, *arguments: str, path: str = "") -> str:
    """What ``python SCRIPT ARGUMENTS`` prints in the script's folder, which must end well."""
    environment = {**os.environ, "PYTHONPATH": path}
    driver = Driver([script.name, *arguments], script.parent, environment)
    printed = driver.communicate()
    assert driver.returncode == 0, printed
    return printed


class Driver:
    """``python WORDS`` in a folder and an environment, forked; like ``subprocess.Popen``.

    Args:
        is_parent: its fresh workers are interpreters of their own, whose parent it is.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        is_parent: bool = False,
    ):
        self._printed = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._process = fresh_processes.start(
            _drive,
            list(words),
            str(folder),
            dict(environment),
            self._printed.name,
            None if is_parent else forked_workers.template(),
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

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> int:
        self._process.join(HANGS_SECONDS)
        assert self.returncode is not None, "the driver hangs"
        return self.returncode

    def communicate(self) -> str:
        """What it has printed at its end."""
        self.wait()
        return Path(self._printed.name).read_text("utf-8")


def _drive(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    printed: str,
    template: forked_workers.Template | None,
) -> None:
    os.setsid()
    if template is not None:
        forked_workers.use(template)
        forked_workers.fork_workers(patch := pytest.MonkeyPatch())
        forked_workers.fork_parents(patch)
    multiprocessing.set_start_method("fork", force=True)  # as on Linux where nobody asks
    fresh_processes.settle(folder, environment, printed)
    atexit.unregister(excepthook._end)  # a fork forgets it since Python 3.13
    atexit.register(excepthook._end)
    ours = environment["PYTHONPATH"].split(os.pathsep)
    libraries = [place for place in sys.path if not Path(place).is_relative_to(SUPPORT.parent)]
    sys.orig_argv = [sys.executable, *words]
    failed: BaseException | None = None
    try:
        if words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path[:] = dict.fromkeys([*ours, *libraries])
            program = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(program))
        else:
            sys.argv = words
            sys.path[:] = dict.fromkeys([str(Path(words[0]).resolve().parent), *ours, *libraries])
            runpy.run_path(os.path.abspath(words[0]), run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        # shown as by an interpreter, which then ends by status or signal
        failed = error
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    if isinstance(failed, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if failed is not None:
        sys.exit(1)
