"""What the names in project code stand for, across its modules.

A name stands for a *target*: a unit, all of a module, or something in a library. It is followed
through imports and re-exports to where it is defined; one that several statements may bind stands
for several targets, a builtin for none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.code.modules import Modules, is_core
from pipeline.code.names import Reference
from pipeline.code.source import Module
from pipeline.code.statement import Statement

IMPORT = "(import)"
"""The unit of what importing a module does."""

BINARY = "(binary)"
"""The unit of a module without source: the bytes of its file."""

Unit = tuple[str, str]
"""A module and a name in it."""

_WHOLE_NAMESPACE = frozenset({"globals", "eval", "exec"})
"""Builtins that get at any name of the module they are called in."""

_LOOKS_UP = (*(f"builtins.{name}" for name in sorted(_WHOLE_NAMESPACE)), "sys.modules")
"""Names in the standard library that do."""


@dataclass(frozen=True)
class Target:
    """What a name stands for: a unit of a module, or with no name all of the module.

    Attributes:
        rest: what is read of the unit: for ``Config.check``, ``("check",)``.
        library: it is no project code; then ``rest`` is the name in the library.
    """

    module: str
    name: str | None = None
    rest: tuple[str, ...] = ()
    library: bool = False

    def __str__(self) -> str:
        if self.library:
            return ".".join((self.module, *self.rest))
        return f"{self.module}:{self.name or '*'}"


class Project:
    """Project code, asked by name.

    Args:
        modules: where a module is read from; see :meth:`Modules.get`, whose errors any question
            here may raise.
    """

    def __init__(self, modules: Modules):
        self.module = modules.get
        self._resolved: dict[tuple[str, tuple[str, ...]], tuple[Target, ...]] = {}
        self._meanings: dict[Reference, tuple[Target, ...]] = {}

    def units(self, module: str) -> Mapping[str, tuple[Statement, ...]]:
        """The units of a module of project code; of a library, none."""
        source = self.module(module)
        return source.units if source is not None else {}

    def definition(self, module: str, name: str) -> Target:
        """The unit of a class that exists; all of its module if it was made in some other way."""
        return Target(module, name if name in self.units(module) else None)

    def meaning(self, reference: Reference) -> tuple[Target, ...]:
        """What a reference stands for; nothing for a builtin."""
        if reference not in self._meanings:
            self._meanings[reference] = self._meaning(reference.module, reference.path)
        return self._meanings[reference]

    def _meaning(self, module: str, path: tuple[str, ...]) -> tuple[Target, ...]:
        targets = self.resolve(module, path)
        if _may_be_builtin(targets) and path and path[0] in _WHOLE_NAMESPACE:
            return (*targets, Target(module))
        named = (Target(target.module) for target in targets if "__globals__" in target.rest)
        looked_up = (Target(module) for target in targets if str(target).startswith(_LOOKS_UP))
        return (*targets, *named, *looked_up)

    def resolve(self, module: str, path: tuple[str, ...]) -> tuple[Target, ...]:
        """What a dotted name stands for in a module: several, if a block decides; or nothing."""
        if (module, path) not in self._resolved:
            self._resolved[module, path] = tuple(self._resolve(module, path, frozenset()))
        return self._resolved[module, path]

    def _resolve(
        self, module: str, path: tuple[str, ...], seen: frozenset[Unit]
    ) -> Iterator[Target]:
        source = self.module(module)
        if source is None:
            yield Target(module, rest=path, library=True)
        elif source.binary is not None:
            yield Target(module, BINARY)
        elif not path or path[0] == "__dict__":
            yield Target(module)
        else:
            yield from self._resolve_in(source, path, seen)

    def _resolve_in(
        self, source: Module, path: tuple[str, ...], seen: frozenset[Unit]
    ) -> Iterator[Target]:
        """A module's own names come before its imports of all names, these before submodules."""
        name, rest = path[0], path[1:]
        found: list[Target] = []
        if (source.name, name) not in seen:  # else `from . import x` in a package asks for itself
            seen |= {(source.name, name)}
            if name in source.units:
                found.append(Target(source.name, name, rest))
            for module, *names in source.names.get(name, ()):
                found.extend(self._resolve(module, (*names, *rest), seen))
            found = found or list(self._from_stars(source, path, seen))
        submodule = f"{source.name}.{name}"
        if not found and self.module(submodule) is not None:
            found.extend(self._resolve(submodule, rest, seen))
        if not found and "__getattr__" in source.units:
            found.append(Target(source.name, "__getattr__"))
        if not found:
            libraries = (star for star in source.stars if self.module(star) is None)
            found.extend(Target(star, rest=("*",), library=True) for star in libraries)
        yield from found

    def _from_stars(
        self, source: Module, path: tuple[str, ...], seen: frozenset[Unit]
    ) -> Iterator[Target]:
        """What the last ``import *`` with the name gives; where ``__all__`` is computed, it may."""
        for star in reversed(source.stars):
            other = self.module(star)
            found = list(self._resolve(star, path, seen)) if other and other.offers(path[0]) else []
            yield from found
            if found and other and not other.computes_exports:
                return
            if found:
                yield from self._resolve(star, ("__all__",), seen)

    def is_dataclass(self, statement: Statement) -> bool:
        """Whether it is a class under the standard library's decorator, however imported."""
        return statement.is_class and any(
            str(target) == "dataclasses.dataclass"
            for decorator in statement.decorators
            for target in self.meaning(decorator)
        )

    def is_core(self, reference: Reference) -> bool:
        """Whether it is something of the caching core, such as ``step``."""
        return any(target.library and is_core(target.module) for target in self.meaning(reference))


def _may_be_builtin(targets: tuple[Target, ...]) -> bool:
    """Whether nothing binds a name, except perhaps a library of which all names are imported."""
    return all(target.library and target.rest == ("*",) for target in targets)
