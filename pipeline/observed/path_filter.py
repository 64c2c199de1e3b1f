"""Says which files and folders count as dependencies of a step.

A file or folder *counts* unless it lies in a place that is no dependency or is in the key already:
libraries, the store, inputs, temporary folders, caches. If several rules match a path, the longest
prefix wins: code in ``/tmp/project`` counts although ``/tmp`` does not, and a store inside the
project does not count. What lies beside an input file counts like code.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.installed import OF_THE_INTERPRETER, folder_of_packages
from pipeline.base.processes import working_folder

_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/run")
_MADE_BY_TOOLS = ("/__pycache__/", ".egg-info/", ".dist-info/")
"""In paths that Python and installers write below a project, from what the project itself holds."""
_TEMPORARY = ("/tmp", "/var/tmp")
_CACHE_VARIABLES = ("HF_HOME", "TORCH_HOME", "MPLCONFIGDIR")
_ENDS_OF_CACHES = ("_CACHE", "_CACHE_DIR", "_CACHE_HOME")


@dataclass(frozen=True)
class Rules:
    """Which paths count; see the module docstring. All are absolute paths.

    Attributes:
        roots: folders of project code; everything below them counts.
        others: folders that do not count.
        package: the step's package, which is project code wherever it lies.
        start: the working folder in which the step starts.
        beside: the folders in which input files lie.
    """

    roots: tuple[str, ...]
    others: tuple[str, ...]
    package: str
    start: str = ""
    beside: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, package: str, roots: Iterable[str], known: Iterable[str], beside: Iterable[str] = ()
    ) -> "Rules":
        """The rules for these roots; nothing of ``known`` counts: the store, inputs and others."""
        others = (*_variants((*known, *_elsewhere())), os.path.expanduser("~/."))
        near = (folder for folder in _variants(beside) if folder not in others)
        return cls(tuple(_variants(roots)), others, package, working_folder(), tuple(near))

    @classmethod
    def read(cls, text: str) -> "Rules":
        """The rules whose fields were written as JSON."""
        roots, others, package, start, beside = json.loads(text)
        return cls(tuple(roots), tuple(others), package, start, tuple(beside))

    def counts(self, path: str) -> bool:
        """Whether a file or folder counts as a dependency."""
        below = f"{path}/"
        if any(name in below for name in _MADE_BY_TOOLS):
            return False
        longest = 0
        if below.startswith(self.others):  # a fast check, which decides most paths
            longest = max(len(other) for other in self.others if below.startswith(other))
        longest = max(longest, len(folder_of_packages(path)))
        return longest == 0 or _longest(below, (*self.roots, *self.beside)) > longest

    def is_project(self, path: str) -> bool:
        """Whether a path lies in a folder of project code."""
        return f"{path}/".startswith(self.roots) and self.counts(path)


def is_made_up(path: str) -> bool:
    """Whether a name names no file, like ``<string>``."""
    return os.path.basename(path).startswith("<")


def _longest(below: str, folders: Iterable[str]) -> int:
    """The length of the longest of the folders in which a path lies."""
    return max((len(folder) for folder in folders if below.startswith(folder)), default=0)


def _variants(folders: Iterable[str]) -> Iterator[str]:
    """Folders with a trailing slash, both as given and with symbolic links resolved."""
    paths = (p for f in folders for p in (os.path.abspath(f), os.path.realpath(f)))
    yield from sorted({f"{path.rstrip('/')}/" for path in paths} - {"/"})


def _elsewhere() -> Iterator[str]:
    """Folders of the machine, the interpreter and the user on which no result depends."""
    yield from (*_SYSTEM, *_TEMPORARY, tempfile.gettempdir())
    yield from (*OF_THE_INTERPRETER, sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    for name, value in os.environ.items():
        if names_a_cache(name) and os.path.isabs(value):
            yield value


def names_a_cache(variable: str) -> bool:
    """Whether an environment variable says where a cache lies, on which no result depends."""
    return variable in _CACHE_VARIABLES or variable.endswith(_ENDS_OF_CACHES)
