"""Sees the files that native code and started programs open, by a library that is preloaded.

On Linux with the GNU C library, ``native.c`` stands before the functions of the C library that open
files, in a worker and in all that it starts. It is compiled when it is first needed, into the
caches of the user. Elsewhere, and where no compiler is found, only the audit hook observes, and a
step that starts a program has a notice. Programs that call the system directly are not seen.

Each line of ``native.c`` is ``["native", kind, relative, path, state, more]``, where the state is
that before the call. The kinds, each with what ``more`` is:

    r   reads a file
    l   looks at a path
    p   looks at a path, and not behind a link, as to resolve the links in a longer path
    d   lists a folder: its names
    w   writes a file anew: the name of a copy of what it was
    x   makes a file, unless one is there: such a copy
    a   appends to a file: such a copy
    c   changes a file in place: such a copy
    m   makes a folder
    o   made a temporary file
    s   asks where a symbolic link points: its target
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.base import user_cache
from pipeline.observed.file_fingerprints import (
    LINK,
    UNSTEADY,
    file_digest,
    folder_digest,
    names_digest,
)
from pipeline.observed.path_filter import Rules, is_made_up

_SOURCE = Path(__file__).with_suffix(".c")
_PRELOAD = "LD_PRELOAD"
_COMPILER_SECONDS = 60
NOTICE = (
    "it started a program, whose files are not seen here, so an edit of one does not make it run "
    "again; on Linux, a C compiler makes them seen"
)


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a program is observed, if that is possible here."""
    given = environment.get(_PRELOAD, "")
    path = _library()
    if path is None or path in given:
        return dict(environment)
    return {**environment, _PRELOAD: f"{given}:{path}" if given else path}


def be_preloaded() -> None:
    """Start this program again, with the same arguments, if it could be observed and is not."""
    if is_loaded() or "pipeline.worker.attempt" not in sys.orig_argv:  # or a fork of a parent
        return
    if (environment := preloaded(os.environ)) != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def is_loaded() -> bool:
    """Whether the library works in this process."""
    return _observe() is not None


def watch(folder: str) -> None:
    """Observe native code of this process for the observation in a folder; for none if empty."""
    if (observe := _observe()) is not None:
        observe(os.fsencode(folder), int(bool(folder)))


@cache
def _observe() -> Any:
    with suppress(AttributeError, OSError, TypeError):
        return ctypes.CDLL(None).temper_observe
    return None


@cache
def _library() -> str | None:
    """The compiled library; ``None`` where there can be none."""
    libc, _ = platform.libc_ver()
    if sys.platform != "linux" or libc != "glibc":
        return None
    about = f"{platform.machine()} {platform.libc_ver()}".encode() + _SOURCE.read_bytes()
    path = user_cache.place("native", about).with_suffix(".so")
    if not path.exists():
        with suppress(OSError, subprocess.SubprocessError):
            _compile(path)
    return str(path) if path.exists() and not {" ", ":"} & {*str(path)} else None


def _compile(path: Path) -> None:
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = f"{folder}/native.so"
        command = [compiler, "-O2", "-w", "-shared", "-fPIC", "-o", made, str(_SOURCE), "-ldl"]
        how: Any = {"check": True, "capture_output": True, "timeout": _COMPILER_SECONDS}
        subprocess.run(command, **how)
        tried = subprocess.run(["true"], env={**os.environ, _PRELOAD: made}, **how)
        if not tried.stderr:  # the loader can load it
            os.replace(made, path)


def write_rules(path: Path, rules: Rules, started: str) -> None:
    """Write what ``native.c`` reads: the working folder, the folder for the ``PYTHONPATH`` of what
    is started, and the folders that count and that do not."""
    known = [f"+{folder}" for folder in (*rules.roots, *rules.beside)]
    known += [f"-{folder}" for folder in rules.others]
    parts = [rules.start, started, *known]
    path.write_bytes(b"".join(os.fsencode(part) + b"\0" for part in parts))


def plain(records: Iterable[list[Any]], rules: Rules, folder: str) -> Iterator[list[Any]]:
    """The records of an observation with plain ones, as of the audit hook, in place of those of
    ``native.c``; ``forget`` takes back a look at a file that the step then wrote anew."""
    read = set[str]()
    for kind, *rest in records:
        if kind == "native":
            yield from _plain(rules, folder, read, *rest)
        else:
            read.update(rest[:1] if kind in ("read", "before") else ())
            yield [kind, *rest]


def _plain(
    rules: Rules, folder: str, read: set[str], kind: str, is_relative: bool, given: str, *about: Any
) -> Iterator[list[Any]]:
    state, more = about
    given = os.fsdecode(os.fsencode(given))
    path = os.path.normpath(given)
    if not rules.counts(path):
        return
    if is_relative:
        yield ["relative", path]
    for near in filter(given.startswith, rules.beside):
        yield ["beside", path, near]
    if kind == "x":
        kind = "w" if state is None else "l"
    is_project = rules.is_project(path) and not is_made_up(path)
    if kind in ("r", "l", "p"):
        if kind == "r" and state:
            read.add(path)
        is_above = any(root.startswith(f"{path}/") for root in (*rules.roots, f"{rules.start}/"))
        if state or (is_project and (state is None or not (is_above or kind == "p"))):
            yield ["read", path, state]
    elif kind == "d":
        if state is not None or is_project:
            yield ["list", path, folder_digest(path) if more is None else names_digest(more)]
    elif kind == "s":
        if more and is_project:
            yield ["link", path, f"{LINK} {more}"]
    elif state is None or kind == "o":  # a folder that is moved there is the step's as a whole
        yield ["write" if kind in ("c", "o") else "make", path]
    elif state and kind == "w" and path not in read:
        yield from (["forget", path], ["write", path])
    elif state:
        digest = _digest(folder, more)
        yield ["kept", path, state, digest] if kind == "a" else ["before", path, state, digest]
        if kind != "c":
            yield ["write", path]


def _digest(folder: str, copy: str | None) -> str:
    with suppress(OSError):
        return UNSTEADY if copy is None else file_digest(f"{folder}/{copy}")
    return UNSTEADY
