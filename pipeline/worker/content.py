"""Checks the files of inputs, and describes the files that a step wrote.

A committed artifact consists of exactly the files that its manifest names. An additional file,
hidden or not, an empty folder or a link is damage, just like a changed byte: a step that searches
the folder (``rglob``) would find it, and its result would depend on something that its key does not
contain.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from pipeline.base.errors import TemperError
from pipeline.dag.files import FileEntry, describe
from pipeline.store.layout import Store
from pipeline.store.objects import strangers
from pipeline.store.untrusted_input import is_file
from pipeline.wire.spec import InputSpec

FLUSHERS = 16
"""Files that are flushed at once. A disk writes most of its journal once for all of them: 5,000
files of 2 kB take 2 s, where one after the other takes 20 s."""


class DamagedInput(TemperError):
    """The bytes of an input are not the committed ones."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


def fetch_input(store: Store, position: int, entry: InputSpec, folder: Path) -> None:
    """Download the files of an input, if it has exactly the expected files.

    Raises:
        DamagedInput: the input has other files, or lacks one.
        OSError: the store cannot be read.
    """
    _require_no_others(position, entry, store.objects.strangers(entry.content, entry.files))
    try:
        store.objects.get({f"{entry.content}/{name}": folder / name for name in entry.files})
    except FileNotFoundError as error:
        raise DamagedInput(position, f"the artifact of {entry.step} has lost a file") from error


def check_input(position: int, entry: InputSpec, folder: Path) -> None:
    """Raise `DamagedInput` unless an input has exactly the committed files."""
    _require_no_others(position, entry, strangers(str(folder), entry.files))
    for name, expected in entry.files.items():
        path = folder / name
        if not path.is_file() or describe(path) != expected:
            raise DamagedInput(position, f"{name} of the artifact of {entry.step} is damaged")


States = Mapping[str, tuple[int, int, int]]
"""Size, time of change of the content, and time of change of the inode, of each file. A program can
set the second one back, but not the third."""


def states_of(entry: InputSpec) -> States:
    """The states of the files of an input in a local store; files that are gone are left out."""
    found = {}
    for name in entry.files:
        with contextlib.suppress(FileNotFoundError):
            found[name] = _state(Path(entry.content, name))
    return found


def _state(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def require_unchanged(entry: InputSpec, before: States) -> None:
    """Raise `TemperError` if an input was changed while the step ran. (Files that were deleted, as
    by ``temper evict``, had been read before.)"""
    now = states_of(entry)
    touched = [name for name in now if now[name] != before.get(name)]
    changed = [n for n in touched if describe(Path(entry.content, n)) != entry.files[n]]
    if changed or (changed := strangers(entry.content, entry.files)):
        raise TemperError(
            f"{changed[0]} in the input from {entry.step} was written while the step ran; a step "
            "writes into its out alone"
        )


def _require_no_others(position: int, entry: InputSpec, others: list[str]) -> None:
    if others:
        raise DamagedInput(position, f"the artifact of {entry.step} holds {others[0]!r} besides")


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """Make the files that a step wrote read-only, flush them to disk, and describe them.

    Raises:
        TemperError: there is something else than regular files, a name is forbidden, or a file
            changed meanwhile.
        OSError: a file or folder cannot be read.
    """
    paths, files, states = {}, {}, {}
    if folder.is_symlink() or not folder.is_dir():
        raise TemperError("the step removed its output folder; write into it instead")
    _remove_empty_folders(folder)
    os.umask(mask := os.umask(0o022))
    for path in sorted(folder / name for name in strangers(str(folder), ())):
        name = str(PurePosixPath(path.relative_to(folder)))
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise TemperError(f"the step wrote {name}, which is no regular file; write a copy")
        if not is_file(name):
            raise TemperError(f"the step wrote {name!r}; give it a name without '..'")
        if path.stat().st_nlink > 1:  # a hard link: its other name may still be written to
            _replace_by_copy(path)
        path.chmod(0o444 & ~mask)  # readable by everybody who can read the store
        paths[name] = path
    every = list(paths.values())
    with ThreadPoolExecutor(FLUSHERS) as pool:
        parts = (every[first::FLUSHERS] for first in range(min(FLUSHERS, len(every))))
        list(pool.map(_flush, parts))
    for name, path in paths.items():
        states[name] = _state(path)
        files[name] = describe(path)
    _require_finished(folder, states)
    return files


def _flush(paths: Sequence[Path]) -> None:
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _replace_by_copy(path: Path) -> None:
    handle, copy = tempfile.mkstemp(prefix=".copy-", dir=path.parent)
    os.close(handle)
    shutil.copyfile(path, copy)
    os.replace(copy, path)


def _require_finished(folder: Path, states: States) -> None:
    """Raise `TemperError` if something still writes into the output: a manifest that describes half
    of a file would be damaged from the beginning."""
    changed = [n for n, s in states.items() if not (folder / n).exists() or _state(folder / n) != s]
    if changed := changed or strangers(str(folder), states):
        raise TemperError(
            f"{changed[0]} was written after the step had returned, by a thread or a program that "
            "the step started; wait for its end before you return"
        )


def _remove_empty_folders(folder: Path) -> None:
    """Empty folders are no part of an artifact: object stores do not have them."""
    for path, _, _ in os.walk(folder, topdown=False):
        if path != str(folder):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(path)
