"""The walk from a step function to every unit of project code that it reaches.

A unit is reached either whole or *by value*: a unit that is reached by value serves only as the
type of an argument. The walk numbers the units in the order in which it reaches them. The digest
covers their contents in this order, with each name replaced by the number of its unit. So the
digest covers all of the code, but neither its location nor the names of its modules and functions.

Some content of a unit counts only if other code in the closure reads it: docstrings count if some
code reads docstrings. The walk may find such a *reader* late; then it starts again with the reader
known from the beginning.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import blake3

from pipeline import cells
from pipeline.code import walked_before
from pipeline.code.bindings import absolute
from pipeline.code.effects import ANY, OWN, Effects
from pipeline.code.form import (
    Caught,
    Detail,
    Dynamic,
    Load,
    Piece,
    Reader,
    Ref,
    Use,
    read_table,
    words,
)
from pipeline.code.meaning import ALL, BINARY, IMPORT, Project, Target, Unit
from pipeline.code.modules import Modules, is_core
from pipeline.code.source import Module
from pipeline.code.spelling import Asked, Spelling, Spelt
from pipeline.code.statement import Statement
from pipeline.dag.canonical import describe_type
from pipeline.references import interactive, reference_to

_LOGGING = words("""
    getLogger Logger LoggerAdapter NullHandler DEBUG INFO WARNING ERROR CRITICAL debug info
    warning error critical exception log disable
""")
"""Functions and names of ``logging`` that give no access to logged texts."""
_LIBRARY_READERS = read_table("""
docs hints names texts types modules namespaces: inspect pydoc dis cloudpickle dill marshal
docs hints names texts types modules namespaces: sys._getframe logging.config sys._current_frames
docs hints names texts types modules namespaces: pydantic attrs attr
hints types: inspect.signature inspect.getfullargspec inspect.get_annotations typing.get_type_hints
hints types: typing_extensions.get_type_hints annotationlib dataclasses.fields
nothing: inspect.isfunction inspect.isclass inspect.ismodule inspect.ismethod inspect.Parameter
nothing: inspect.iscoroutinefunction inspect.isgeneratorfunction inspect.isabstract inspect.unwrap
nothing: inspect.isbuiltin inspect.isgenerator timeit.default_timer pdb.set_trace warnings.warn
names modules: pickle joblib.dump shelve
messages: traceback sys.exc_info sys.exception unittest asyncio.gather asyncio.wait pytest
texts: tenacity.retry_if_exception tenacity.retry_if_exception_message backoff
texts: tenacity.retry_if_not_exception_message
texts names modules: loguru.logger.add loguru.logger.configure loguru.logger.patch
lookups: sys.modules sys.__dict__ runpy.run_path timeit code cProfile profile pdb doctest trace
lookups: yaml.unsafe_load yaml.unsafe_load_all yaml.UnsafeLoader yaml.Loader yaml.full_load
lookups: yaml.full_load_all yaml.FullLoader yaml.CLoader importlib.machinery
lookups: importlib.util.spec_from_file_location importlib.util.module_from_spec gc.get_objects
lookups: gc.get_referrers
namespaces: pandas.eval numexpr duckdb
texts: warnings contextlib.redirect_stderr
names texts modules: logging
hints: functools.singledispatch functools.singledispatchmethod
docs names types: operator.attrgetter
types: operator.methodcaller omegaconf
hints types: dacite cattrs tyro simple_parsing jsonargparse draccus mashumaro dataclasses_json
docs: help
docs hints names: transformers.utils.get_json_schema
""") | dict.fromkeys((f"logging.{name}" for name in _LOGGING), frozenset())
"""Library functions that read code, by a beginning of their name, and what they read of it."""
_IMPLIED: Mapping[str, frozenset[str]] = {
    Reader.MESSAGES: frozenset({Reader.TEXTS, Reader.NAMES, Reader.CLASSES, Reader.MODULES}),
    Reader.TEXTS: frozenset({Reader.CLASSES}),
    Reader.NAMES: frozenset({Reader.CLASSES}),
    Reader.NAMESPACES: frozenset({Reader.NAMES, Reader.CLASSES}),
    Reader.LOOKUPS: frozenset({Reader.NAMESPACES, Reader.NAMES, Reader.CLASSES}),
}
"""Readers that imply other readers: messages of errors name functions and modules, for example."""
_IMPORTERS = words("""
    importlib.import_module importlib.__import__ runpy pkgutil.resolve_name pkgutil.get_loader
    pkgutil.find_loader importlib.util builtins.__import__
""")


@dataclass(frozen=True)
class Closure:
    """The code that a step function reaches.

    Attributes:
        digest: the digest of all the code, which is part of the key. It does not depend on where
            the code lies.
        units: ``module:name`` of each unit with 16 hexadecimal digits, sorted; used to explain
            changes.
        sources: the content of the files that were read, by path.
        details: the units that are reached only through execution details.
    """

    digest: str
    units: Mapping[str, str]
    sources: Mapping[str, bytes]
    details: frozenset[str]


NO_CODE = Closure("", {}, {}, frozenset())
"""The closure of a function whose source is not available."""


def closure(function: Callable[..., Any], types: Iterable[type] = ()) -> Closure:
    """The units of project code that ``function`` reaches.

    Args:
        function: a step function, without its :func:`pipeline.step` decorator.
        types: classes of its arguments; classes of libraries are ignored.

    Raises:
        TemperError: the source of the function cannot be read, or some file is not Python.
    """
    function = inspect.unwrap(function)
    module, name = _place_of(function)
    spelling = _spelling(module, tuple(sorted(_script(function, *types).items())))
    project = spelling.project
    if name not in project.units(module):
        raise interactive(name)
    own = [t for t in types if t.__module__ == "__main__" or project.module(t.__module__)]
    arguments = sorted((json.dumps(describe_type(t)), *_place_of(t)) for t in own)
    taken = [(project.definition(*place), True) for _, *place in arguments]
    roots = [(Target(module, name), False), *taken]
    fields = _fields_of(own)

    counted = sorted((*unit, *sorted(names)) for unit, names in fields.items())
    about = json.dumps([module, name, arguments, counted])
    kept = walked_before.recall(about, project.modules)
    if kept is None:
        walk = _walk(spelling, roots, (module, name), fields)
        kept = walk.found_out([text for text, *_ in arguments])
        walked_before.remember(about, project.modules, kept)
    digest, units, modules, details = kept
    return Closure(digest, units, project.modules.sources_of(modules), frozenset(details))


def forget() -> None:
    """Forget all modules, so that the next closure reads their present source."""
    _spelling.cache_clear()


@lru_cache(maxsize=16)
def _spelling(module: str, script: tuple[tuple[str, str], ...]) -> Spelling:
    """The project around a module, shared by the closures of all its steps."""
    top = module.partition(".")[0]
    if not is_core(module) and top != module:
        return _spelling(top, script)
    return Spelling(Effects(Project(Modules(module, dict(script)))))


def digests_of(names: Iterable[str], home: str) -> dict[str, str | None]:
    """The present digest of each ``module:name``, ``module:(import)`` or ``module:*`` with all code
    that it reaches; ``None`` if it does not exist now.

    Args:
        home: the module of the step function; its package is project code wherever it lies.
    """
    spelling = Spelling(Effects(Project(Modules(home, {}))))
    project = spelling.project
    digests: dict[str, str | None] = {}
    for name in names:
        module, _, unit = name.partition(":")
        source = project.module(module)
        if source is None or not (unit in (ALL, IMPORT, BINARY) or unit in source.units):
            digests[name] = None
        else:
            digests[name] = _walk(spelling, [(Target(module, unit), False)]).digest([])
    return digests


def _fields_of(types: Iterable[type]) -> dict[Unit, frozenset[str]]:
    """The fields of dataclasses and of their base dataclasses, by class."""
    return {
        _place_of(definition): frozenset(f.name for f in dataclasses.fields(definition))
        for given in types
        for definition in given.__mro__
        if dataclasses.is_dataclass(definition) and "<" not in definition.__qualname__
    }


def _place_of(definition: Any) -> Unit:
    """The module and top-level name by which a worker imports a function or class."""
    module = definition.__module__
    if module != "__main__" and getattr(sys.modules.get(module), "__file__", None) is None:
        raise interactive(definition.__name__)
    module, _, qualname = reference_to(definition).partition(":")
    return module, qualname.partition(".")[0]


def _script(*definitions: Any) -> dict[str, str]:
    """If a definition is in ``__main__``: that file, by the module name that a worker gives it."""
    mine = [definition for definition in definitions if definition.__module__ == "__main__"]
    if not mine:
        return {}
    file = cells.written(mine) or sys.modules["__main__"].__file__
    return {_place_of(mine[0])[0]: str(file)}


def _walk(
    spelling: Spelling,
    roots: Iterable[tuple[Target, bool]],
    start: Unit | None = None,
    classes: Mapping[Unit, frozenset[str]] = MappingProxyType({}),
) -> "_Walk":
    """Repeat the walk until it finds no new reader."""
    roots = list(roots)
    readers: frozenset[str] = frozenset()
    calls_itself = False
    while True:
        listed = OWN if Reader.SUBCLASSES in readers else ""
        listed = ANY if Reader.ANY_SUBCLASSES in readers else listed
        walk = _Walk(spelling.if_listed(listed), readers, start, calls_itself, classes)
        walk.start_at(roots)
        found = walk.found.union(*(_IMPLIED.get(reader, ()) for reader in walk.found))
        if found <= readers and walk.calls_itself == calls_itself:
            return walk
        readers, calls_itself = readers | found, walk.calls_itself


@cache
def _readers_of(library: str) -> frozenset[str]:
    """What a name in a library reads of code."""
    beginnings = accumulate(library.split("."), "{}.{}".format)
    known = [readers for name in beginnings if (readers := _LIBRARY_READERS.get(name)) is not None]
    return known[-1] if known else frozenset()


class _Walk:
    """Follows references from unit to unit until nothing new turns up.

    Attributes:
        readers: the readers that were known when the walk began.
        found: the readers that the walk found.
        by_value: the units reached, in order, and whether each is reached only by value.
        shown: units that are passed to code that may look at more than their effects.
        start: the step function's unit.
        classes: the fields of the dataclasses that arguments are made of.
        calls_itself: whether the code that the step reaches names the step, so that its defaults
            are used.
    """

    def __init__(
        self,
        spelling: Spelling,
        readers: frozenset[str],
        start: Unit | None,
        calls_itself: bool,
        classes: Mapping[Unit, frozenset[str]],
    ):
        self.classes = classes
        self.spelling, self.readers = spelling, readers
        self.project, self.effects = spelling.project, spelling.effects
        self.start, self.calls_itself = start, calls_itself
        self.found: set[str] = set()
        self.by_value: dict[Unit, bool] = {}
        self.shown: set[Unit] = set()
        self.hinted: set[Unit] = set()
        self._follows_details = False
        self._waiting: list[Unit] = []
        self._spelt: dict[Unit, tuple[Spelt, ...]] = {}
        self._followed: tuple[set[Piece], set[Piece]] = set(), set()  # whole, and by value
        self._knew_itself = calls_itself

    # --- going -------------------------------------------------------------------------------

    def start_at(self, roots: Iterable[tuple[Target, bool]]) -> None:
        """Walk from these targets; each is reached whole or by value."""
        for target, by_value in roots:
            self.add(target, by_value)
        self._run()

    def _run(self) -> None:
        done = 0
        while done < len(self._waiting):
            unit = self._waiting[done]
            done += 1
            for statement in self.spelling.statements(unit):
                self.found.update(statement.traits)
            for spelt in self.spelt(unit):
                for piece in spelt.links:
                    self._follow(unit, piece)
            self._mark_hints(unit)
            if Reader.TYPES in self.readers and self.by_value[unit]:
                self._add_unit(unit, by_value=False)
            if Reader.NAMESPACES in self.readers:
                self._add_unit((unit[0], ALL), by_value=False)
            if done == len(self._waiting):
                self._add_loaded()

    def _add_loaded(self) -> None:
        """Add the loaded modules that code may access by name: the submodules of a package that is
        used as a value are among its attributes."""
        is_any = Reader.LOOKUPS in self.readers
        packages = {module for module, name in self.by_value if name == ALL}
        for module in sorted(self.modules()) if is_any or packages else ():
            if is_any or module.rpartition(".")[0] in packages:
                self._add_unit((module, ALL), by_value=False)
        self._spelt.clear()  # they may change until the walk is over

    def add(self, target: Target, by_value: bool = False) -> None:
        """Add a target, and the effects of importing its module."""
        if target.library:
            self.found |= _readers_of(str(target))
            return
        by_value = by_value or self._is_method(target)
        if target.name not in (IMPORT, BINARY):
            self.add_import(Load(target.module))
        self._add_unit(target.unit, by_value)

    def add_import(self, load: Load) -> None:
        """Add the effects of an import."""
        for unit in self.effects.acting(load):
            self._add_unit(unit, by_value=False)

    def _add_unit(self, unit: Unit, by_value: bool) -> None:
        if self.by_value.get(unit) is False or self.by_value.get(unit) is by_value:
            return
        self.by_value[unit] = by_value
        self._waiting.append(unit)

    def _follow(self, unit: Unit, piece: Piece) -> None:
        match piece:
            case Ref():
                by_value = piece.use in (Use.HINT, Use.NAMED) or (
                    self.by_value[unit] and self._is_type(unit, piece)
                )
                if piece not in self._followed[by_value]:  # a second time it would change nothing
                    self._followed[by_value].add(piece)
                    self._follow_name(piece, by_value)
            case Caught():
                if not all(map(self._is_for_details, piece.given_to)):
                    self.found.add(Reader.TEXTS)
                    if piece.is_risky:
                        self.found.add(Reader.MESSAGES)
            case Load():
                self.add_import(piece)
            case Dynamic():
                for module in self._imported(piece):
                    self.add(Target(module))

    def _follow_name(self, name: Ref, by_value: bool) -> None:
        if name.parts[-1:] == ("__subclasses__",) and not self._is_own_class(name):
            self.found.add(Reader.ANY_SUBCLASSES)
        for target in self.project.meaning(name):
            if name.use == Use.LISTED and target.library:
                continue
            self.add(target, by_value)
            if name.use in (Use.VALUE, Use.SHOWN) and not (target.rest or target.library):
                self._show(target.unit, is_text=name.use == Use.SHOWN)
            if self._is_set(target, name.use) and self._controls_logging(target):
                self.found |= {Reader.TEXTS, Reader.NAMES, Reader.MODULES}
            if name.use == Use.MADE and self._shows_place(target):
                self.found |= {Reader.NAMES, Reader.MODULES}
            if target.unit == self.start:
                self.calls_itself = True

    def _show(self, unit: Unit, is_text: bool) -> None:
        """Note that other code receives a function or class, or its text with its module."""
        if is_text and any(s.is_function or s.is_class for s in self.spelling.statements(unit)):
            self.found |= {Reader.NAMES, Reader.MODULES}
        self._mark(unit, self.shown)

    def _mark(self, unit: Unit, marked: set[Unit]) -> None:
        """Add a unit to `marked`; if it was reached already, look at it again."""
        if unit not in marked:
            marked.add(unit)
            if unit in self.by_value:
                self._waiting.append(unit)

    def _mark_hints(self, unit: Unit) -> None:
        """If a class is passed on, or a library reads it, whoever has it may read the annotations
        of its bases and of the types of its fields too, for example to build it from JSON."""
        bases = self.spelling.bases(unit)
        if not bases and not any(statement.fields for statement in self.spelling.statements(unit)):
            return
        if unit in self.hinted or unit in self.shown or self.spelling.is_read_by_library(unit):
            for other in (*bases, *self._types_of_fields(unit)):
                self._mark(other, self.hinted)

    def _imported(self, call: Dynamic) -> Iterator[str]:
        """The project modules that a call imports by the texts of its arguments."""
        targets = self.project.meaning(call.called)
        is_builtin = not targets and call.called.path == "__import__"
        if not (is_builtin or any(str(t).startswith(_IMPORTERS) for t in targets)):
            return
        packages = [text for text in call.texts if not text.startswith(".")]
        for text in call.texts:
            name = text.partition(":")[0]
            bare = name.lstrip(".")
            package = packages[0] if packages else call.package
            name = absolute(bare, len(name) - len(bare), package)
            if self.project.module(name) is not None:
                yield name

    # --- what a unit says --------------------------------------------------------------------

    def spelt(self, unit: Unit) -> Iterator[Spelt]:
        """What a unit says to the known readers."""
        module, name = unit
        source = self.project.module(module)
        if source is None:
            return
        if name == BINARY:
            yield self.spelling.plain(module, (str(source.binary),))
        elif name == ALL:
            yield self.spelling.plain(module, tuple(self._namespace(source)))
        elif name == IMPORT:
            if source.binary is not None:
                yield self.spelling.plain(module, (Ref(module, ""),))
            acting = {statement.place for statement in self.effects.of(module)}
            for statement in source.statements:
                if statement.place in acting:
                    yield self._spelt_of(unit, statement)
                if statement.loads:
                    yield self.spelling.plain(module, statement.loads)
        else:
            for statement in self.spelling.statements(unit):
                yield self._spelt_of(unit, statement)

    def _namespace(self, source: Module) -> Iterator[Piece]:
        for name in self._in_namespace(source):
            if name != "__doc__" or Reader.DOCS in self.readers:
                yield f"\n{name}="
                yield Ref(source.name, name)
        for _, star in source.stars:
            yield "\n*="
            yield Ref(star, "")

    def _in_namespace(self, source: Module) -> list[str]:
        """The names that a module binds, by name, or in the order in which it binds them."""
        names = sorted({*source.units, *source.names})
        if Reader.ORDER not in self.readers:
            return names
        places = {name: [s.place for s in source.units.get(name, ())] for name in names}
        for name, loads in source.names.items():
            places[name] += [place for place, _ in loads]
        return sorted(names, key=lambda name: min(places[name]))

    def _spelt_of(self, unit: Unit, statement: Statement) -> Spelt:
        is_start = unit == self.start
        asked = Asked(
            self.readers,
            is_shown=unit in self.shown,
            is_hinted=unit in self.hinted,
            fields=self._counted_fields(unit, statement),
            is_start=is_start,
            has_defaults=self._knew_itself or not is_start,
            with_details=self._follows_details,
        )
        return self.spelling.of(statement, asked)

    def _loses_fields(self, unit: Unit, statement: Statement) -> bool:
        return (
            self.by_value[unit]
            and Reader.DOCS not in self.readers
            and not statement.reaches_itself
            and self.project.is_dataclass(statement)
        )

    def _counted_fields(self, unit: Unit, statement: Statement) -> Collection[str]:
        """The fields of a class that count as code. If the class of an argument is known, names
        that are annotated like fields but are not fields count."""
        if not self._loses_fields(unit, statement):
            return statement.fields
        if unit not in self.classes:
            return ()
        return frozenset(statement.fields) - self.classes[unit]

    def _types_of_fields(self, unit: Unit) -> list[Unit]:
        """The project's own types in the annotations of a class's fields."""
        links = (piece for spelt in self.spelt(unit) for piece in spelt.links)
        named = (p for p in links if isinstance(p, Ref) and p.use == Use.OWNED)
        return [target.unit for target in self.project.targets(named) if not target.library]

    def _is_set(self, target: Target, use: str) -> bool:
        """Whether it is assigned to, or its filters may be changed in place."""
        return use == Use.STORED or "filters" in target.rest

    def _shows_place(self, target: Target) -> bool:
        """Whether the text of its instances names its class and module."""
        parts = self.project.statements(target)
        return not target.rest and any(
            part.is_class
            and not {"__repr__", "__str__", "__format__"}.intersection(part.special)
            and not self.project.is_dataclass(part)
            for part in parts
        )

    def _controls_logging(self, target: Target) -> bool:
        """Whether setting it or one of its attributes may change what happens to logged texts."""
        if target.library:
            return str(target).startswith(("logging", "warnings", "sys.stderr"))
        return any(self.spelling.is_logger(part) for part in self.project.statements(target))

    # --- what a name is ----------------------------------------------------------------------

    def _is_type(self, unit: Unit, reference: Ref) -> bool:
        """Whether a reference of a unit that is reached by value is itself reached by value: the
        bases of a dataclass, and the type that an alias stands for."""
        if reference.use == Use.BASE:
            return any(self._loses_fields(unit, s) for s in self.spelling.statements(unit))
        return not any(s.is_class or s.is_function for s in self.spelling.statements(unit))

    def _is_own_class(self, reference: Ref) -> bool:
        """Whether it is a class of the project, or an attribute of one."""
        return any(part.is_class for part in self.project.parts([reference]))

    def _is_for_details(self, called: Ref | None) -> bool:
        """Whether it is a function that is declared an execution detail."""
        parts = self.project.parts([called])
        return bool(parts) and all(
            isinstance(piece, Detail) and self.spelling.declares(piece.decorator)
            for part in parts
            for piece in part.form
        )

    def _is_method(self, target: Target) -> bool:
        """Whether it is only a method of a class, which is called on an instance."""
        parts = self.project.statements(target)
        return bool(target.rest) and any(target.rest[0] in part.methods for part in parts)

    # --- digests -----------------------------------------------------------------------------

    def found_out(
        self, described: Iterable[str]
    ) -> tuple[str, dict[str, str], list[str], list[str]]:
        """The digest of all the code and of the described classes, the digest of each unit, the
        modules that the walk looked at, and the units that only execution details reach."""
        units, digest, modules = self.units(), self.digest(described), sorted(self.modules())
        self._go_on_to_details()
        return digest, units, modules, sorted({":".join(u) for u in self._listed()} - units.keys())

    def _go_on_to_details(self) -> None:
        """Follow execution details too. It does not matter that the walk has ended before: units
        only ever get reached, whole, shown and hinted, and what they say then only grows."""
        self._follows_details = True
        self._spelt.clear()
        self._waiting = [*filter(self.spelling.may_hide_details, self.by_value)]
        self._run()

    def modules(self) -> set[str]:
        """The modules of the units, and all modules that these import, also indirectly."""
        seen: dict[str, None] = {}
        for unit in self.by_value:
            loads = (load for spelt in self._all_spelt(unit) for load in spelt.loads)
            for load in (Load(unit[0]), *loads):
                for name in self.effects.modules_of(load):
                    if name not in seen:
                        seen |= dict.fromkeys([name, *sorted(self.effects.reached(name))])
        parents = {parent for name in seen for parent in self.effects.modules_of(Load(name))}
        return {*seen, *parents}

    def digest(self, described: Iterable[str]) -> str:
        """The digest of all units, with names replaced by numbers, and of the described classes."""
        numbers = {unit: str(number) for number, unit in enumerate(self.by_value)}
        hasher = blake3.blake3("\n".join([*sorted(self.readers), *described]).encode())
        for unit in numbers:
            hasher.update(b"\n\n" + self._text(unit, numbers).encode())
        return hasher.hexdigest()[:32]

    def units(self) -> dict[str, str]:
        """The digest of each unit by itself, with names kept."""
        digests: dict[str, str] = {}
        for unit in self._listed():
            text = self._text(unit, None).encode()
            digests[":".join(unit)] = blake3.blake3(text).hexdigest()[:16]
        return digests

    def _listed(self) -> list[Unit]:
        """The units that are more than a way to others."""
        return [
            unit
            for unit in sorted(self.by_value)
            if unit[1] == BINARY or (unit[1] != ALL and self.spelling.statements(unit))
        ]

    def _text(self, unit: Unit, numbers: Mapping[Unit, str] | None) -> str:
        parts = [self._module_of(unit, numbers), *self._order(unit, numbers)]
        shows_modules = Reader.MODULES in self.readers
        for spelt in self._all_spelt(unit):
            if numbers is None:
                parts.append(self.spelling.named(spelt, shows_modules))
                continue
            for part in self.spelling.numbered(spelt, shows_modules):
                parts.append(part if isinstance(part, str) else f"#{numbers.get(part, '')}")
        return "".join(parts)

    def _all_spelt(self, unit: Unit) -> tuple[Spelt, ...]:
        """What a unit says, once the walk is over."""
        if unit not in self._spelt:
            self._spelt[unit] = tuple(self.spelt(unit))
        return self._spelt[unit]

    def _module_of(self, unit: Unit, numbers: Mapping[Unit, str] | None) -> str:
        """The effects of importing the unit's module; and its location, if some code reads it."""
        place = f"{unit[0]}:{unit[1]} " if Reader.MODULES in self.readers else ""
        if numbers is None:
            return place
        return f"{place}{self._number((unit[0], IMPORT), numbers)} "

    def _number(self, unit: Unit, numbers: Mapping[Unit, str] | None) -> str:
        return ":".join(unit) if numbers is None else f"#{numbers.get(unit, '')}"

    def _order(self, unit: Unit, numbers: Mapping[Unit, str] | None) -> Iterator[str]:
        """The position of statements that read names on import, relative to the other units of the
        module and to the imports that act: how many of these come before the statement, unless all
        do."""
        loads = self.effects.places(unit[0])
        is_tangled = self.effects.is_tangled(unit[0])
        for number, statement in enumerate(self.spelling.statements(unit)):
            before = sum(place < statement.place for place in loads)
            if before < len(loads) and (statement.reads_early or is_tangled):
                yield f"<{number} after {before}>"
            if unit[1] == IMPORT:
                yield from self._before(unit[0], statement, numbers)
            placed = self._placed.get(unit[0], []) if statement.reads_early else []
            for name, places in placed:
                before = sum(place < statement.place for place in places)
                others = len(places) - places.count(statement.place)
                if name != unit[1] and before < others:
                    yield f"<{number} {self._number((unit[0], name), numbers)} {before}>"

    def _before(
        self, module: str, acting: Statement, numbers: Mapping[Unit, str] | None
    ) -> Iterator[str]:
        """The units of other modules that are bound before a statement acts: the statement does not
        affect the values that they have read."""
        source = self.project.module(module)
        assert source is not None
        loaded: set[str] = set()
        for statement in source.statements:
            if statement.place < acting.place:
                for load in statement.loads:
                    for name in self.effects.modules_of(load):
                        loaded |= {name, *self.effects.reached(name)}
        for unit in numbers or ():
            if unit[0] in loaded - {module} and any(
                s.reads_early and s.kind == "other" for s in self.spelling.statements(unit)
            ):
                yield f"<bound {self._number(unit, numbers)}>"

    @cached_property
    def _placed(self) -> dict[str, list[tuple[str, list[int]]]]:
        """By module, its units that have several statements, with the positions of these."""
        found: dict[str, list[tuple[str, list[int]]]] = {}
        for unit in self.by_value:
            places = [statement.place for statement in self.spelling.statements(unit)]
            if len(places) > 1 or (unit[1] == IMPORT and places):
                found.setdefault(unit[0], []).append((unit[1], places))
        return found
