"""The parent of warm workers: ``python -m pipeline.worker.warm``, started by the local launcher.

A short step spends most of its time importing libraries. So a parent process imports the libraries
that steps of a run are certain to import, and forks a worker whenever a launcher requests
one. The worker then runs :mod:`pipeline.worker.attempt` like a fresh interpreter; a library appears
in ``sys.modules`` only when its step imports it (:mod:`pipeline.worker.hidden_packages`).

Forking is safe because the parent only imports, and because it checks the effects of each import.
It leaves out a library whose import leaves a thread, an open file or a signal handler behind, seeds
a random generator, loads project code, or reads a file that counts as a dependency; then it starts
again without that library. (OpenBLAS starts threads on import and ends them at a fork, so the
parent forks once before it checks.) It forks workers only for steps that are certain to import all
packages that it has imported. The workers of all other steps are forked by another parent, which
imports nothing, so they start while the first one imports. In case of doubt a step gets a fresh
interpreter.

The parent ends with its driver. If the parent dies, its workers continue.
"""

import contextlib
import gc
import importlib
import json
import locale
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from pipeline.code import shelf
from pipeline.code.imports import certain_imports
from pipeline.code.modules import in_library, is_core
from pipeline.observed.hook import witnessed
from pipeline.observed.rules import Rules
from pipeline.observed.states import state_of
from pipeline.wire import forking
from pipeline.wire.lifeline import ENVIRONMENT, be_ended_with_driver
from pipeline.worker import content, torchrun  # noqa: F401  (what a worker imports anyway)
from pipeline.worker.calling import project_roots
from pipeline.worker.hidden_packages import STARTED_WITH, Imported, noting

WORKER = "pipeline.worker.attempt"
_SIGNALS = sorted(signal.valid_signals())
_INTERPRETER = 100
"""The cost of starting an interpreter, in the unit of :func:`_size`: number of source files."""
_IMPORTED_HERE = 0.8
"""The time of an import without garbage collections; a fresh interpreter has the usual ones."""
_LOADS = {"transformers": ("torch", "safetensors")}
"""Packages most of which imports others, where these are installed."""


@dataclass(frozen=True)
class Choice:
    """The imports of a parent, and the step functions for which it forks workers."""

    imports: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()


def choose(
    functions: Sequence[str], certain: Mapping[str, Sequence[str]], without: Sequence[str] = ()
) -> Choice:
    """Choose the imports that save the most time: the common imports of all steps that import a
    certain package, for the best such package. If there is none, the parent imports nothing.

    Workers are forked for all steps that are certain to import all these packages, by themselves
    or through another of them.

    Args:
        functions: the functions of the steps that will run, once for each step.
        certain: the imports that each of these functions is certain to make.
        without: packages that must not be imported here.
    """
    counts = Counter(functions)
    lists = {f: [i for i in certain[f] if _package(i) not in without] for f in counts}
    found = {_package(item) for items in lists.values() for item in items}
    best, most = list[str](), 0.0
    for package in sorted(found):
        served = [f for f, items in lists.items() if package in map(_package, items)]
        shared = [i for i in lists[served[0]] if all(i in lists[other] for other in served)]
        count = sum(counts[function] for function in served)
        size = sum(map(_size, set(map(_package, shared))))
        saved = (count - 1) * _INTERPRETER + (count - _IMPORTED_HERE) * size
        if saved > most:
            best, most = shared, saved
    # small packages first, to find unfit ones early
    best.sort(key=lambda item: (_size(_package(item)), _package(item)))
    packages = set(map(_package, best))
    return Choice(tuple(best), frozenset(f for f in lists if packages <= _loaded_by(lists[f])))


def _loaded_by(imports: Iterable[str]) -> set[str]:
    packages = set(map(_package, imports))
    return packages.union(*(_LOADS.get(package, ()) for package in packages))


def import_all(
    imports: Sequence[str], rules: Rules, packages: Collection[str] = ()
) -> tuple[Imported, str | None]:
    """Import libraries. Also return the first package whose import makes forking unsafe, if any.

    Args:
        rules: decide which files count as dependencies.
        packages: the packages of the step functions.
    """
    imported = Imported()
    for package, items in groupby(imports, _package):
        before = _Traces.now()
        with witnessed(rules) as seen, noting(imported, package):
            for item in items:
                _import(item)
        _fork_once()
        imported.listed_in_vain[package] = [path for kind, path in seen if kind == "list"]
        is_used = any(kind != "list" or os.path.lexists(path) for kind, path in seen)
        if is_used or _Traces.now() != before or _has_project_code(imported, packages):
            return imported, package
    return imported, None


def main(wanted: Mapping[str, Any]) -> NoReturn:
    """Import the libraries, then fork workers until the driver ends."""
    functions, without = wanted["functions"], wanted["without"]
    lifeline = int(os.environ[ENVIRONMENT])
    be_ended_with_driver(lifeline)
    clean = _Traces.now()
    certain = {name: certain_imports(name) for name in {*functions}}
    wanted_packages = {_package(item) for items in certain.values() for item in items}
    known = filter(_was_unfit, wanted_packages)
    choice = choose(functions, certain, [*without, *known])
    control = socket.socket(fileno=wanted["control"])
    if others := {*functions} - choice.functions:
        control = _fork_importer(control, others, lifeline)
        functions = [name for name in functions if name in choice.functions]
        wanted = {**wanted, "functions": functions, "control": control.fileno()}
    packages = {_package(function) for function in functions}
    roots = {root for package in packages for root in project_roots(package)}
    with _uncollected():
        imported, unfit = import_all(choice.imports, Rules.of("", roots, ()), packages)
    if unfit is not None:
        _remember_unfit(unfit)
        clean.restore()
        _start_again({**wanted, "without": [*without, unfit]})
    gc.freeze()  # otherwise a collection in a worker would copy all memory pages
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


def _remember_unfit(package: str) -> None:
    """Spare the parents of later runs the attempt. A large package is tried each time, since it
    matters more whether it can be imported, which the environment may decide."""
    if _size(package) <= 2 * _INTERPRETER:
        shelf.save(_unfit(package), True)


def _was_unfit(package: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return shelf.load(_unfit(package)) is True
    return False


def _unfit(package: str) -> Path:
    spec = PathFinder.find_spec(package)
    file = spec.origin if spec is not None else None
    state = file and state_of(file)
    return shelf.place("unfit", json.dumps([sys.version, package, file, state]).encode())


@dataclass(frozen=True)
class _Traces:
    """The state of the process that a fork would share with workers, or lose."""

    threads: int
    files: tuple[str, ...]
    handlers: tuple[Any, ...]
    path: tuple[str, ...]
    folder: str
    mask: int
    limits: tuple[Any, ...]
    generators: tuple[Any, ...]

    @classmethod
    def now(cls) -> "_Traces":
        os.umask(mask := os.umask(0))
        limits = locale.setlocale(locale.LC_ALL), sys.getrecursionlimit()
        return cls(
            threads=len(os.listdir("/proc/self/task")),
            files=tuple(sorted(os.listdir("/proc/self/fd"))),
            handlers=tuple(map(signal.getsignal, _SIGNALS)),
            path=tuple(sys.path),
            folder=os.getcwd(),
            mask=mask,
            limits=(*limits, gc.isenabled(), gc.get_threshold()),
            generators=(random.getstate(), _numbers_seeded()),
        )

    def restore(self) -> None:
        """Undo the changes that survive an ``exec``."""
        os.chdir(self.folder)
        os.umask(self.mask)
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can set handlers
        for number, handler in zip(_SIGNALS, self.handlers, strict=True):
            if signal.getsignal(number) != handler:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


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
        paths = map(_file_of, self.imported.modules.values())
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
    clean, blocked = _Traces.now(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    environment = {**STARTED_WITH, **order.environment}

    def start_afresh(reason: str) -> NoReturn:
        print(f"this worker begins again in a fresh interpreter: {reason}", flush=True)
        clean.restore()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execve(sys.executable, [sys.executable, "-P", "-m", WORKER, order.spec_url], environment)

    return start_afresh


def _import(item: str) -> None:
    """Import a module or a name in it, and ignore errors."""
    module, _, name = item.partition(":")
    with contextlib.suppress(Exception):
        found = importlib.import_module(module)
        if name and not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


def _has_project_code(imported: Imported, packages: Collection[str]) -> bool:
    """Whether an import loaded project code, which a worker must load itself."""
    for name, module in imported.modules.items():
        file = _file_of(module)
        is_project = file is not None and not in_library(file) and not is_core(name)
        if is_project or _package(name) in packages:
            return True
    return False


def _file_of(module: ModuleType) -> str | None:
    """The file of a module; synthetic modules may name one that does not exist."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and os.path.isabs(file) else None


def _numbers_seeded() -> str | None:
    """The state of numpy's generator if it was seeded; a worker would have an unseeded one."""
    numbers = sys.modules.get("numpy.random")
    if numbers is None or numbers.get_bit_generator().seed_seq is not None:
        return None
    return repr(numbers.get_state(legacy=False))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collections in the block. They take a sixth of the time of large imports, and
    find next to nothing. A threshold of zero ends them; libraries may call ``gc.enable``."""
    usual = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _fork_once() -> None:
    """Fork once, since some libraries end their threads at a fork."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _package(item: str) -> str:
    return item.partition(":")[0].partition(".")[0]


@cache
def _size(package: str) -> int:
    """An estimate of the time to import a package: its number of source files."""
    spec = PathFinder.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = (name for folder in folders for _, _, names in os.walk(folder) for name in names)
    return sum(name.endswith(".py") for name in files)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
