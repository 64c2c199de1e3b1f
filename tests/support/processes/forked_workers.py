"""Workers, and the parents of warm workers, that are forked from an interpreter which has imported
what all of them import.

Each in an interpreter of its own costs a quarter of a second, nearly all of it for imports. A fork
is a process like any other: with its own session, environment, modules of the project and audit
hooks. One :mod:`worker_template` serves all tests of a process and the drivers that they start, and
ends with it.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import IO, Any

import pytest
import worker_template

from pipeline.launchers import local, warm_parent
from pipeline.launchers.environment import UNOPTIMISED, import_path
from pipeline.launchers.warm_parent import Forked
from pipeline.observed import native
from pipeline.wire import forking
from pipeline.wire.launcher import Task

_FRESH = local._Fresh
_TEMPLATE = """
import os, runpy, worker_template
try:
    runpy.run_module(worker_template.serve(), run_name="__main__", alter_sys=True)
finally:
    os._exit(1)  # workers and their parents end themselves
"""
_OF_A_LAUNCHER = {"PYTHONUNBUFFERED": "1", **UNOPTIMISED}


Template = tuple[socket.socket, Mapping[str, str]]
"""Where it takes orders, and what of its environment Python reads as it starts."""
_used: list[Template] = []


def template() -> Template:
    """The one that this process uses."""
    return _used[0] if _used else _started()


def use(theirs: Template) -> None:
    """Let this process, a driver, use that of the tests."""
    _used[:] = [theirs]


@cache
def _started() -> Template:
    ours, theirs = forking.connected()
    environment = native.preloaded({**os.environ, **_OF_A_LAUNCHER, "PYTHONPATH": import_path()})
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _TEMPLATE, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        process.kill()  # drivers that tests left behind have its socket, too
        process.wait()

    atexit.register(end)
    return ours, _of_python(environment)


def _of_python(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Such as the seed of hashes, which a fork cannot change any more."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("PYTHON") and name != "PYTHONPATH"
    }


def _fork(
    module: str, argument: str, environment: Mapping[str, str], files: Sequence[int]
) -> socket.socket:
    """Let a module run in a fork with this environment, whose output goes to the first file; where
    the fork answers."""
    answers, theirs = forking.connected()
    order = {
        "module": module,
        "argument": argument,
        "environment": dict(environment),
        "folder": os.getcwd(),
    }
    with theirs:
        files = [theirs.fileno(), *files]
        socket.send_fds(template()[0], [json.dumps(order).encode()], files)
    return answers


def _forked(task: Task, environment: Mapping[str, str], log: int, kept: Sequence[int]) -> Any:
    """What the local launcher uses in place of a fresh interpreter."""
    if not _can_be_forked(environment):
        return _FRESH(task, environment, log, kept)
    (lifeline,) = kept  # a worker that keeps locks of devices needs an interpreter of its own
    return Forked(_fork(worker_template.WORKER, task.spec_url, environment, [log, lifeline]))


def _can_be_forked(environment: Mapping[str, str]) -> bool:
    return _of_python(environment) == template()[1]


def _started_parent(words: Sequence[str], *, env: Mapping[str, str], **given: Any) -> Any:
    """What a run uses in place of ``subprocess`` for the parent of its warm workers."""
    start = _ForkedParent if _can_be_forked(env) else subprocess.Popen
    return start(words, env=env, **given)


class _ForkedParent:
    def __init__(
        self,
        words: Sequence[str],
        *,
        stdout: IO[bytes],
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        **_: Any,
    ):
        module, argument = words[-2:]
        files = [stdout.fileno(), *pass_fds]
        self._answers = _fork(module, argument, env, files)
        begun = forking.receive_answer(self._answers)
        assert isinstance(begun, forking.Started)
        self.pid, self._descriptor = begun.pid, begun.descriptor

    def wait(self) -> None:
        with self._answers:
            forking.is_readable(self._descriptor, None)
            os.close(self._descriptor)


class Job:
    """A worker that an engine has started, as ``subprocess.Popen`` would describe it."""

    returncode: int | None = None

    def __init__(self, spec_url: str, environment: Mapping[str, str], log: IO[bytes]):
        self._answers = _fork(worker_template.WORKER, spec_url, environment, [log.fileno()])
        begun = forking.receive_answer(self._answers)
        assert isinstance(begun, forking.Started)
        self.pid, self._descriptor = begun.pid, begun.descriptor

    def poll(self, seconds: float | None = 0) -> int | None:
        if self.returncode is None and forking.is_readable(self._answers, seconds):
            ended = forking.receive_answer(self._answers)
            assert isinstance(ended, forking.Status)
            self.returncode = ended.status
            self._answers.close()
            os.close(self._descriptor)
        return self.returncode

    def wait(self, seconds: float | None = None) -> int:
        status = self.poll(seconds)
        assert status is not None, "the job hangs"
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Let the local launcher fork its workers."""
    patch.setattr(local, "_Fresh", _forked)


def fork_parents(patch: pytest.MonkeyPatch) -> None:
    """Let the local launcher fork the parents of its warm workers."""
    starts = SimpleNamespace(
        Popen=_started_parent, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
    )
    patch.setattr(warm_parent, "subprocess", starts)
