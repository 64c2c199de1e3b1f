"""Workers as processes that are forked from an interpreter which has imported what all import.

A worker in an interpreter of its own costs a third of a second, nearly all of it for imports. A
fork is a process like any other: with its own session, environment, modules of the project and
audit hooks. One of these parents serves all tests of a process, and ends with it.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import NoReturn

import fsspec.config
import pytest

from pipeline.launchers import local
from pipeline.launchers.environment import import_path
from pipeline.launchers.warm_parent import Forked
from pipeline.wire import forking
from pipeline.wire.launcher import Task
from pipeline.wire.lifeline import ENVIRONMENT

WORKER = "pipeline.worker.attempt"
FRESH = local._Fresh
"""What starts a worker in an interpreter of its own."""


@cache
def _parent() -> socket.socket:
    ours, theirs = forking.connected()
    with theirs:
        parent = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": import_path(), "PYTHONUNBUFFERED": "1"},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        parent.wait()

    atexit.register(end)
    return ours


def _forked(task: Task, environment: Mapping[str, str], log: int, kept: Sequence[int]) -> Forked:
    """What the local launcher uses in place of a fresh interpreter."""
    (lifeline,) = kept  # a worker that keeps locks of devices needs an interpreter of its own
    answers, theirs = forking.connected()
    order = {"environment": dict(environment), "folder": os.getcwd(), "spec": task.spec_url}
    with theirs:
        files = [theirs.fileno(), log, lifeline]
        socket.send_fds(_parent(), [json.dumps(order).encode()], files)
    return Forked(answers)


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Let the local launcher fork its workers."""
    patch.setattr(local, "_Fresh", _forked)


# --- the parent ----------------------------------------------------------------------------------


def _serve(control: socket.socket) -> NoReturn:
    importlib.import_module(WORKER)
    ours = os.environ["PYTHONPATH"].split(os.pathsep)
    libraries = [folder for folder in sys.path if folder not in ours]
    gc.freeze()  # a collection in a worker would copy all of this
    workers: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                pid, answers = workers.pop(ready)
                os.close(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError), answers:
                    forking.send_status(answers, status)
                continue
            data, files, _, _ = socket.recv_fds(control, 2**20, 3)
            if not data:
                os._exit(0)
            answers = socket.socket(fileno=files[0])
            if (pid := os.fork()) == 0:
                for descriptor, (_, other) in workers.items():
                    os.close(descriptor)
                    other.close()
                control.close()
                _work(json.loads(data), answers, files[1], files[2], libraries)
            os.close(files[1])
            os.close(files[2])
            workers[descriptor := os.pidfd_open(pid)] = pid, answers
            poll.register(descriptor, select.POLLIN)


def _work(
    order: dict, answers: socket.socket, log: int, lifeline: int, libraries: list[str]
) -> NoReturn:
    os.setsid()
    with answers:
        if not forking.begin(answers):
            os._exit(0)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"], **{ENVIRONMENT: str(lifeline)})
    sys.path[:] = [*os.environ["PYTHONPATH"].split(os.pathsep), *libraries]
    fsspec.config.set_conf_env(fsspec.config.conf)  # it has read the variables of the parent
    importlib.invalidate_caches()
    sys.argv[:] = [sys.argv[0], order["spec"]]
    del sys.modules[WORKER]
    try:
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
    finally:
        os._exit(1)  # a worker ends itself


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
