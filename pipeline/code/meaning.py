"""Resolves names in project code to their targets, across modules.

A *target* is a unit, a whole module, or something in a library. Resolution follows imports and
re-exports to the definition. A name that several statements may bind has several targets, in the
order of the statements; a builtin has none.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pipeline.code.form import Dotted, Ref
from pipeline.code.modules import Modules, is_core
from pipeline.code.source import Module
from pipeline.code.statement import Statement

IMPORT = "(import)"
"""The unit of the effects of importing a module."""

BINARY = "(binary)"
"""The unit of a module without source: its bytes."""

ALL = "*"
"""The unit of everything that a module has a name for."""

Unit = tuple[str, str]
"""A module and a name in it."""

_WHOLE_NAMESPACE = frozenset({"globals", "eval", "exec"})
"""Builtins that can access any name of the calling module."""

_LOOKS_UP = (*(f"builtins.{name}" for name in sorted(_WHOLE_NAMESPACE)), "sys.modules")
"""Names in the standard library that can access any name of a module."""


@dataclass(frozen=True)
class Target:
    """The target of a name: a unit of a module, or, without a name, the whole module.

    Attributes:
        rest: the attributes that are read of the unit: ``("check",)`` for ``Config.check``.
        library: whether it is in a library; ``rest`` is then the name in the library.
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
    """The project's code by name; every method may raise the errors of :meth:`Modules.get`."""

    def __init__(self, modules: Modules):
        self.modules = modules
        self.module = modules.get
        self.resolve = cache(self._targets)
        self._meaning = cache(self._meanings)

    def units(self, module: str) -> Mapping[str, tuple[Statement, ...]]:
        """The units of a project module; empty for a library."""
        source = self.module(module)
        return source.units if source is not None else {}

    def statements(self, target: Target) -> tuple[Statement, ...]:
        """The statements of a unit; empty for a library."""
        return self.units(target.module).get(str(target.name), ())

    def targets(self, names: Iterable[Ref | None]) -> Iterator[Target]:
        """The targets of several references; ``None`` stands for an expression without a name."""
        for name in names:
            yield from self.meaning(name) if name is not None else ()

    def parts(self, names: Iterable[Ref | None]) -> list[Statement]:
        """The statements that several references stand for."""
        return [part for target in self.targets(names) for part in self.statements(target)]

    def definition(self, module: str, name: str) -> Target:
        """The unit of a class; the whole module if no statement binds the name."""
        return Target(module, name if name in self.units(module) else None)

    def meaning(self, reference: Ref) -> tuple[Target, ...]:
        """The targets of a reference; empty for a builtin."""
        return self._meaning(reference.module, reference.path)

    def _meanings(self, module: str, dotted: str) -> tuple[Target, ...]:
        path = Ref(module, dotted).parts
        targets = self.resolve(module, path)
        # nothing binds a builtin, except perhaps `import *` of a library
        if path and path[0] in _WHOLE_NAMESPACE and all(map(_is_any, targets)):
            return (*targets, Target(module))
        named = (Target(target.module) for target in targets if "__globals__" in target.rest)
        looked_up = (Target(module) for target in targets if str(target).startswith(_LOOKS_UP))
        return (*targets, *named, *looked_up)

    def _targets(self, module: str, path: Dotted) -> tuple[Target, ...]:
        """The targets of a dotted name in a module: several if blocks bind it, none if builtin."""
        return tuple(dict.fromkeys(self._resolve(module, path, frozenset())))

    def _resolve(self, module: str, path: Dotted, seen: frozenset[Unit]) -> Iterator[Target]:
        source = self.module(module)
        if source is None:
            yield Target(module, rest=path, library=True)
        elif source.binary is not None:
            yield Target(module, BINARY)
        elif not path or path[0] in ("__dict__", "__annotations__"):
            yield Target(module)
        else:
            yield from self._resolve_in(source, path, seen)

    def _resolve_in(self, source: Module, path: Dotted, seen: frozenset[Unit]) -> Iterator[Target]:
        name, rest = path[0], path[1:]
        found: list[Target] = []
        if (source.name, name) not in seen:  # `from . import x` in a package refers to itself
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

    def _bound(self, source: Module, path: Dotted, seen: frozenset[Unit]) -> list[Target]:
        """The targets that the statements of a module bind a name to, in order."""
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
        self, star: str, path: Dotted, seen: frozenset[Unit], is_sure: bool
    ) -> list[Target]:
        """The targets to which ``import *`` of a module may bind a name. If the module computes its
        ``__all__``, that computation is a target too.

        Args:
            is_sure: something else binds the name too, so ``import *`` of a library may rebind it.
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
        """Whether a submodule, imported after its package bound the name, may replace it."""
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
        """Whether it is a class with the standard library's dataclass decorator."""
        targets = self.targets(statement.decorators if statement.is_class else ())
        return any(str(target) == "dataclasses.dataclass" for target in targets)

    def is_core(self, reference: Ref | None) -> bool:
        """Whether it surely belongs to the caching core, such as ``step``: with ``from pipeline
        import *``, any other name of the module may."""
        targets = list(self.targets([reference]))
        return bool(targets) and all(t.library and is_core(t.module) for t in targets)


def _is_any(target: Target) -> bool:
    return target.library and target.rest == (ALL,)
