"""Finds the modules of project code without importing them, and reads them on demand.

A module's file is the one that the import system would find, without importing its package.
*Project code* is all code outside the interpreter's library folders, the package of the step
function itself, and the steps that ship with Temper, since keys must not depend on whether these
are installed or checked out. The caching core, which is the top-level package of this module, is
not project code: it counts as a library.
"""

import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

import blake3

from pipeline.code.source import Module, read_module
from pipeline.errors import TemperError
from pipeline.installed import in_library

_CORE = __name__.partition(".")[0]
_PROGRAMS = ("__main__", "__mp_main__")
"""The program of a process: a planner's is another than a worker's, so it is no code of a step."""


class Modules:
    """The modules of project code, by name.

    Args:
        home: the module of the step function; its package is project code wherever it lies.
        script: the name and file of the module that runs as ``__main__``, if it is needed.
    """

    def __init__(self, home: str, script: dict[str, str]):
        self.home = home
        self._places: dict[str, _Place | None] = {n: _Place(file) for n, file in script.items()}
        self._modules: dict[str, Module | None] = {}
        self._files: dict[str, _File | None] = {}
        self._prints: dict[str, str] = {}

    def get(self, name: str) -> Module | None:
        """A module of project code; ``None`` for a library, or if there is no such module.

        Raises:
            TemperError: its file cannot be read or is not Python.
        """
        if name not in self._modules:
            file = self._file(name)
            self._modules[name] = None if file is None else file.parse(name)
        return self._modules[name]

    def prints(self) -> dict[str, str]:
        """The fingerprint of every module that has been requested. Names below a module that is no
        package are left out, nine of ten: that module's own fingerprint says that they are none."""
        return {n: self.print_of(n) for n in self._files if self._files[n] or self._may_have(n)}

    def _may_have(self, name: str) -> bool:
        """Whether a module of this name can exist while its parent's fingerprint stays."""
        parent = self._files.get(name.rpartition(".")[0])
        return parent is None or parent.is_package

    def print_of(self, name: str) -> str:
        """A fingerprint of everything that the result of `get` depends on, with its errors; empty
        if that is ``None``."""
        if (known := self._prints.get(name)) is not None:
            return known
        file = self._file(name)
        self._prints[name] = "" if file is None else file.fingerprint
        return self._prints[name]

    def are_still(self, prints: Mapping[str, str]) -> bool:
        """Whether these are the fingerprints of these modules."""
        known = self._prints.get  # steps share thousands of modules
        return all(known(n) == then or self.print_of(n) == then for n, then in prints.items())

    @property
    def where(self) -> str:
        """The location of the step function's module, which distinguishes two checkouts."""
        place = self._place(self.home)
        return str(place and (place.file or place.folders))

    def sources_of(self, names: Iterable[str]) -> dict[str, bytes]:
        """The content of the files of modules that have been read, by path."""
        files = (self._files.get(name) for name in sorted(names))
        return {f.path: f.content for f in files if f is not None and f.path and f.is_source}

    def _file(self, name: str) -> "_File | None":
        """The file of a project module, read once."""
        if name not in self._files:
            place = self._place(name)
            mine = place is not None and self._is_project(name, place)
            self._files[name] = _read(name, place) if place is not None and mine else None
        return self._files[name]

    def _place(self, name: str) -> "_Place | None":
        if name not in self._places:
            self._places[name] = _found(name, self._place)
        return self._places[name]

    def _is_project(self, name: str, place: "_Place") -> bool:
        if is_core(name):
            return name == self.home  # of a step in the core, only its own module counts
        at_home = name.partition(".")[0] == self.home.partition(".")[0]
        return at_home or place.file is None or not in_library(place.file)


def is_core(module: str) -> bool:
    """Whether a module belongs to the caching core."""
    return module.partition(".")[0] == _CORE


@dataclass(frozen=True)
class _Place:
    """The location of a module: its file, and for a package the folders of its submodules."""

    file: str | None
    folders: tuple[str, ...] | None = None


@dataclass(frozen=True)
class _File:
    """The file of a module; ``path`` is ``None`` for a package without ``__init__``."""

    path: str | None
    is_package: bool
    content: bytes = b""

    @property
    def is_source(self) -> bool:
        return self.path is not None and self.path.endswith(tuple(SOURCE_SUFFIXES))

    @cached_property
    def digest(self) -> str:
        return blake3.blake3(self.content).hexdigest()

    @property
    def fingerprint(self) -> str:
        return f"{self.path is None} {self.is_source} {self.is_package} {self.digest}"

    def parse(self, name: str) -> Module:
        if self.path is None:
            return Module(name)
        if self.is_source:
            return read_module(name, self.path, self.is_package, self.content)
        return Module(name, binary=self.digest[:16])


def _read(name: str, place: _Place) -> _File:
    if place.file is None:
        return _File(None, is_package=True)
    try:
        content = Path(place.file).read_bytes()
    except NotADirectoryError as error:
        raise TemperError(
            f"{name} lies in an archive ({place.file}), and steps are read from files; unpack it"
        ) from error
    except OSError as error:
        raise TemperError(f"cannot read {place.file}, the module {name}: {error}") from error
    return _File(place.file, place.folders is not None, content)


def _found(name: str, place_of: Callable[[str], _Place | None]) -> _Place | None:
    """The location where the import system would find a module, without importing its package."""
    if name in _PROGRAMS:
        return None
    spec = getattr(sys.modules.get(name), "__spec__", None)
    parent, _, _ = name.rpartition(".")
    try:
        if isinstance(spec, ModuleSpec):
            pass
        elif parent:
            package = place_of(parent)
            spec = _spec_in(name, package.folders or ()) if package is not None else None
        elif name in sys.modules:  # a module that has put an object in its own place
            spec = PathFinder.find_spec(name)
        else:
            spec = importlib.util.find_spec(name)
    except (AttributeError, ImportError, ValueError):  # a name that no module has
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    file = spec.origin if spec.has_location else None
    if file is None and folders is None:
        return None  # built into the interpreter
    return _Place(file, None if folders is None else tuple(folders))


def _spec_in(name: str, folders: Iterable[str]) -> ModuleSpec | None:
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
