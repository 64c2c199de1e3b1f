"""Caches closures on disk, with the fingerprints of the modules that the walk requested.

The result of a walk depends on its roots and on the modules that it requests: which of them are
project code, and the content of their files (`Modules.prints`). While none of these change, the
cached closure is valid. The steps of a project share most of their code, and each file is read
once.

Like the shelf, this cache belongs to the user of the machine, not to a store.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.code import shelf
from pipeline.code.modules import Modules


def recall(about: str, modules: Modules) -> Any:
    """The remembered value; ``None`` unless all modules then requested are unchanged."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = shelf.load(_path(about, modules))
        none = dict.fromkeys(kept["no project code"], "")
        if modules.are_still(kept["asked"]) and modules.are_still(none):
            return kept["found"]
    return None


def remember(about: str, modules: Modules, found: Any) -> None:
    """Cache a JSON value that depends on ``about`` and on the modules that were requested."""
    prints = modules.prints()
    kept = {
        "found": found,
        "asked": {name: seen for name, seen in prints.items() if seen},
        "no project code": [name for name, seen in prints.items() if not seen],
    }
    shelf.save(_path(about, modules), kept)


def _path(about: str, modules: Modules) -> Path:
    depends = [_WALKERS, sys.version, modules.home, modules.where, about]
    return shelf.place("closures", json.dumps(depends).encode())


_WALKERS = shelf.version_of("**/*.py")
