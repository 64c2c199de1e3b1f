"""What the names in project code stand for, across its modules.

A name stands for a *target*: a unit, all of a module, or something in a library. It is followed
through imports and re-exports to where it is defined; one that several statements may bind stands
for several targets, in the order of the statements; a builtin for none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.code.form import Ref
from pipeline.code.modules import Modules, is_core
from pipeline.code.source import Module
from pipeline.code.statement import Statement

IMPORT = "(import)"
"""The unit of what importing a module does."""

BINARY = "(binary)"
"""The unit of a module without source: the bytes of its file."""

ALL = "*"
"""The unit of all that a module has a name for."""

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
        return f"{self.module}:{self.name or ALL}"

    @property
    def unit(self) -> Unit:
        return self.module, self.name or ALL


class Project:
    """Project code, asked by name.

    Args:
        modules: where a module is read from; see :meth:`Modules.get`, whose errors any question
            here may raise.
    """

    def __init__(self, modules: Modules):
        self.modules = modules
        self.module = modules.get
        self._resolved: dict[tuple[str, tuple[str, ...]], tuple[Target, ...]] = {}
        self._meanings: dict[tuple[str, str], tuple[Target, ...]] = {}

    def units(self, module: str) -> Mapping[str, tuple[Statement, ...]]:
        """The units of a module of project code; of a library, none."""
        source = self.module(module)
        return source.units if source is not None else {}

    def statements(self, target: Target) -> tuple[Statement, ...]:
        """The statements of a unit; none for a library."""
        return self.units(target.module).get(str(target.name), ())

    def definition(self, module: str, name: str) -> Target:
        """The unit of a class that exists; all of its module if it was made in some other way."""
        return Target(module, name if name in self.units(module) else None)

    def meaning(self, reference: Ref) -> tuple[Target, ...]:
        """What a reference stands for; nothing for a builtin."""
        asked = reference.module, reference.path
        if asked not in self._meanings:
            self._meanings[asked] = self._meaning(reference.module, reference.parts)
        return self._meanings[asked]

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
            found = self._resolve(module, path, frozenset())
            self._resolved[module, path] = tuple(dict.fromkeys(found))
        return self._resolved[module, path]

    def _resolve(
        self, module: str, path: tuple[str, ...], seen: frozenset[Unit]
    ) -> Iterator[Target]:
        source = self.module(module)
        if source is None:
            yield Target(module, rest=path, library=True)
        elif source.binary is not None:
            yield Target(module, BINARY)
        elif not path or path[0] in ("__dict__", "__annotations__"):
            yield Target(module)
        else:
            yield from self._resolve_in(source, path, seen)

    def _resolve_in(
        self, source: Module, path: tuple[str, ...], seen: frozenset[Unit]
    ) -> Iterator[Target]:
        name, rest = path[0], path[1:]
        found: list[Target] = []
        if (source.name, name) not in seen:  # else `from . import x` in a package asks for itself
            found = self._bound(source, path, seen | {(source.name, name)})
        submodule = f"{source.name}.{name}"
        if (not found or self._is_shadowed(source, name)) and self.module(submodule) is not None:
            found.extend(self._resolve(submodule, rest, seen | {(source.name, name)}))
        if not found and "__getattr__" in source.units:
            found.append(Target(source.name, "__getattr__"))
        if not found:
            libraries = (star for _, star in source.stars if self.module(star) is None)
            found.extend(Target(star, rest=(ALL,), library=True) for star in libraries)
        yield from found

    def _bound(self, source: Module, path: tuple[str, ...], seen: frozenset[Unit]) -> list[Target]:
        """What the statements of a module bind a name to, in their order."""
        name, rest = path[0], path[1:]
        found: list[tuple[int, Iterable[Target]]] = []
        if name in source.units:
            place = source.units[name][0].place
            found.append((place, [Target(source.name, name, rest)]))
        for place, load in source.names.get(name, ()):
            within = (*filter(None, [load.name]), *rest)
            found.append((place, list(self._resolve(load.module, within, seen))))
        for place, star in source.stars:
            if targets := self._from_star(star, path, seen, is_sure=bool(found)):
                found.append((place, targets))
        found.sort(key=lambda bound: bound[0])
        return [target for _, targets in found for target in targets]

    def _from_star(
        self, star: str, path: tuple[str, ...], seen: frozenset[Unit], is_sure: bool
    ) -> list[Target]:
        """What ``import *`` of a module may bind a name to, and where it computes its list, that.

        Args:
            is_sure: the name is bound by something else too; so a library may bind it anew.
        """
        other = self.module(star)
        if other is None:
            return [Target(star, rest=(ALL,), library=True)] if is_sure else []
        if not other.offers(path[0]):
            return []
        found = [t for t in self._resolve(star, path, seen) if not _is_any(t)]
        if found and other.computes_exports:
            found += self._resolve(star, ("__all__",), seen)
        return found

    def _is_shadowed(self, source: Module, name: str) -> bool:
        """Whether a submodule may take the place of what its package binds: it does when it is
        imported after that."""
        submodule = f"{source.name}.{name}"
        loads = [
            statement.place
            for statement in source.statements
            for load in statement.loads
            if load.module == submodule or (load.module == source.name and load.name == name)
        ]
        binders = [s.place for s in source.units.get(name, ())]
        binders += [place for place, _ in source.names.get(name, ())]
        return bool(binders) and (not loads or max(loads) > max(binders))

    def is_dataclass(self, statement: Statement) -> bool:
        """Whether it is a class under the standard library's decorator, however imported."""
        return statement.is_class and any(
            str(target) == "dataclasses.dataclass"
            for decorator in statement.decorators
            if decorator is not None
            for target in self.meaning(decorator)
        )

    def is_core(self, reference: Ref | None) -> bool:
        """Whether it is something of the caching core, such as ``step``."""
        return reference is not None and any(
            target.library and is_core(target.module) for target in self.meaning(reference)
        )


def _may_be_builtin(targets: tuple[Target, ...]) -> bool:
    """Whether nothing binds a name, except perhaps a library of which all names are imported."""
    return all(map(_is_any, targets))


def _is_any(target: Target) -> bool:
    return target.library and target.rest == (ALL,)
