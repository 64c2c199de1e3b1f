"""The rule for code: which statements and functions of loaded modules count; see ``RULE.md``."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

import blake3

from pipeline.trace.source_parts import (
    BODIES,
    EVERYTHING,
    MODULE,
    READS_TEXT,
    Part,
    Source,
    Statement,
)

IMPORT = "(import)"
"""Names what the import of a module does besides binding names that have digests of their own."""
TEXT = "(text)"
"""Names the bytes of a module's file, where code reads source."""
ALL = "*"
"""Names all of a module, of which any function may have run."""
BY_FILE = "@"
"""Between the name of a module and its file, if the name alone does not lead a planner there."""
ASKED = "?"
"""Begins the name of something that the step looked up by a name known only at run time."""


@dataclass(frozen=True)
class Loaded:
    """A module of the project that a step has loaded.

    Attributes:
        is_package: whether its file is an ``__init__.py``.
        ran: the qualified names of its functions that ran; ``None`` if any may have run.
        asked: names that were looked up in it by a name known only at run time; :data:`ALL` if it
            may be any.
    """

    source: Source
    is_package: bool
    ran: frozenset[str] | None
    asked: frozenset[str] = frozenset()


def digests(modules: Mapping[str, Loaded], has: Callable[[str], int]) -> dict[str, str]:
    """The digest of every unit that counts, by its name ``MODULE:UNIT``.

    Args:
        modules: the loaded modules of the project, by name.
        has: whether the project has a module of this name now; see :meth:`Modules.has`.
    """
    return _Rule(modules, has).digests()


def digests_and_looks(
    modules: Mapping[str, Loaded], has: Callable[[str], int]
) -> tuple[dict[str, str], dict[str, str]]:
    """The digests, and of every unit that has one its look: 16 hexadecimal digits, by its name."""
    return (rule := _Rule(modules, has)).digests(), rule.looks()


def counted(modules: Mapping[str, Loaded], has: Callable[[str], int]) -> dict[str, list[Statement]]:
    """The statements of each module that count; of one that counts whole, all."""
    (rule := _Rule(modules, has)).count()
    return {
        name: [*module.source.statements] if module.ran is None else rule.statements(name)
        for name, module in modules.items()
    }


def total_look(units: Mapping[str, str]) -> int:
    """How several units look together, wherever they lie: looks are added up."""
    return sum(int(look, 16) for look in units.values()) % 2**64


def seen_in(units: Collection[str]) -> dict[str, tuple[frozenset[str] | None, frozenset[str]]]:
    """From the names of the units that count: the modules, each with the functions that ran (and
    names of classes and constants) and with what was asked for."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for unit in units:
        module, _, name = unit.partition(":")
        ran, asked = found.setdefault(module, (set(), set()))
        (asked if name.startswith(ASKED) else ran).add(name.removeprefix(ASKED))
    return {
        module: (None if ALL in ran else frozenset(ran), frozenset(asked))
        for module, (ran, asked) in found.items()
    }


def parents(module: str) -> Iterator[str]:
    """The names of the packages around a module, outermost first, and its own."""
    return accumulate(module.split("."), "{}.{}".format)


def functions_like(
    modules: Mapping[str, Loaded], has: Callable[[str], int], wanted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The functions of modules with one of these looks, as ``(module, function)``."""
    rule = _Rule(modules, has)
    for name, module in modules.items():
        for statement in module.source.statements:
            for function, part in statement.functions.items():
                if f"{rule.look(name, part):016x}" in wanted:
                    yield name, function


def imported_by(name: str, module: Loaded, parts: Iterable[Part]) -> Iterator[str]:
    """The names of modules that parts of a module may import."""
    return _Rule({name: module}, lambda _: 0).imported_by(name, parts)


def may_run(
    modules: Mapping[str, Loaded],
    has: Callable[[str], int],
    load: Callable[[str], Loaded | None],
) -> dict[str, Loaded]:
    """The modules of code that has not run yet. Beside the functions that ran before, those count
    that counted code mentions, and those of statements that may do more than bind them; so do the
    modules that counted code imports.

    Args:
        load: returns a module of the project by name, none of whose functions ran.
    """
    found = dict(modules)
    while True:
        rule = _Rule(found, has)
        rule.count()
        wider = {name: replace(m, ran=rule.may_run(name)) for name, m in found.items()}
        for name in rule.imported() - wider.keys():
            if (loaded := load(name)) is not None:
                wider[name] = loaded
        if wider == found:
            return found
        found = wider


class _Rule:
    def __init__(self, modules: Mapping[str, Loaded], has: Callable[[str], int]):
        self.modules, self.has = modules, has
        self.words: set[str] = set()
        self.whole: set[str] = set()
        self.held: set[str] = set()  # those of them whose attributes have been followed
        self.counts_bodies = self.counts_text = False
        self.types_act = any(m.source.has_acting_types for m in modules.values())
        self.by_file = {name.split(BY_FILE)[0].split(".")[0] for name in modules if BY_FILE in name}
        self.counted: dict[str, set[int]] = {name: set() for name in modules}

    def digests(self) -> dict[str, str]:
        self.count()
        return {
            f"{name}:{unit}": digest
            for name in sorted(self.modules)
            for unit, digest in self._of_module(name)
        }

    def looks(self) -> dict[str, str]:
        return {
            f"{name}:{unit}": f"{look % 2**64:016x}"
            for name in sorted(self.modules)
            for unit, look in self._looks_of_module(name)
            if look
        }

    def count(self) -> None:
        self._begin()
        while self._spread():
            pass

    def _begin(self) -> None:
        for name, module in self.modules.items():
            if BY_FILE in name:
                self.whole.add(name)
            if module.ran is None:
                self._note(name, module.source.whole)
                continue
            if ALL in module.asked:
                self.whole.add(name)
            self.words |= module.asked
            for stars in module.source.stars:
                self.whole |= {name, *self._named(name, *stars[:2], "")}
            for function, part in self._ran(module):
                self.words.add(function.partition(".")[0])
                self._note(name, part)

    def _ran(self, module: Loaded) -> Iterator[tuple[str, Part]]:
        for statement in module.source.statements:
            for function, part in statement.functions.items():
                if module.ran is not None and function in module.ran:
                    yield function, part

    def _spread(self) -> bool:
        """Count what counted code mentions. Return whether this was more than before."""
        before = self._extent()
        for name in self.whole - self.held:
            self.held.add(name)
            self.whole |= self._held_by(name)
        for name, module in self.modules.items():
            if module.ran is None:
                continue
            for number, statement in enumerate(module.source.statements):
                if number not in self.counted[name] and self._counts(name, statement):
                    self.counted[name].add(number)
                    self._note(name, statement.part)
                    if self.counts_bodies:
                        self._note_functions(name, statement)
            for alias, places in module.source.aliases.items():
                if alias in self.words or name in self.whole:
                    self.words.update(taken for _, _, taken in places)
        return before != self._extent()

    def _extent(self) -> tuple[int, ...]:
        counted = sum(map(len, self.counted.values()))
        return len(self.words), len(self.whole), counted, self.counts_bodies

    def _binds(self, name: str, level: int, module: str, attribute: str) -> bool:
        """Whether what an import takes is bound by another loaded module, and is no module."""
        target = self.absolute(name, level, module)
        loaded = self.modules.get(target)
        is_bound = loaded is not None and attribute in loaded.source.bindings
        return is_bound and f"{target}.{attribute}" not in self.modules

    def _counts(self, name: str, statement: Statement) -> bool:
        if (
            statement.binds is None
            or name in self.whole
            or (statement.has_hints and self.types_act)
        ):
            return True
        tops = (module.partition(".")[0] for _, module, _ in statement.part.imports)
        if any(self.has(top) or top in self.by_file for top in tops):
            return True
        return not self.words.isdisjoint(statement.binds)

    def _note(self, name: str, part: Part) -> None:
        self.words |= part.words
        self.words.update(at[2] for at in part.imports if not self._binds(name, *at))
        if MODULE in part.reflection:
            self.whole.add(name)
        if EVERYTHING in part.reflection:
            self.whole.update(self.modules)
        self.whole |= part.reflection & self.modules.keys()
        self.counts_text |= READS_TEXT in part.reflection
        if BODIES in part.reflection and not self.counts_bodies:
            self.counts_bodies = True
            for other, numbers in self.counted.items():
                for number in numbers:
                    self._note_functions(other, self.modules[other].source.statements[number])
        for value in part.values:
            self.whole |= self._modules_of(name, value.split("."))

    def _note_functions(self, name: str, statement: Statement) -> None:
        for part in statement.functions.values():
            self._note(name, part)

    # --- code that has not run yet ---------------------------------------------------------------

    def may_run(self, name: str) -> frozenset[str] | None:
        """The functions of a module that ran, or that counted code mentions."""
        module = self.modules[name]
        if module.ran is None:
            return None
        found = set(module.ran)
        for number in self.counted[name]:
            statement = module.source.statements[number]
            is_open = name in self.whole or statement.binds is None
            for function in statement.functions:
                own = function.rpartition(".")[2]
                if is_open or own in self.words or own.startswith("__"):
                    found.add(function)
        return frozenset(found)

    def imported(self) -> set[str]:
        """The names of modules that counted code may import."""
        found: set[str] = set()
        for name, module in self.modules.items():
            parts = [module.source.statements[number].part for number in self.counted[name]]
            parts += [part for _, part in self._ran(module)]
            parts += [module.source.whole] * (module.ran is None)
            found.update(self.imported_by(name, parts))
        return found

    def imported_by(self, name: str, parts: Iterable[Part]) -> Iterator[str]:
        for level, target, attribute in (taken for part in parts for taken in part.imports):
            yield from parents(f"{self.absolute(name, level, target)}.{attribute}")

    # --- modules as values -----------------------------------------------------------------------

    def _modules_of(self, name: str, dotted: list[str]) -> set[str]:
        """The loaded modules that an imported name with attributes may stand for."""
        found: set[str] = set()
        for at in self.modules[name].source.aliases.get(dotted[0], ()):
            found |= self._named(name, *at)
        for attribute in dotted[1:]:
            found = {m for one in found for m in self._attribute(one, attribute)}
        return found

    def _held_by(self, name: str) -> set[str]:
        """The loaded modules that are attributes of a module."""
        inner = {module for module in self.modules if module.rpartition(".")[0] == name}
        places = (at for found in self.modules[name].source.aliases.values() for at in found)
        return inner.union(*(self._named(name, *at) for at in places))

    def _named(self, name: str, level: int, module: str, attribute: str) -> set[str]:
        """The loaded modules that an import in a module may bind."""
        target = self.absolute(name, level, module)
        if attribute and attribute != "*":
            return self._attribute(target, attribute)
        return {target} & self.modules.keys()

    def _attribute(self, module: str, attribute: str, depth: int = 0) -> set[str]:
        inner = {f"{module}.{attribute}"} & self.modules.keys()
        if (loaded := self.modules.get(module)) is None or depth > len(self.modules):
            return inner
        source = loaded.source
        if source.stars:
            return {m for m in self.modules if m.rpartition(".")[2] == attribute}
        for level, target, name in source.aliases.get(attribute, ()):
            other = self.absolute(module, level, target)
            if name:
                inner |= self._attribute(other, name, depth + 1)
            else:
                inner |= {other} & self.modules.keys()
        return inner

    def absolute(self, name: str, level: int, module: str) -> str:
        if not level:
            return module
        parts = name.split(BY_FILE)[0].split(".")
        kept = parts[: len(parts) - level + self.modules[name].is_package]
        return ".".join([*kept, *([module] if module else [])])

    # --- digests ---------------------------------------------------------------------------------

    def _of_module(self, name: str) -> Iterator[tuple[str, str]]:
        module = self.modules[name]
        yield from ((f"{ASKED}{asked}", "") for asked in sorted(module.asked))
        if self.counts_text:
            yield TEXT, module.source.text
        if module.ran is None:
            yield ALL, self._with_places(name, module.source.whole)
            return
        order: list[str] = []
        for statement in self.statements(name):
            if statement.binds is not None and statement.has_own_digest:
                unit = statement.binds[0]
                yield unit, statement.part.digest
                order.append(f"={unit}")
            else:
                order.append(self._with_places(name, statement.part))
        for function, parts in self._functions(name).items():
            yield function, _joined([self._with_places(name, part) for part in parts])
        yield IMPORT, _joined(order)

    def statements(self, name: str) -> list[Statement]:
        """The statements of a module that count."""
        statements = self.modules[name].source.statements
        return [statements[number] for number in sorted(self.counted[name])]

    def _functions(self, name: str) -> dict[str, list[Part]]:
        """The parts of a module's functions that count; one name may have several."""
        found: dict[str, list[Part]] = {}
        ran = self.modules[name].ran or ()
        for statement in self.statements(name):
            for function, part in statement.functions.items():
                if self.counts_bodies or function in ran:
                    found.setdefault(function, []).append(part)
        return found

    # --- looks -----------------------------------------------------------------------------------

    def _looks_of_module(self, name: str) -> Iterator[tuple[str, int]]:
        module = self.modules[name]
        if self.counts_text:
            yield TEXT, int(module.source.text[:16], 16)
        if module.ran is None:
            yield ALL, self.look(name, module.source.whole)
            return
        at_import, before = 0, ""
        for statement in self.statements(name):
            look = self.look(name, statement.part)
            if statement.binds is not None and statement.has_own_digest:
                yield statement.binds[0], look
                continue
            at_import += look
            if statement.binds is None and look:  # what acts has an order
                at_import += int(_joined([before, str(look)])[:16], 16)
                before = str(look)
        for function, parts in self._functions(name).items():
            yield function, sum(self.look(name, part) for part in parts)
        yield IMPORT, at_import

    def look(self, name: str, part: Part) -> int:
        """How a part of a module looks: a number below 2**64, 0 if nothing is left."""
        if not part.look:
            return 0
        places = [self._origin(name, *at) for at in part.origins]
        return int(_joined([part.look, *places])[:16], 16)

    def _origin(self, name: str, level: int, module: str, taken: str, attribute: str) -> str:
        """What an imported or bound name is: where it comes from, or for a definition of the
        project how it looks, apart from what it mentions in turn."""
        if not level and not module:
            return self._definition(name, taken)
        target = self.absolute(name, level, module)
        if not self.has(target):
            return ".".join(filter(None, (target, taken, attribute)))
        inner = f"{target}.{taken}" if taken else target
        if not taken or self.has(inner):
            return self._definition(inner, attribute)
        return f"{self._definition(target, taken)} {attribute}".strip()

    def _definition(self, module: str, name: str, depth: int = 0) -> str:
        if (loaded := self.modules.get(module)) is None or depth > len(self.modules):
            return ""
        if name in loaded.source.looks:
            return loaded.source.looks[name]
        for level, target, taken in loaded.source.aliases.get(name, ()):
            if taken:
                return self._definition(self.absolute(module, level, target), taken, depth + 1)
        return ""

    def _with_places(self, name: str, part: Part) -> str:
        """A part's digest, and for each name that it imports, whether the project has such a
        module and packages around it, and whether a loaded module binds the name: where an import
        leads depends on which files there are, and on what they bind."""
        found = [part.digest]
        for level, module, attribute in part.imports:
            target = self.absolute(name, level, module)
            found += [str(int(self.has(parent))) for parent in parents(target)]
            if attribute and found[-1] != "0":
                found += [str(int(self.has(f"{target}.{attribute}")))]
                found += [str(int(self._binds(name, level, module, attribute)))]
        return " ".join(found)


def _joined(digests: list[str]) -> str:
    return blake3.blake3("\n".join(digests).encode()).hexdigest()[:32]
