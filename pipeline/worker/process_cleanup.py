"""Clears up what a step function leaves behind in its process: open files, closed streams, forks.

A plain Python program writes out what open files have buffered when it ends, or when its garbage is
collected. A worker describes the output before that, and then ends without it (``os._exit``). So an
artifact could lack the end of a file, and nobody would notice.
"""

import _io  # its classes are not abstract: others cannot register with them
import contextlib
import gc
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DESCRIPTORS = "/proc/self/fd"
_ARCHIVES = (
    ("zipfile", "ZipFile", "filename"),
    ("tarfile", "TarFile", "name"),
    ("h5py", "File", "filename"),
    ("pyarrow.parquet", "ParquetWriter", "where"),
)
"""Classes that complete a file when they are closed, and are no files of Python themselves: module,
name, and the attribute with the path."""


def end_if_forked(worker: int, error: BaseException | None = None) -> None:
    """End this process if the step made it with ``os.fork`` and it has left the step function too.

    It is not the worker: it must write no report, and delete none of the worker's folders.
    """
    if os.getpid() == worker:
        return
    status = 0 if error is None else 1
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        status = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status & 0xFF)


def restore_streams() -> None:
    """Replace the standard streams that a step has closed, since errors are printed to them."""
    for name in ("stdout", "stderr"):
        stream, usual = getattr(sys, name), getattr(sys, f"__{name}__")
        if stream is None or stream.closed:
            is_usable = usual is not None and not usual.closed
            setattr(sys, name, usual if is_usable else open(os.devnull, "w"))  # noqa: SIM115


def close_files_below(folder: Path) -> None:
    """Close all files below a folder that this process has open. Whatever writes into one of them
    later gets an error."""
    prefix = f"{os.path.realpath(folder)}/"
    if not _has_open(prefix):
        return
    for file in _files(prefix):
        with contextlib.suppress(OSError, ValueError):
            is_standard = any(file is stream for stream in (sys.__stdout__, sys.__stderr__))
            (file.flush if is_standard else file.close)()
    restore_streams()


def _has_open(prefix: str) -> bool:
    """Whether this process has files below a folder open; true where the system does not tell."""
    try:
        return any(_path_of(number).startswith(prefix) for number in os.listdir(_DESCRIPTORS))
    except OSError:
        return True


def _path_of(descriptor: int | str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"{_DESCRIPTORS}/{descriptor}")
    return ""


def _files(prefix: str) -> Iterator[Any]:
    """The objects that hold files below a folder open; those that write into others first. A
    garbage collection would close some of them in the wrong order."""
    everything = gc.get_objects()
    for module, name, attribute in _ARCHIVES:
        if (cls := getattr(sys.modules.get(module), name, None)) is None:
            continue
        for item in everything:
            if issubclass(type(item), cls) and _is_below(getattr(item, attribute, None), prefix):
                yield item
    files = [item for item in everything if issubclass(type(item), _io._IOBase)]
    files.sort(key=_layer)
    yield from (file for file in files if _is_below(_descriptor(file), prefix))


def _layer(file: Any) -> int:
    """Text is written into compressed files and others of libraries, which write into buffers."""
    if isinstance(file, _io.TextIOWrapper):
        return 0
    if type(file).__module__ != "_io":
        return 1
    return 2 if isinstance(file, _io._BufferedIOBase) else 3


def _descriptor(file: Any) -> int | None:
    with contextlib.suppress(Exception):  # it has none, or is closed
        return file.fileno()
    return None


def _is_below(place: Any, prefix: str) -> bool:
    """Whether a path or a descriptor lies below a folder."""
    if isinstance(place, int):
        path = _path_of(place)
    elif isinstance(place, str | os.PathLike):
        path = os.path.realpath(os.fsdecode(place))
    else:
        return False
    return path.startswith(prefix)
