"""Caches closures on disk, with the fingerprint of every module that the walk requested.

The result of a walk depends on its roots and on the modules that it requests: which of them are
project code, and the content of their files. While none of these change, the cached closure is
valid. The steps of a project share most of their code, and each file is read once.

Like the shelf, this cache belongs to the user of the machine, not to a store.
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
    """The result of a walk.

    Attributes:
        digest: the digest of all the code.
        units: the digest of each unit, by name.
        modules: the modules that the walk looked at.
        details: the units that are reached only through execution details.
    """

    digest: str
    units: Mapping[str, str]
    modules: Sequence[str]
    details: Sequence[str]


def find(roots: str, modules: Modules) -> Walked | None:
    """The cached result of a walk from these roots, if all requested modules are unchanged.

    Args:
        roots: the starting points of the walk, as text.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = shelf.load(_path(roots, modules))
        same = all(modules.print_of(name) == then for name, then in kept["asked"].items())
        if same and not any(map(modules.print_of, kept["no project code"])):
            return Walked(**kept["found"])
    return None


def keep(roots: str, modules: Modules, found: Walked) -> None:
    """Cache the result of a walk over these modules."""
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
