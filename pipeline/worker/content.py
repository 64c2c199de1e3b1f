"""The files of an artifact: what a step wrote, and whether what the next one reads is just that.

A committed artifact is exactly the files that its manifest names. One file more, hidden or not, an
empty folder or a link is damage like a changed byte: a step that looks around (``rglob``) would see
it, and its result would stand under a key that knows nothing of it.
"""

import contextlib
import os
import shutil
from pathlib import Path, PurePosixPath

from pipeline.dag.files import FileEntry, describe
from pipeline.errors import TemperError
from pipeline.store.layout import Store
from pipeline.store.objects import strangers
from pipeline.store.stored import is_file
from pipeline.wire.spec import InputSpec


class DamagedInput(TemperError):
    """An input's bytes are not those that were committed."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


def fetch_input(store: Store, position: int, entry: InputSpec, folder: Path) -> None:
    """Download the files that an input must hold, if it holds no others.

    Raises:
        DamagedInput: it holds others, or lacks one.
        OSError: the store cannot be read.
    """
    _require_no_others(position, entry, store.objects.strangers(entry.content, entry.files))
    try:
        store.objects.get({f"{entry.content}/{name}": folder / name for name in entry.files})
    except FileNotFoundError as error:
        raise DamagedInput(position, f"the artifact of {entry.step} has lost a file") from error


def check_input(position: int, entry: InputSpec, folder: Path) -> None:
    """Refuse an input whose files are not those that were committed, and no others.

    Raises:
        DamagedInput: as it says.
    """
    _require_no_others(position, entry, strangers(str(folder), entry.files))
    for name, expected in entry.files.items():
        path = folder / name
        if not path.is_file() or describe(path) != expected:
            raise DamagedInput(position, f"{name} of the artifact of {entry.step} is damaged")


def _require_no_others(position: int, entry: InputSpec, others: list[str]) -> None:
    if others:
        raise DamagedInput(position, f"the artifact of {entry.step} holds {others[0]!r} besides")


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """What a step has written; finished, and flushed to disk before a manifest says it is there.

    Raises:
        TemperError: it wrote something that is no regular file, or under a name none can have.
    """
    files = {}
    if folder.is_symlink() or not folder.is_dir():
        raise TemperError("the step removed its output folder; write into it instead")
    _remove_empty_folders(folder)
    os.umask(mask := os.umask(0o022))
    for path in sorted(folder.rglob("*")):
        name = str(PurePosixPath(path.relative_to(folder)))
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise TemperError(f"the step wrote {name}, which is no regular file; write a copy")
        if not is_file(name):
            raise TemperError(f"the step wrote {name!r}; give it a name without '..'")
        if path.stat().st_nlink > 1:  # a file of somebody else's, who may write to it
            shutil.copyfile(path, copy := path.with_name(f".{path.name}.copy"))
            os.replace(copy, path)
        path.chmod(0o444 & ~mask)  # finished: to be read by whoever may read the store
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        files[name] = describe(path)
    return files


def _remove_empty_folders(folder: Path) -> None:
    """They are no part of an artifact: object stores have none."""
    for path, _, _ in os.walk(folder, topdown=False):
        if path != str(folder):
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(path)
