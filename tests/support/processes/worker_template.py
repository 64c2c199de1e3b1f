"""A process that has imported what every worker and every parent of warm workers imports, and forks
them: see :mod:`forked_workers`. It imports nothing of the tests and no library of theirs, since its
forks are to find only what a fresh interpreter finds. So this module is gone in a fork, also from
the stack, where it would be code of the project that asks for files.
"""

import gc
import importlib
import json
import os
import select
import socket
import sys
from contextlib import suppress

import fsspec.config

from pipeline.base import processes
from pipeline.wire import forking
from pipeline.wire.lifeline import ENVIRONMENT
from pipeline.worker.libraries import hidden_packages

WORKER, PARENT = "pipeline.worker.attempt", "pipeline.worker.warm"
_MOST_FILES = 4


def serve() -> str:
    """Forks for each order, until nobody can send any; returns in a fork, with the name of the
    module that is to be the program."""
    for module in (WORKER, PARENT):
        importlib.import_module(module)
    control = socket.socket(fileno=int(sys.argv[1]))
    ours = os.environ["PYTHONPATH"].split(os.pathsep)
    libraries = [folder for folder in sys.path if folder not in ours]
    gc.freeze()  # a collection in a fork would copy all of this
    forks: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                pid, answers = forks.pop(ready)
                os.close(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError), answers:
                    forking.send_status(answers, status)
                continue
            data, files, _, _ = socket.recv_fds(control, 2**20, _MOST_FILES)
            if not data:
                os._exit(0)
            answers = socket.socket(fileno=files[0])
            if (pid := os.fork()) == 0:
                for descriptor, (_, other) in forks.items():
                    os.close(descriptor)
                    other.close()
                control.close()
                return _become(json.loads(data), answers, files[1:], libraries)
            for file in files[1:]:
                os.close(file)
            forks[descriptor := os.pidfd_open(pid)] = pid, answers
            poll.register(descriptor, select.POLLIN)


def _become(order: dict, answers: socket.socket, files: list[int], libraries: list[str]) -> str:
    """Turn the fork into what an interpreter with this environment would be."""
    printed, *inherited = files
    os.setsid()
    with answers:
        if not forking.begin(answers):
            os._exit(0)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.close(printed)
    for file in inherited:
        os.set_inheritable(file, True)  # it may start another program in its place
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    if inherited:  # a job has no lifeline
        os.environ[ENVIRONMENT] = str(inherited[0])
    processes.STARTED_WITH = dict(os.environ)
    hidden_packages.STARTED_WITH.clear()
    hidden_packages.STARTED_WITH.update(os.environ)
    sys.path[:] = dict.fromkeys([*os.environ["PYTHONPATH"].split(os.pathsep), *libraries])
    fsspec.config.set_conf_env(fsspec.config.conf)  # it has read the variables of this process
    importlib.invalidate_caches()
    module, argument = order["module"], order["argument"]
    if module == PARENT:
        argument = json.dumps({**json.loads(argument), "control": inherited[1]})
    sys.argv[:] = [str(sys.modules[module].__file__), argument]
    sys.orig_argv[:] = [sys.executable, "-P", "-m", module, argument]
    for name in (WORKER, PARENT, __name__):
        del sys.modules[name]
    return module
