"""Finds the modules of project code without importing them.

A module's file is the one that the import system would find, without importing its package.
*Project code* is all code outside the interpreter's library folders, the package of the step
function itself, and the steps that ship with Temper. The caching core is not project code: it
counts as a library.
"""

import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from pipeline.base.installed import in_library
from pipeline.trace.counted import BY_FILE
from pipeline.trace.sources import digest_of

_CORE = __name__.partition(".")[0]
_PROGRAMS = ("__main__", "__mp_main__")
"""The program of a process: a planner's is another than a worker's, so it is no code of a step."""


def is_core(module: str) -> bool:
    """Whether a module belongs to the caching core."""
    return module.partition(".")[0] == _CORE


class Modules:
    """Where the modules of a project lie now; each is looked for once.

    Args:
        home: the module of the step function; its package is project code wherever it lies.
        path: finds a file by its name in a trace.
    """

    def __init__(self, home: str, path: Callable[[str], str | None] = lambda _: None):
        self.home, self._path = home, path
        self._specs: dict[str, ModuleSpec | None] = {}
        self._had: dict[str, int] = {}
        self._contents: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}

    def file(self, name: str) -> str | None:
        """The source file of a module; ``None`` if there is none."""
        if BY_FILE in name:
            return self._path(name.partition(BY_FILE)[2].replace("//", ":"))
        spec = self._spec(name)
        return os.path.abspath(spec.origin) if spec and spec.has_location and spec.origin else None

    def has(self, name: str) -> int:
        """Whether the project has a module of this name: 1 for a folder that stands for a package
        without an ``__init__.py``, 2 for a file."""
        if BY_FILE in name:
            return 2
        if name not in self._had:
            top = name.partition(".")[0]
            is_project = self._is_project(top) if name == top else self.has(top)
            is_there = is_project and self._spec(name) is not None
            self._had[name] = is_there and (1 if self.file(name) is None else 2)
        return self._had[name]

    def content(self, name: str) -> bytes:
        """The bytes of a module's file, read once. Raise `OSError` if there is none."""
        if name not in self._contents:
            self._contents[name] = Path(self.file(name) or "").read_bytes()
        return self._contents[name]

    def digest(self, name: str) -> str:
        """The digest of the bytes of a module's file, which are hashed once."""
        if name not in self._digests:
            self._digests[name] = digest_of(self.content(name))
        return self._digests[name]

    def _is_project(self, top: str) -> bool:
        if is_core(top) or top in sys.builtin_module_names:
            return False
        if top == self.home.partition(".")[0]:
            return True
        spec = self._spec(top)
        if spec is None:
            return False
        folders = spec.submodule_search_locations or ()
        places = [spec.origin] if spec.has_location and spec.origin else [f"{f}/x" for f in folders]
        return not all(map(in_library, places))

    def _spec(self, name: str) -> ModuleSpec | None:
        if name not in self._specs:
            self._specs[name] = self._found(name)
        return self._specs[name]

    def _found(self, name: str) -> ModuleSpec | None:
        if not name or name in _PROGRAMS:
            return None
        parent = name.rpartition(".")[0]
        try:
            if parent:
                package = self._spec(parent)
                return _in(name, package.submodule_search_locations or ()) if package else None
            return next(filter(None, (_asked(finder, name) for finder in sys.meta_path)), None)
        except (AttributeError, ImportError, ValueError):  # a name that no module has
            return None


def _asked(finder: Any, name: str) -> ModuleSpec | None:
    """What a finder knows of a top-level module. What is imported already does not count: a worker
    must find what a planner finds."""
    return finder.find_spec(name, None) if hasattr(finder, "find_spec") else None


def _in(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """Like ``importlib``'s path finder, which would need the parent packages to be imported."""
    portions: list[str] = []
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions.extend(spec.submodule_search_locations or ())
    if not portions:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec
