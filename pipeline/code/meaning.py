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

    def units(self, module: str) -> Mapping[str, tuple[Statement, ...]]:
        """The units of a module of project code; of a library, none."""
        source = self.module(module)
        return source.units if source is not None else {}

    def definition(self, module: str, name: str) -> Target:
        """The unit of a class that exists; all of its module if it was made in some other way."""
        return Target(module, name if name in self.units(module) else None)

    def effects(self, module: str) -> tuple[Statement, ...]:
        """The statements by which importing a module does something besides defining names."""
        source = self.module(module)
        if source is None:
            return ()
        registering = filter(self._registers, source.possible_effects)
        return tuple(sorted((*source.effects, *registering), key=lambda part: part.node.lineno))

    def meaning(self, reference: Reference) -> tuple[Target, ...]:
        """What a reference stands for; nothing for a builtin."""
        module, path = reference.module, reference.path
        targets = self.resolve(module, path)
        if not targets and path and path[0] in _WHOLE_NAMESPACE:
            return (Target(module),)
        return targets

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
            for star in reversed(source.stars):
                if not found and (other := self.module(star)) and other.offers(name):
                    found.extend(self._resolve(star, path, seen))
        submodule = f"{source.name}.{name}"
        if not found and self.module(submodule) is not None:
            found.extend(self._resolve(submodule, rest, seen))
        if not found and "__getattr__" in source.units:
            found.append(Target(source.name, "__getattr__"))
        if not found:
            libraries = (star for star in source.stars if self.module(star) is None)
            found.extend(Target(star, rest=("*",), library=True) for star in libraries)
        yield from found

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

    def _registers(self, statement: Statement) -> bool:
        """Whether making a definition runs project code, which may take note of it."""
        decorated = any(map(self._is_own, statement.decorators))
        return decorated or self._is_hooked(statement, frozenset())

    def _is_hooked(self, statement: Statement, seen: frozenset[Target]) -> bool:
        """Whether a class has a metaclass of the project, or a base that hooks its subclasses."""
        if any(map(self._is_own, statement.metaclass)):
            return True
        bases = {base for reference in statement.bases for base in self.meaning(reference)} - seen
        return any(
            part.has_subclass_hook or self._is_hooked(part, seen | bases)
            for base in bases
            for part in self.units(base.module).get(str(base.name), ())
        )

    def _is_own(self, reference: Reference) -> bool:
        """Whether it is, or may be, something of the project."""
        return any(not target.library for target in self.meaning(reference))
