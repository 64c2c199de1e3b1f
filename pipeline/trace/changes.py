"""Says in words what of the code of a trace has changed since.

A trace has one digest for all statements of a module that may do more than bind names. Which of
them changed is found in the sources with which the trace last held, if this user's cache has them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pipeline.base import cells
from pipeline.base.text import counted as counted_text
from pipeline.base.text import cut
from pipeline.trace.counted import ALL, BY_FILE, IMPORT, TEXT, Loaded, counted
from pipeline.trace.source_parts import Part, Statement

UNREADABLE = "unreadable"
RELEASE = "(release)"
"""Names the release of a step that ships with Temper, in the trace of an unedited installation."""
_LONGEST_TEXT = 40


@dataclass(frozen=True)
class Sources:
    """The modules of a trace as they are at one time.

    Attributes:
        modules: the readable ones, by name.
        has: whether the project has a module of this name; see :meth:`Modules.has`.
        asked: the names for which somebody asked that.
        text: the bytes of a module's file.
    """

    modules: Mapping[str, Loaded]
    has: Callable[[str], int]
    asked: Collection[str] = ()
    text: Callable[[str], bytes] = lambda _: b""

    @cached_property
    def _counted(self) -> Mapping[str, list[Statement]]:
        return counted(self.modules, self.has)

    def parts(self, module: str, all_of: bool = False) -> list[tuple[str, Part]]:
        """The parts of a module that count at import, or all, each after the name of what it
        defines; it is empty for other statements."""
        loaded = self.modules[module]
        found: list[tuple[str, Part]] = []
        for statement in loaded.source.statements if all_of else self._counted[module]:
            own = [*(statement.binds or ())[: statement.has_own_digest], *statement.functions, ""]
            found.append((own[0], statement.part))
            found += statement.functions.items() if all_of or loaded.ran is None else ()
        return found

    def line(self, module: str, unit: str) -> int | None:
        """The line of a function, class or constant; ``None`` if the module has no such name."""
        for statement in self.modules[module].source.statements if module in self.modules else ():
            named = dict.fromkeys(statement.binds or (), statement.part) | dict(statement.functions)
            if unit in named:
                return named[unit].line
        return None


def code_changes(
    was: Mapping[str, str], now: Mapping[str, str], then: Sources | None, today: Sources
) -> list[str]:
    """A phrase for each change of code between the digests of a trace and its present ones. What is
    used, or not any more, because other code changed, has a phrase only if nothing else has.

    Args:
        then: the sources with which the trace last held; ``None`` if they are not known.
    """
    differ: dict[str, list[str]] = {}
    for name in (*was, *(name for name in now if name not in was)):
        if was.get(name) != now.get(name):
            differ.setdefault(name.partition(":")[0], []).append(name.partition(":")[2])
    changed = _Changes(was, now, then, today)
    found = dict.fromkeys(
        phrase for module in differ for phrase in changed.of(module, differ[module])
    )
    told = [*found] or changed.effects
    return sorted(told, key=lambda p: (" is gone" in p, not p.startswith("the release ")))


@dataclass
class _Changes:
    """Makes the phrases of :func:`code_changes`; ``effects`` are what other changes entail."""

    was: Mapping[str, str]
    now: Mapping[str, str]
    then: Sources | None
    today: Sources
    effects: list[str] = field(default_factory=list)

    def of(self, module: str, units: Sequence[str]) -> Iterator[str]:
        """The changes of these units of a module."""
        state = self.now.get(f"{module}:{ALL}")
        if RELEASE in units:
            one, other = (of[f"{module}:{RELEASE}"] for of in (self.now, self.was))
            yield f"the release of {module} is {one}, and was {other}"
        elif state is not None and module not in self.today.modules:
            what = self._place(module) if BY_FILE in module else f"module {module}"
            yield f"{what} is {'no valid Python' if state == UNREADABLE else 'gone'}"
        else:
            named = [unit for unit in units if unit not in (IMPORT, TEXT, ALL)]
            for unit in named:
                yield from self._named(module, unit)
            if len(named) < len(units):
                what = "the text" if [*units] == [TEXT] else "the top level"
                self.effects.append(f"{what} of {self._place(module)} changed")
                yield from self._parts(module, {*named})

    def _named(self, module: str, unit: str) -> Iterator[str]:
        name, line = f"{module}:{unit}", self.today.line(module, unit)
        place = self._place(module, line)
        if name in self.was and name in self.now:
            yield f"{unit} changed ({place})"
        elif name in self.was and line is None:
            yield f"{unit} is gone ({place})"
        elif name in self.now and (self.then is None or self.then.line(module, unit) is None):
            yield f"{unit} is new ({place})"
        else:
            does = "is used now" if name in self.now else "is not used any more"
            self.effects.insert(0, f"{unit} {does} ({place})")

    def _parts(self, module: str, told: set[str]) -> Iterator[str]:
        """The changes of other parts than those whose names are told."""
        if self.then is None or module not in {*self.then.modules} & {*self.today.modules}:
            return
        sides = (self.then, self.today), (self.today, self.then)
        lost, fresh = (
            [(name, part) for name, part in one.parts(module) if name not in told
             and part.digest not in {p.digest for _, p in other.parts(module, all_of=True)}]
            for one, other in sides
        )  # fmt: skip
        lines = self.today.text(module).decode(errors="replace").splitlines()
        for name, part in fresh:
            what = name or cut(lines[part.line - 1].strip(" :"), _LONGEST_TEXT)
            does = "changed" if len(fresh) <= len(lost) else "is new"
            yield f"{what} {does} ({self._place(module, part.line)})"
        if (gone := len(lost) - len(fresh)) > 0:
            yield f"{counted_text(gone, 'statement')} gone ({self._place(module)})"
        for name in self.then.asked:
            if bool(self.then.has(name)) != bool(there := self.today.has(name)):
                yield f"module {name} is {'new' if there else 'gone'}"
        orders = [[part.digest for _, part in side.parts(module)] for side, _ in sides]
        if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
            yield f"the order of statements changed ({self._place(module)})"

    def _place(self, module: str, line: int | None = None) -> str:
        if path := file_of(module):
            return f"{path}:{line}" if line else path
        loaded = self.today.modules.get(module)
        if loaded is None or module.startswith(cells.MODULE):
            return module
        path = module.replace(".", "/") + ("/__init__.py" if loaded.is_package else ".py")
        return f"{path}:{line}" if line else path


def file_of(module: str) -> str:
    """The file by which a trace names a module, without the module that it was found from; empty if
    it has its own name."""
    name = module.partition(BY_FILE)[2].replace("//", ":")
    return name.partition(">/")[2] if name.startswith("<") else name
