"""Which libraries the parent of warm workers imports, and whether it may fork after each import.

The parent may not fork workers after the import of a library that leaves a thread, an open file or
a signal handler behind, seeds a random generator, loads project code, or reads a file that counts
as a dependency. (OpenBLAS starts threads on import and ends them at a fork, so the parent forks
once before it checks, if there are threads.)
"""

import contextlib
import gc
import importlib
import json
import locale
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline.base import user_cache
from pipeline.base.installed import in_library
from pipeline.observed.file_fingerprints import state_of
from pipeline.observed.hook import witnessed
from pipeline.observed.path_filter import Rules
from pipeline.trace.modules import is_core
from pipeline.worker.libraries.hidden_packages import Imported, noting

_SIGNALS = sorted(signal.valid_signals())
_INTERPRETER = 100
"""The cost of starting an interpreter, in the unit of :func:`_size`: number of source files."""
_IMPORTED_HERE = 0.8
"""The time of an import without garbage collections; a fresh interpreter has the usual ones."""
_LOADS = {"transformers": ("torch", "safetensors", "numpy")}
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
    lists = {f: [i for i in certain[f] if package_of(i) not in without] for f in counts}
    found = {package_of(item) for items in lists.values() for item in items}
    best, most = list[str](), 0.0
    for package in sorted(found):
        served = [f for f, items in lists.items() if package in map(package_of, items)]
        shared = [i for i in lists[served[0]] if all(i in lists[other] for other in served)]
        count = sum(counts[function] for function in served)
        size = sum(map(_size, set(map(package_of, shared))))
        saved = (count - 1) * _INTERPRETER + (count - _IMPORTED_HERE) * size
        if saved > most:
            best, most = shared, saved
    # small packages first, to find unfit ones early
    best.sort(key=lambda item: (_size(package_of(item)), package_of(item)))
    packages = set(map(package_of, best))
    return Choice(tuple(best), frozenset(f for f in lists if packages <= _loaded_by(lists[f])))


def _loaded_by(imports: Iterable[str]) -> set[str]:
    packages = set(map(package_of, imports))
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
    for package, items in groupby(imports, package_of):
        before = Traces.now()
        with witnessed(rules) as seen, noting(imported, package):
            for item in items:
                _import(item)
        _end_threads()
        imported.listed_in_vain[package] = [path for kind, path in seen if kind == "list"]
        is_used = any(kind != "list" or os.path.lexists(path) for kind, path in seen)
        if is_used or Traces.now() != before or _has_project_code(imported, packages):
            return imported, package
    return imported, None


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collections in the block, and none later of what it leaves behind. Collections
    take a sixth of the time of large imports and find next to nothing; in a worker they would copy
    all memory pages. A threshold of zero ends them; libraries may call ``gc.enable``."""
    usual = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.freeze()  # first: a collection of all that is new would follow at once
        gc.set_threshold(*usual)


def remember_unfit(package: str) -> None:
    """Spare the parents of later runs the attempt. A large package is tried each time, since it
    matters more whether it can be imported, which the environment may decide."""
    if _size(package) <= 2 * _INTERPRETER:
        user_cache.save(_unfit(package), True)


def was_unfit(package: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return user_cache.load(_unfit(package)) is True
    return False


def _unfit(package: str) -> Path:
    return _place("leaves traces", package)


def _place(kind: str, package: str) -> Path:
    """Where to keep a fact about a package, until its first file changes."""
    spec = PathFinder.find_spec(package)
    file = spec.origin if spec is not None else None
    state = file and state_of(file)
    return user_cache.place(kind, json.dumps([sys.version, package, file, state]).encode())


@dataclass(frozen=True)
class Traces:
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
    def now(cls) -> "Traces":
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
        file = file_of(module)
        is_project = file is not None and not in_library(file) and not is_core(name)
        if is_project or package_of(name) in packages:
            return True
    return False


def file_of(module: ModuleType) -> str | None:
    """The file of a module; synthetic modules may name one that does not exist."""
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and os.path.isabs(file) else None


def _numbers_seeded() -> str | None:
    """The state of numpy's generator if it was seeded; a worker would have an unseeded one."""
    numbers = sys.modules.get("numpy.random")
    if numbers is None or numbers.get_bit_generator().seed_seq is not None:
        return None
    return repr(numbers.get_state(legacy=False))


def _end_threads() -> None:
    """Fork once if there are threads, since some libraries end theirs at a fork."""
    if len(os.listdir("/proc/self/task")) == 1:
        return  # after a fork, the first write to each page of memory is a fault
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def package_of(item: str) -> str:
    return item.partition(":")[0].partition(".")[0]


@cache
def _size(package: str) -> int:
    """An estimate of the time to import a package: its number of source files, at some time."""
    place = _place("size", package)
    with contextlib.suppress(OSError, ValueError):
        return int(user_cache.load(place))
    spec = PathFinder.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    files = (name for folder in folders for _, _, names in os.walk(folder) for name in names)
    size = sum(name.endswith(".py") for name in files)
    user_cache.save(place, size)
    return size
