"""The modules of project code, found without importing them and read when asked for.

A module lies where the import system would find it, asked without importing its package.
*Project code* is what does not lie in the interpreter's library folders, and whatever package the
step function itself is in. The caching core, the top-level package that this module is in, is not
project code: what a step takes from it is like a library's.
"""

import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec
from pathlib import Path, PurePath

import blake3

from pipeline.code.source import Module, read_module
from pipeline.errors import TemperError

_CORE = __name__.partition(".")[0]


class Modules:
    """Project code by the names of its modules.

    Args:
        home: the module of the step function, whose package is project code wherever it lies.
        script: the name and file of the module that runs as ``__main__``, where that is needed.
    """

    def __init__(self, home: str, script: dict[str, str]):
        self._home = home
        self._places: dict[str, _Place | None] = {n: _Place(file) for n, file in script.items()}
        self._modules: dict[str, Module | None] = {}

    def get(self, name: str) -> Module | None:
        """A module of project code; ``None`` for a library or where there is none.

        Raises:
            TemperError: its file cannot be read or is not Python.
        """
        if name not in self._modules:
            place = self._place(name)
            mine = place is not None and self._is_project(name, place)
            self._modules[name] = _read(name, place) if place is not None and mine else None
        return self._modules[name]

    def _place(self, name: str) -> "_Place | None":
        if name not in self._places:
            self._places[name] = _found(name, self._place)
        return self._places[name]

    def _is_project(self, name: str, place: "_Place") -> bool:
        if is_core(name):
            return name == self._home  # a step of the core: itself alone
        at_home = name.partition(".")[0] == self._home.partition(".")[0]
        return at_home or place.file is None or not in_library(place.file)


def is_core(module: str) -> bool:
    """Whether a module belongs to the caching core."""
    return module.partition(".")[0] == _CORE


@dataclass(frozen=True)
class _Place:
    """Where a module lies: its file, and for a package the folders of its submodules."""

    file: str | None
    folders: tuple[str, ...] | None = None


def _found(name: str, place_of: Callable[[str], _Place | None]) -> _Place | None:
    """Where the import system would find a module, asked without importing its package."""
    imported = sys.modules.get(name)
    parent, _, _ = name.rpartition(".")
    try:
        if imported is not None:
            spec = imported.__spec__
        elif not parent:
            spec = importlib.util.find_spec(name)
        else:
            package = place_of(parent)
            spec = _spec_in(name, package.folders or ()) if package is not None else None
    except (AttributeError, ImportError, ValueError):  # no spec, or a name that no module has
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    file = spec.origin if spec.has_location else None
    if file is None and folders is None:
        return None  # built into the interpreter
    return _Place(file, None if folders is None else tuple(folders))


def _spec_in(name: str, folders: Iterable[str]) -> ModuleSpec | None:
    """As the path finder of ``importlib``, which wants the parents of a module imported first."""
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


def _read(name: str, place: _Place) -> Module:
    if place.file is None:
        return Module(name)
    try:
        content = Path(place.file).read_bytes()
    except OSError as error:
        raise TemperError(f"cannot read {place.file}, the module {name}: {error}") from error
    if place.file.endswith(tuple(SOURCE_SUFFIXES)):
        return read_module(name, place.file, place.folders is not None, content)
    return Module(name, binary=blake3.blake3(content).hexdigest()[:16])


@lru_cache(maxsize=4096)
def in_library(file: str) -> bool:
    """Whether a file belongs to the interpreter or to an installed package."""
    path = PurePath(file)
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(
        path.is_relative_to(folder) for folder in _library_folders()
    )


@cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name) for name in names)
