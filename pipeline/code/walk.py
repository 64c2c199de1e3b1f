"""The walk from a step function to every unit of project code that it reaches.

A unit is reached either whole or *by value*: as the type of what comes in through an argument, and
in no other way. Once nothing new turns up, each unit is digested on its own: what it says, what the
names in it stand for, and where it stands among the statements of other units.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import blake3

from pipeline.canonical import reference_to
from pipeline.code.bindings import Imported
from pipeline.code.effects import Effects
from pipeline.code.meaning import BINARY, IMPORT, Project, Target, Unit
from pipeline.code.modules import Modules
from pipeline.code.names import Reference
from pipeline.code.statement import Statement
from pipeline.errors import TemperError


def closure(function: Callable[..., Any], types: Iterable[type] = ()) -> dict[str, str]:
    """The units of project code that ``function`` reaches, each with its digest.

    Args:
        function: a step function, without its :func:`pipeline.step` decorator.
        types: classes of the values it is called with; those of libraries are ignored.

    Returns:
        ``module:name`` and 16 hexadecimal digits for each unit, sorted.

    Raises:
        TemperError: the source of the function cannot be read, or some file is not Python.
    """
    function = inspect.unwrap(function)
    module, name = _place_of(function)
    project = Project(Modules(module, _script(function, *types)))
    walk = _Walk(project)
    walk.add_step(module, name)
    for definition in types:
        if definition.__module__ == "__main__" or project.module(definition.__module__):
            walk.add(project.definition(*_place_of(definition)), by_value=True)
    return walk.run()


def _place_of(definition: Any) -> Unit:
    """The module and the top-level name by which a worker reaches a function or class."""
    if getattr(sys.modules.get(definition.__module__), "__file__", None) is None:
        raise _unreadable(definition.__name__)
    module, _, qualname = reference_to(definition).partition(":")
    return module, qualname.partition(".")[0]


def _script(*definitions: Any) -> dict[str, str]:
    """The file of ``__main__``, if one is defined there, by the name that a worker gives it."""
    for definition in definitions:
        if definition.__module__ == "__main__":
            return {_place_of(definition)[0]: str(sys.modules["__main__"].__file__)}
    return {}


def _unreadable(step: str) -> TemperError:
    return TemperError(
        f"step {step}: its source cannot be read (defined interactively?); put it in a file or "
        'declare version="…"'
    )


class _Walk:
    """Follows references from unit to unit until nothing new turns up.

    Attributes:
        by_value: of each unit reached, whether only by value.
        start: the step function's unit.
        calls_itself: the step is named by what it reaches, so its own defaults are used.
        whole: modules of which every unit is reached.
        waiting: units whose references are yet to be followed.
        types_matter: some unit looks at the types of values, so none counts by value alone.
        docstrings_matter: some unit reads docstrings.
        places: of each module, the units of more than one statement, with where these are.
    """

    def __init__(self, project: Project):
        self.project = project
        self.effects = Effects(project)
        self.by_value: dict[Unit, bool] = {}
        self.start: Unit | None = None
        self.calls_itself = False
        self.whole: set[str] = set()
        self.waiting: list[Unit] = []
        self.types_matter = False
        self.docstrings_matter = False
        self.places: dict[str, list[tuple[str, list[tuple[int, int]]]]] = {}

    def run(self) -> dict[str, str]:
        """The digest of every unit that can be reached from those that were added."""
        while self.waiting:
            self._follow(self.waiting.pop())
            if self.types_matter and not self.waiting:
                for unit in [unit for unit, by_value in self.by_value.items() if by_value]:
                    self._add_unit(unit, by_value=False)
        for unit in sorted(self.by_value):
            places = [statement.place for statement in self._statements(unit)]
            if len(places) > 1 or unit[1] == IMPORT:
                self.places.setdefault(unit[0], []).append((unit[1], places))
        digests = {unit: self._digest(unit) for unit in sorted(self.by_value)}
        return {":".join(unit): digest for unit, digest in digests.items() if digest}

    def add_step(self, module: str, name: str) -> None:
        """The step function, less what arrives in its arguments."""
        if name not in self.project.units(module):
            raise _unreadable(name)
        self.start = (module, name)
        self.add(Target(module, name))

    def add(self, target: Target, by_value: bool = False) -> None:
        """A target, and with it what importing its module does."""
        if target.library:
            return
        self.add_import(target.module)
        if target.name is not None:
            self._add_unit((target.module, target.name), by_value or self._is_method(target))
        elif target.module not in self.whole:
            self.whole.add(target.module)
            self._add_all(target.module)

    def add_import(self, module: str, name: str | None = None) -> None:
        """What importing a module, or a name from it, does."""
        source = self.project.module(module)
        if source is None:
            return
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            self._add_unit((".".join(parts[:count]), IMPORT), by_value=False)
        if source.binary is not None:
            self._add_unit((module, BINARY), by_value=False)
        names = (source.exports or ()) if name == "*" else filter(None, [name])
        for imported in names:
            for target in self.project.resolve(module, (imported,)):
                if not target.library and target.module != module:
                    self.add_import(target.module)

    def _add_all(self, module: str) -> None:
        """Whatever a module has a name for."""
        source = self.project.module(module)
        if source is None:
            return
        for name in (*source.units, *source.names):
            for found in self.project.resolve(module, (name,)):
                self.add(found)
        for star in source.stars:
            self.add(Target(star, library=self.project.module(star) is None))

    def _add_unit(self, unit: Unit, by_value: bool) -> None:
        if self.by_value.get(unit) is False or self.by_value.get(unit) is by_value:
            return
        self.by_value[unit] = by_value
        self.waiting.append(unit)

    def _follow(self, unit: Unit) -> None:
        imports: set[Imported] = set()
        source = self.project.module(unit[0])
        if source is not None and unit[1] == IMPORT:
            imports.update(source.imports)
        for statement in self._statements(unit):
            self.types_matter |= statement.looks_at_types
            self.docstrings_matter |= statement.reads_docstrings
            if statement.reads_subclasses and not self.effects.subclasses_matter:
                self.effects.subclasses_matter = True
                self.waiting.extend(unit for unit in self.by_value if unit[1] == IMPORT)
            passed_on = self.by_value[unit] and not statement.is_definition  # a name for a type
            for reference in statement.references:
                for target in self.project.meaning(reference):
                    self.add(target, reference.annotation or passed_on)
                    self._note_recursion(target)
            imports.update(statement.imports)
        for imported in imports:
            self.add_import(*imported)

    def _statements(self, unit: Unit) -> tuple[Statement, ...]:
        module, name = unit
        if name == IMPORT:
            return self.effects.of(module)
        statements = self.project.units(module).get(name, ())
        if unit == self.start:
            return tuple(map(self._as_step, statements))
        if not self.by_value[unit]:
            return statements
        return tuple(
            statement.without_fields
            if self.project.is_dataclass(statement) and not statement.reaches_itself
            else statement
            for statement in statements
        )

    def _digest(self, unit: Unit) -> str | None:
        """Of what a unit says and of what the names in it stand for; ``None`` if it is empty."""
        source = self.project.module(unit[0])
        if source is not None and unit[1] == BINARY:
            return source.binary
        statements = self._statements(unit)
        if not statements:
            return None
        meanings = {
            f"{reference.module}:{'.'.join(reference.path)}": sorted(map(str, targets))
            for statement in statements
            for reference in statement.references
            if (targets := self.project.meaning(reference))
        }
        said = [meanings, order] if (order := self._order(unit, statements)) else meanings
        hasher = blake3.blake3(json.dumps(said, sort_keys=True).encode())
        for statement in statements:
            form = statement.documented_form if self.docstrings_matter else statement.normal_form
            hasher.update(b"\n" + form)
        return hasher.hexdigest()[:16]

    def _order(self, unit: Unit, statements: Iterable[Statement]) -> list[tuple[int, str, int]]:
        """Where a statement comes before some of what binds another unit of its module, or acts:
        the number of the statement, that unit, and how many of its statements come before."""
        found: list[tuple[int, str, int]] = []
        for name, places in self.places.get(unit[0], []):
            for number, statement in enumerate(statements):
                before = sum(place < statement.place for place in places)
                others = len(places) - places.count(statement.place)
                if name != unit[1] and statement.reads_early and before < others:
                    found.append((number, name, before))
        return found

    def _as_step(self, statement: Statement) -> Statement:
        if not statement.is_function:
            return statement
        core = frozenset(filter(self.project.is_core, statement.decorators))
        return _bare(statement, core, self.calls_itself)

    def _note_recursion(self, target: Target) -> None:
        if (target.module, target.name) == self.start and not self.calls_itself:
            self.calls_itself = True
            self.waiting.append((target.module, str(target.name)))

    def _is_method(self, target: Target) -> bool:
        """Whether only a method is read of a class, to be called with an instance of it."""
        parts = self.project.units(target.module).get(str(target.name), ())
        return bool(target.rest) and any(part.has_method(target.rest[0]) for part in parts)


@lru_cache(maxsize=256)
def _bare(statement: Statement, dropped: frozenset[Reference], defaults: bool) -> Statement:
    """A function less some decorators and, unless ``defaults``, those of its parameters. It is kept
    because a statement keeps what was found out about it."""
    bare = statement.without_decorators(dropped)
    return bare if defaults else bare.without_defaults()
