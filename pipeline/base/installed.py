"""Which files are installed, so that they are no code of a project.

A file is installed if it lies in a library folder of the interpreter, in a folder that is called
like one, or if the record of a distribution names it: ``pip install --target`` puts distributions
into any folder of ``sys.path``, which may be the project's own. There people edit libraries, too. A
file that is not as its record says is code of the project.
"""

import base64
import csv
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path

SHIPPED_STEPS = str(Path(__file__).parents[2] / "steps")
"""The package of the shipped steps, which is installed or checked out together with the core."""

_DISTRIBUTION = "temper-ml"
_NAMES = ("/site-packages/", "/dist-packages/")


def in_library(file: str) -> bool:
    """Whether a file belongs to the interpreter or to an installed package."""
    if file.startswith(f"{SHIPPED_STEPS}{os.sep}"):
        return False
    return file.startswith(OF_THE_INTERPRETER) or bool(folder_of_packages(file))


def folder_of_packages(path: str) -> str:
    """The innermost folder of installed packages that holds a file, with a slash at its end; empty
    if there is none, as for the standard library."""
    below = f"{path}/"
    end = max((below.rfind(name) + len(name) for name in _NAMES if name in below), default=0)
    return max(below[:end], _RECORDS.folder_of(path), key=len)


def releases() -> Mapping[str, str]:
    """The releases in ``steps/releases.json`` by the modules of the shipped steps; none in a
    checkout, and none once a file of these steps is not as it was installed."""
    record = dict(_record_of_steps())
    there = {str(file) for file in Path(SHIPPED_STEPS).rglob("*.py")}
    if not record or there - record.keys() or not all(_is_still(*file) for file in record.items()):
        return {}
    package = Path(SHIPPED_STEPS)
    numbers = json.loads((package / "releases.json").read_bytes())
    return {f"{package.name}.{name}": str(number) for name, number in numbers.items()}


def _record_of_steps() -> Iterator[tuple[str, str]]:
    """The files of the shipped steps as the record of their distribution names them."""
    with suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution(_DISTRIBUTION).files or ():
            path = os.path.normpath(str(file.locate()))
            if file.hash is not None and path.startswith(f"{SHIPPED_STEPS}{os.sep}"):
                yield path, f"{file.hash.mode}={file.hash.value}"


def settle() -> None:
    """Read no more records: what is in a folder that a step adds to ``sys.path`` is unknown to
    plans, so it must not count as installed."""
    _RECORDS.is_settled = True


class _Records:
    """The files of distributions in folders of ``sys.path`` that are not called like a library's,
    and their packages. A file of the project may lie beside them."""

    def __init__(self) -> None:
        self.is_settled = False
        self._path: list[str] = []
        self._read: set[str] = set()
        self._found: dict[str, tuple[str, str]] = {}

    def folder_of(self, path: str) -> str:
        """The folder that holds the distribution of a file, with a slash at its end; empty if no
        distribution has the file, or if it was edited."""
        if not self.is_settled and self._path != sys.path:
            self.read()
        folder, digest = self._found.get(path, ("", ""))
        return folder if not digest or _is_still(path, digest) else ""

    def read(self) -> None:
        """Read the records in folders that ``sys.path`` did not have before."""
        self._path = [*sys.path]
        for entry in self._path:
            if not isinstance(entry, str):
                continue  # Python looks for no module there
            with suppress(OSError, ValueError):  # the working folder is gone, or this is no path
                folder = os.path.abspath(entry)
                if folder not in self._read and not any(name in f"{folder}/" for name in _NAMES):
                    self._read.add(folder)
                    self._read_in(folder)

    def _read_in(self, folder: str) -> None:
        for path, digest in _recorded_in(folder):
            self._found[path] = f"{folder}/", digest
            package, _, name = path.rpartition("/")
            if name == "__init__.py" and package != folder:
                self._found[package] = f"{folder}/", ""


def _recorded_in(folder: str) -> Iterator[tuple[str, str]]:
    """The files in a folder that records there name with a digest, and that digest."""
    for name in os.listdir(folder):
        if name.endswith(".dist-info"):
            with (
                suppress(OSError, ValueError, csv.Error),  # half removed
                open(f"{folder}/{name}/RECORD", encoding="utf-8", newline="") as lines,
            ):
                for file, digest, *_ in (row for row in csv.reader(lines) if len(row) > 1):
                    path = os.path.normpath(os.path.join(folder, file))
                    if digest and path.startswith(f"{folder}/"):
                        yield path, digest


def _is_still(path: str, digest: str) -> bool:
    """Whether a file has the digest of a record, as in ``sha256=…``."""
    try:
        now = os.stat(path)
        return _has(path, digest, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    except (OSError, ValueError):  # there is no such file, or no such digest
        return False


@lru_cache(maxsize=65536)
def _has(path: str, digest: str, *_state: int) -> bool:
    algorithm, _, expected = digest.partition("=")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=") == expected.encode()


# now: inside the import hook, sysconfig would import its data half-initialised
OF_THE_INTERPRETER = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_RECORDS = _Records()
_RECORDS.read()
