"""Hides the packages that a worker's parent imported, until the worker's step imports them.

A warm worker must behave like a fresh one. So the packages that its parent imported are removed
from ``sys.modules``, and a finder is put before all others. When the step imports one of these
packages, the finder restores it, together with the packages that it imported. This requires that
nothing on which an import may depend has changed since the parent imported it: the environment, the
working folder, and where and how Python looks for modules. If the step's code has changed any of
these, the worker starts again as a fresh interpreter.
"""

import builtins
import copy
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pipeline.base.installed import in_library

_OURS = "TEMPER_"
"""The prefix of variables that driver and worker exchange; no library reads them."""


@dataclass(frozen=True)
class Imported:
    """The effects of importing libraries in a process.

    Attributes:
        modules: the loaded modules by name, in order.
        needs: for each package, the packages that its modules imported.
        environment: for each package, variables that its import set, or deleted (``None``).
        in_vain: packages that an import looked for and did not find.
        listed_in_vain: for each package, folders that its import tried to list and that do not
            exist, as torch looks for CUDA's libraries next to every folder of ``sys.path``.
    """

    modules: dict[str, ModuleType] = field(default_factory=dict)
    needs: dict[str, set[str]] = field(default_factory=dict)
    environment: dict[str, dict[str, str | None]] = field(default_factory=dict)
    in_vain: set[str] = field(default_factory=set)
    listed_in_vain: dict[str, list[str]] = field(default_factory=dict)

    def hide(self, start_afresh: Callable[[str], Any]) -> None:
        """Hide the modules, and undo the changes of imports to the environment. If they cannot be
        restored, ``start_afresh`` is called with the reason and does not return."""
        for name in self.modules:
            sys.modules.pop(name, None)
        for changed in self.environment.values():
            _change(os.environ, {name: STARTED_WITH.get(name) for name in changed})
        if self.modules:
            _Finder(self, start_afresh).stand_first()

    def with_needs(self, package: str) -> set[str]:
        """A package and all packages that it imported, directly or through others."""
        found, pending = {package}, [package]
        while pending:
            new = self.needs.get(pending.pop(), set()) - found
            found |= new
            pending += new
        return found


STARTED_WITH = dict(os.environ)
"""The environment with which this process was started."""


@contextmanager
def noting(imported: Imported, package: str) -> Iterator[None]:
    """Record the effects of importing a package inside the block."""
    modules, environment = set(sys.modules), dict(os.environ)
    plain, asked = builtins.__import__, _Asked()

    def noted(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        importer = _top((globals or {}).get("__name__") or "")
        level = rest[2] if len(rest) > 2 else named.get("level", 0)
        if not level and importer != (package := _top(name)):
            imported.needs.setdefault(importer, set()).add(package)
        return plain(name, globals, *rest, **named)

    builtins.__import__ = noted
    sys.meta_path.insert(0, asked)  # type: ignore[arg-type]
    try:
        yield
    finally:
        builtins.__import__ = plain
        sys.meta_path.remove(asked)  # type: ignore[arg-type]
        absent = (name for name in asked.packages - sys.modules.keys() if not _is_there(name))
        imported.in_vain.update(absent)
        for name, module in sys.modules.items():
            if name not in modules and _is_hidden(name, module):
                imported.modules[name] = module
        changed = {n for n, _ in os.environ.items() ^ environment.items()}
        imported.environment.setdefault(package, {}).update((n, os.environ.get(n)) for n in changed)


def _is_hidden(name: str, module: ModuleType) -> bool:
    """Whether a module belongs to a library and can be hidden. Modules of the standard library
    stay, and so do modules that compiled modules of several libraries create and share, like
    ``cython_runtime``."""
    if _top(name) in sys.stdlib_module_names or name == "__mp_main__":
        return False
    return "." in name or getattr(module, "__spec__", None) is not None


class _Asked:
    """A finder that finds nothing, and records the packages that it was asked for."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.packages.add(_top(name))


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class _Circumstances:
    """Everything besides the library that the result of an import may depend on."""

    environment: dict[str, str]
    folder: str
    path: list[str]
    finders: list[Any]
    hooks: list[Any]
    importing: Any

    @classmethod
    def now(cls) -> "_Circumstances":
        variables = {n: value for n, value in os.environ.items() if not n.startswith(_OURS)}
        finders = [finder for finder in sys.meta_path if not _is_of_library(finder)]
        path, hooks = [*sys.path], [*sys.path_hooks]
        return cls(variables, os.getcwd(), path, finders, hooks, builtins.__import__)

    def change(self) -> str | None:
        """What has changed, in words; ``None`` if nothing has."""
        now = _Circumstances.now()
        if differing := now.environment.items() ^ self.environment.items():
            return f"the environment variable {min(name for name, _ in differing)}"
        names = {"folder": "the working folder", "path": "sys.path"}
        for what in ("folder", "path", "finders", "hooks", "importing"):
            if getattr(now, what) != getattr(self, what):
                return names.get(what, "how modules are found")
        return None


def _is_of_library(finder: Any) -> bool:
    """Whether a library installed a finder for its own modules. The library may be hidden, so its
    file is what the finder's own code says, and not ``sys.modules``."""
    names = getattr(getattr(finder, "find_spec", None), "__globals__", {})
    return in_library(names.get("__file__") or "")


class _Finder:
    """The first finder in ``sys.meta_path``: it restores hidden packages."""

    def __init__(self, imported: Imported, start_afresh: Callable[[str], Any]):
        self._imported, self._start_afresh = imported, start_afresh
        self._left = dict(imported.modules)
        self._lock = threading.RLock()

    def stand_first(self) -> None:
        """Install the finder; it stays until all packages are restored."""
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        self._known = set(sys.modules)
        self._expected = _Circumstances.now()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find a hidden module. Finding is not importing, so the module stays hidden."""
        module = self._left.get(name)
        if module is None or module.__spec__ is None:
            return None
        spec = copy.copy(module.__spec__)
        spec.loader = _Shown(module, self)  # type: ignore[assignment]
        return spec

    def show(self, name: str) -> None:
        """Restore the package of a module, with the packages that it needs.

        It does not return if something on which an import depends has changed.
        """
        with self._lock:
            if name not in self._left:
                return
            if (change := self._made_up() or self._expected.change()) is not None:
                self._start_afresh(f"{change} was changed before {_top(name)} was imported")
            packages = self._imported.with_needs(_top(name))
            self._list_again(packages)
            for shown in [shown for shown in self._left if _top(shown) in packages]:
                sys.modules[shown] = self._left.pop(shown)
            for package in packages:
                changed = self._imported.environment.get(package, {})
                _change(os.environ, changed)
                _change(self._expected.environment, changed)
            if not self._left:
                sys.meta_path.remove(self)  # type: ignore[arg-type]

    def _list_again(self, packages: Collection[str]) -> None:
        """Make this worker's observation note what a fresh one's notes when it imports these."""
        for package in packages:
            for folder in self._imported.listed_in_vain.get(package, ()):
                try:
                    os.scandir(folder).close()
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError:
                    pass  # it exists now
                self._start_afresh(f"{folder} was made before {package} was imported")

    def _made_up(self) -> str | None:
        """A module that the step's code has put in the place of a hidden or missing one."""
        for name in list(sys.modules):
            is_new = name not in self._known
            if name in self._left or (is_new and name in self._imported.in_vain):
                return f"sys.modules[{name!r}]"
        return None


class _Shown:
    """The loader of a hidden module; it delegates everything else to the module's own loader."""

    def __init__(self, module: ModuleType, finder: _Finder):
        self._module, self._finder = module, finder
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._finder.show(spec.name)
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # restore its own spec instead of the finder's copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spec.loader if self._spec else None, name)


def _change(environment: Any, to: Mapping[str, str | None]) -> None:
    for name, value in to.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _top(module: str) -> str:
    return module.partition(".")[0]
