"""Closures that were walked before, kept on disk with every module that the walk asked for.

A walk is a function of its roots and of what the modules that it asks for are: which of them is
project code, and what its file says. So while all of these are what they were, the closure is what
it was. A project's steps share most of their code, and each of its files is read once.

Like the shelf, this is a cache of the machine's user, not of a store.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.code import shelf
from pipeline.code.modules import Modules


@dataclass(frozen=True)
class Walked:
    """What a walk found.

    Attributes:
        digest: of all the code.
        units: the digest of each unit, by its name.
        modules: those that were looked at.
        details: the units that are reached by way of execution details alone.
    """

    digest: str
    units: Mapping[str, str]
    modules: Sequence[str]
    details: Sequence[str]


def find(roots: str, modules: Modules) -> Walked | None:
    """What was found from these roots, while all that was asked for then is the same.

    Args:
        roots: all that a walk begins with, as text.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = shelf.load(_path(roots, modules))
        same = all(modules.print_of(name) == then for name, then in kept["asked"].items())
        if same and not any(map(modules.print_of, kept["no project code"])):
            return Walked(**kept["found"])
    return None


def keep(roots: str, modules: Modules, found: Walked) -> None:
    """Keep what has just been found in these modules."""
    prints = modules.prints()
    kept = {
        "found": asdict(found),
        "asked": {name: seen for name, seen in prints.items() if seen},
        "no project code": [name for name, seen in prints.items() if not seen],
    }
    shelf.save(_path(roots, modules), kept)


def _path(roots: str, modules: Modules) -> Path:
    about = [_WALKERS, sys.version, modules.home, modules.where, roots]
    return shelf.place("closures", json.dumps(about).encode())


_WALKERS = shelf.version_of(sorted(file.stem for file in Path(__file__).parent.glob("*.py")))
