"""Which files are installed, so that they are no code of a project.

A file is installed if it lies in a library folder of the interpreter, in a folder that is called
like one, or if the record of a distribution names it: ``pip install --target`` puts distributions
into any folder, which may be the project's own.
"""

import csv
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath

SHIPPED_STEPS = str(Path(__file__).parents[1] / "steps")
"""The package of the shipped steps, which is installed or checked out together with the core."""

_NAMES = ("/site-packages/", "/dist-packages/")


@lru_cache(maxsize=4096)
def in_library(file: str) -> bool:
    """Whether a file belongs to the interpreter or to an installed package."""
    if file.startswith(f"{SHIPPED_STEPS}{os.sep}"):
        return False
    path = PurePath(file)
    return bool(folder_of_packages(file)) or any(
        path.is_relative_to(folder) for folder in _OF_THE_INTERPRETER
    )


def folder_of_packages(path: str) -> str:
    """The innermost folder of installed packages that holds a file, with a slash at its end; empty
    if there is none, as for the standard library."""
    below = f"{path}/"
    end = max((below.rfind(name) + len(name) for name in _NAMES if name in below), default=0)
    return max(below[:end], _RECORDED.get(path, ""), key=len)


def _recorded() -> dict[str, str]:
    """The files of distributions in other folders of ``sys.path``, and their packages, each with
    that folder. A file of the project may lie beside them."""
    found: dict[str, str] = {}
    for entry in filter(os.path.isabs, sys.path):
        folder = os.path.normpath(entry)
        if not any(name in f"{folder}/" for name in _NAMES):
            for path in _records_in(folder):
                found[path] = f"{folder}/"
                package, _, name = path.rpartition("/")
                if name == "__init__.py" and package != folder:
                    found[package] = f"{folder}/"
    return found


def _records_in(folder: str) -> Iterator[str]:
    with suppress(OSError):  # no folder, or one that may not be listed
        for name in os.listdir(folder):
            if name.endswith(".dist-info"):
                with (
                    suppress(OSError, ValueError, csv.Error),  # half removed
                    open(f"{folder}/{name}/RECORD", encoding="utf-8", newline="") as lines,
                ):
                    for file, *_ in filter(None, csv.reader(lines)):
                        yield os.path.normpath(os.path.join(folder, file))


# Both now: inside the import hook, sysconfig would import its data half-initialised, and what the
# process of a step reads is observed.
_OF_THE_INTERPRETER = [
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
]
_RECORDED = _recorded()
