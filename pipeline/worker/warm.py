"""The parent of warm workers: ``python -m pipeline.worker.warm``, started by the local launcher.

A short step spends most of its time importing libraries. So a parent process imports the libraries
that steps of a run are certain to import, and forks a worker whenever a launcher requests
one. The worker then runs :mod:`pipeline.worker.attempt` like a fresh interpreter; a library appears
in ``sys.modules`` only when its step imports it
(:mod:`pipeline.worker.libraries.hidden_packages`).

Forking is safe because the parent only imports, and because it checks the effects of each import
(:mod:`pipeline.worker.libraries.warm_imports`); after an unsafe one it starts again without that
library. It forks workers only for steps that are certain to import all packages that it has
imported. The workers of all other steps are forked by another parent, which imports nothing, so
they start while the first one imports. In case of doubt a step gets a fresh interpreter.

The parent ends with its driver. If the parent dies, its workers continue.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pipeline.observed.file_fingerprints import state_of
from pipeline.observed.path_filter import Rules
from pipeline.wire import forking
from pipeline.wire.lifeline import ENVIRONMENT, be_ended_with_driver
from pipeline.worker import torchrun
from pipeline.worker.calling import project_roots
from pipeline.worker.libraries.certain_imports import certain_imports
from pipeline.worker.libraries.hidden_packages import STARTED_WITH, Imported
from pipeline.worker.libraries.warm_imports import (
    Choice,
    Traces,
    choose,
    file_of,
    import_all,
    package_of,
    remember_unfit,
    uncollected,
    was_unfit,
)

WORKER = "pipeline.worker.attempt"


def main(wanted: Mapping[str, Any]) -> NoReturn:
    """Import the libraries, then fork workers until the driver ends."""
    importlib.import_module(WORKER)  # with all that a worker imports anyway
    del sys.modules[WORKER]  # each worker runs it as its main module
    torchrun.forget_other_ranks()  # as its workers do, which find the environment unchanged
    functions, without = wanted["functions"], wanted["without"]
    lifeline = int(os.environ[ENVIRONMENT])
    be_ended_with_driver(lifeline)
    clean = Traces.now()
    certain = {name: certain_imports(name) for name in {*functions}}
    wanted_packages = {package_of(item) for items in certain.values() for item in items}
    known = filter(was_unfit, wanted_packages)
    choice = choose(functions, certain, [*without, *known])
    control = socket.socket(fileno=wanted["control"])
    if others := {*functions} - choice.functions:
        control = _fork_importer(control, others, lifeline)
        functions = [name for name in functions if name in choice.functions]
        wanted = {**wanted, "functions": functions, "control": control.fileno()}
    packages = {package_of(function) for function in functions}
    roots = {root for package in packages for root in project_roots(package)}
    with uncollected():
        imported, unfit = import_all(choice.imports, Rules.of("", roots, ()), packages)
    if unfit is not None:
        remember_unfit(unfit)
        clean.restore()
        _start_again({**wanted, "without": [*without, unfit]})
    _Parent(control, choice, imported, None).serve(lifeline)


def _fork_importer(control: socket.socket, others: Collection[str], lifeline: int) -> socket.socket:
    """Fork the parent that imports libraries, and return there the socket for its orders. This
    process imports nothing, serves the steps `others` from the start, and passes orders on."""
    ours, theirs = forking.connected()
    if os.fork() == 0:
        ours.close()
        control.close()
        theirs.set_inheritable(True)  # it may start again
        return theirs
    theirs.close()
    with open(os.devnull, "r+b") as nothing:  # what the imports print is not ours
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nothing.fileno(), stream.fileno())
    gc.freeze()
    _Parent(control, Choice(functions=frozenset(others)), Imported(), ours).serve(lifeline)


def _start_again(wanted: Mapping[str, Any]) -> NoReturn:
    program = [sys.executable, "-P", "-m", "pipeline.worker.warm", json.dumps(wanted)]
    try:
        os.execve(sys.executable, program, STARTED_WITH)
    finally:
        os._exit(1)


@dataclass
class _Parent:
    control: socket.socket
    choice: Choice
    imported: Imported
    rest: socket.socket | None
    workers: dict[int, tuple[int, socket.socket]] = field(default_factory=dict)
    """The process of each worker, and the socket that waits for its status, by descriptor."""

    def serve(self, lifeline: int) -> NoReturn:
        files = self._files()
        poll = select.poll()
        poll.register(lifeline, 0)  # its only event is that it is closed
        poll.register(self.control, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == lifeline:
                    os._exit(0)
                if descriptor != self.control.fileno():
                    poll.unregister(descriptor)
                    self._reap(descriptor)
                    continue
                if (received := forking.receive_order(self.control)) is None:
                    os._exit(0)
                order, answers, log = received
                is_served = order.function in self.choice.functions
                is_alone = len(os.listdir("/proc/self/task")) == 1
                if is_served and is_alone and self._files() == files:
                    worker = self._fork(order, answers, log)
                    poll.register(worker, select.POLLIN)
                else:
                    self._pass_on(order, answers, log)
                os.close(log)

    def _pass_on(self, order: forking.Order, answers: socket.socket, log: int) -> None:
        """Leave a step of the importing parent to it. Nobody starts a step that is in doubt."""
        with answers, contextlib.suppress(OSError):
            if self.rest is not None and order.function not in self.choice.functions:
                forking.send_order(self.rest, order, answers, log)

    def _files(self) -> dict[str, Any]:
        """The state of every imported file: a package may be replaced meanwhile."""
        paths = map(file_of, self.imported.modules.values())
        return {path: state_of(path) for path in paths if path}

    def _fork(self, order: forking.Order, answers: socket.socket, log: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._become(order, answers, log)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        descriptor = os.pidfd_open(pid)
        self.workers[descriptor] = pid, answers
        return descriptor

    def _reap(self, descriptor: int) -> None:
        """Kill the remaining processes of a worker that has ended, and send its status."""
        pid, answers = self.workers.pop(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with answers, contextlib.suppress(OSError):
            forking.send_status(answers, status)

    def _become(self, order: forking.Order, answers: socket.socket, log: int) -> NoReturn:
        """Turn the forked process into a worker."""
        os.setsid()
        self.control.close()
        if self.rest is not None:
            self.rest.close()
        for descriptor, (_, other) in self.workers.items():
            os.close(descriptor)
            other.close()
        printed = sys.stdout.fileno()
        output = os.pread(printed, os.fstat(printed).st_size, 0)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log, stream.fileno())
        os.close(log)
        with answers:
            if not forking.begin(answers):
                os._exit(0)
        if output:  # the output of imports
            os.write(sys.stdout.fileno(), output)
        if (numbers := sys.modules.get("numpy.random")) is not None:
            numbers.seed()  # as in a new process; Python reseeds its own generator after a fork
        importlib.invalidate_caches()  # folders may have changed since the parent read them
        sys.modules.pop("__mp_main__", None)  # another main module will run
        self.imported.hide(_start_afresh(order))
        os.environ.update(order.environment)
        sys.argv[:] = [sys.argv[0], order.spec_url]
        runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
        raise AssertionError("a worker ends itself")


def _start_afresh(order: forking.Order) -> Callable[[str], NoReturn]:
    """A function that replaces this process by a fresh interpreter, which runs the same attempt."""
    clean, blocked = Traces.now(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    environment = {**STARTED_WITH, **order.environment}

    def start_afresh(reason: str) -> NoReturn:
        print(f"this worker begins again in a fresh interpreter: {reason}", flush=True)
        clean.restore()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execve(sys.executable, [sys.executable, "-P", "-m", WORKER, order.spec_url], environment)

    return start_afresh


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
