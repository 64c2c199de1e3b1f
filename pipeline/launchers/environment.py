"""The environment of the workers of every engine."""

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import FileFinder
from itertools import takewhile
from pathlib import Path

from pipeline.taken_names import require_ours
from pipeline.wire.lifeline import WORKER_ENVIRONMENT

UNOPTIMISED = {"PYTHONOPTIMIZE": ""}
"""Makes a worker run assertions, as they are code of the step: no key says whether they ran."""


def import_path(python: str = sys.executable) -> str:
    """A ``PYTHONPATH`` with which a worker imports the same modules as the driver, from the same
    places in the same order.

    It lacks the folders that Python itself puts last. With them, another Python that a step starts
    would import the driver's libraries in place of its own. (If the driver has put folders behind
    those, only the whole path has the same order.)

    Args:
        python: the worker's interpreter; one other than the driver's gets the whole path.

    Raises:
        TemperError: a file of the user has the name of our package and comes first on the path.
    """
    folders = [_where(entry) for entry in sys.path]
    require_ours(folders)
    return os.pathsep.join(_own(folders) if python == sys.executable else folders)


def _where(entry: str) -> str:
    """The folder that an entry of ``sys.path`` stands for: a relative one that was used for that
    in which it was used first, although the program has changed its working folder since."""
    finder = sys.path_importer_cache.get(entry)
    return os.path.abspath(finder.path if isinstance(finder, FileFinder) else entry)


def _own(folders: list[str]) -> list[str]:
    """The folders before those that Python itself puts last; all, if others are among these."""
    library = _library()
    own = list(takewhile(lambda folder: folder not in library, folders))
    usual = {*library, *_installed()}
    last = filter(os.path.exists, folders[len(own) :])
    return own if usual.issuperset(last) else folders


def _library() -> list[str]:
    """Where this Python has its standard library."""
    folder = sysconfig.get_path("stdlib")
    version = "".join(map(str, sys.version_info[:2]))
    return [f"{Path(folder).parent}/python{version}.zip", folder, f"{folder}/lib-dynload"]


def _installed() -> Iterator[str]:
    """Where this Python looks for packages that are installed."""
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        yield folder
        with suppress(OSError):
            for file in Path(folder).glob("*.pth"):
                lines = file.read_text(errors="replace").splitlines()
                yield from (os.path.abspath(os.path.join(folder, line.strip())) for line in lines)


def job_environment(python: str | None) -> dict[str, str]:
    """The environment of a worker whose engine does not pass on the driver's environment.

    Args:
        python: the worker's interpreter; None for the driver's.
    """
    return {
        "PYTHONPATH": import_path(python or sys.executable),
        **UNOPTIMISED,
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        WORKER_ENVIRONMENT: "1",
    }
