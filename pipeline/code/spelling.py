"""What a statement says to readers, whichever walk asks.

Walks from different steps, and the rounds of one walk, reach mostly the same statements with the
same readers. What depends on no walk is found out once: the pieces that count, which of them are
names to follow, and the text that they give.
"""

from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from pipeline.code.effects import Effects
from pipeline.code.form import (
    DETAIL,
    TYPE_MARKS,
    Bound,
    Decorator,
    Detail,
    Evaluated,
    Form,
    Load,
    Message,
    Piece,
    Reader,
    Ref,
    Tried,
    Use,
    When,
    flat,
    words,
)
from pipeline.code.meaning import IMPORT, Target, Unit
from pipeline.code.statement import Statement

_NAMELESS = ("abc.ABC", "typing.Generic", "typing.Protocol", "typing.final")
_QUIET = tuple(
    f"{name}."
    for name in words("""
    dataclasses functools typing typing_extensions abc contextlib enum torch.no_grad
    torch.inference_mode torch.nn torch.autograd builtins types collections torch.utils.data
    json threading
""")
)
"""Libraries whose decorators, bases and functions read nothing of a definition but its effects.

Each name ends with a dot, so that only whole names are found at the beginning of a target's.
"""


class Spelt:
    """Pieces that follow each other in a module.

    Attributes:
        links: the pieces that are not mere text.
        loads: the imports among them.
    """

    def __init__(self, module: str, pieces: Form):
        self.module, self.pieces = module, pieces
        self.links = tuple(piece for piece in pieces if not isinstance(piece, str))
        self.loads = tuple(piece for piece in self.links if isinstance(piece, Load))


class Asked(NamedTuple):
    """What decides which pieces of a statement count.

    Attributes:
        readers: the readers in the closure.
        is_shown: whether other code receives what the statement defines.
        is_hinted: whether annotations of a class count.
        fields: the fields that count.
        is_start: whether it is the step function.
        has_defaults: whether defaults of a function count.
        with_details: whether execution details count.
    """

    readers: frozenset[str]
    is_shown: bool
    is_hinted: bool
    fields: Collection[str]
    is_start: bool
    has_defaults: bool
    with_details: bool


class Spelling:
    """The statements of a project, as the effects of its imports let them be read."""

    def __init__(self, effects: Effects):
        self.project, self.effects = effects.project, effects
        self._spelt: dict[tuple[str, int, Asked], Spelt] = {}
        self._quiet: dict[tuple[str, int], bool] = {}
        self.if_listed = cache(self._if_listed)
        self.plain = cache(Spelt)
        self.statements = cache(self._statements)
        self.bases = cache(self._bases)
        self.may_hide_details = cache(self._may_hide_details)
        self.is_read_by_library = cache(self._is_read_by_library)
        self.named = cache(self._named_text)
        self.numbered = cache(self._numbered_text)

    def _if_listed(self, listed: str) -> "Spelling":
        return Spelling(Effects(self.project, listed)) if listed else self

    # --- pieces --------------------------------------------------------------------------------

    def of(self, statement: Statement, asked: Asked) -> Spelt:
        """The pieces of a statement that count."""
        about = statement.module, statement.place, asked
        if about not in self._spelt:
            pieces = self._pieces(statement.form, self._readers_of(statement, asked), asked)
            self._spelt[about] = Spelt(statement.module, ("\n", *pieces))
        return self._spelt[about]

    def _readers_of(self, statement: Statement, asked: Asked) -> set[str]:
        readers = set(asked.readers)
        is_shown = asked.is_shown and statement.kind in ("function", "class")
        if is_shown or not self.is_quiet(statement):
            readers |= {Reader.DOCS, Reader.HINTS, Reader.NAMES, Reader.CLASSES}
        if not self._is_nameless(statement):
            readers.add(Reader.CLASSES)
        if Reader.DOCS in readers and self.project.is_dataclass(statement):
            readers.add(Reader.HINTS)  # a dataclass makes its docstring of its fields
        if asked.is_hinted and statement.kind == "class":
            readers.add(Reader.HINTS)
        readers |= {f"{Reader.FIELDS} {name}" for name in asked.fields}
        if asked.has_defaults:
            readers.add(Reader.DEFAULTS)
        if asked.is_start:
            readers -= {Reader.NAMES, Reader.DOCS, Reader.HINTS, Reader.CLASSES} - asked.readers
        return readers

    def _pieces(self, form: Form, readers: Collection[str], asked: Asked) -> Iterator[Piece]:
        for piece in flat(form, readers):
            if isinstance(piece, Decorator):
                if not (asked.is_start and self.project.is_core(piece.name)):
                    yield from self._pieces(piece.form, readers, asked)
            elif isinstance(piece, Detail):
                if asked.with_details or not self.declares(piece.decorator):
                    yield from self._pieces(piece.form, readers, asked)
                else:
                    yield "detail"
            elif isinstance(piece, Message):
                if Reader.TEXTS in readers or not self._only_keeps_text(piece.called):
                    yield from self._pieces(piece.form, readers, asked)
            elif isinstance(piece, Evaluated):
                if piece.names is None or not all(map(self.effects.is_inert, piece.names)):
                    yield from self._pieces(piece.form, readers, asked)
            else:
                yield piece

    # --- text ----------------------------------------------------------------------------------

    def _named_text(self, spelt: Spelt, shows_modules: bool) -> str:
        """The text of pieces, with the names of units; imports are left out."""
        found = self._text(spelt, shows_modules, with_loads=False)
        return "".join(":".join(part) if isinstance(part, tuple) else part for part in found)

    def _numbered_text(self, spelt: Spelt, shows_modules: bool) -> tuple[str | Unit, ...]:
        """The text of pieces, with units in place of their numbers."""
        merged: list[str | Unit] = []
        for part in self._text(spelt, shows_modules, with_loads=True):
            if isinstance(part, str) and merged and isinstance(merged[-1], str):
                merged[-1] += part
            else:
                merged.append(part)
        return tuple(merged)

    def _text(self, spelt: Spelt, shows_modules: bool, with_loads: bool) -> Iterator[str | Unit]:
        for piece in spelt.pieces:
            if isinstance(piece, str):
                yield piece
            elif isinstance(piece, Ref):
                if piece.use == Use.OWNED:
                    yield from self._mark_of(piece)
                elif piece.use != Use.NAMED:
                    yield from self._named(piece, shows_modules)
            elif isinstance(piece, Load):
                for unit in self.effects.acting(piece) if with_loads else ():
                    yield from ("<import ", unit, ">")
            elif isinstance(piece, Tried):
                yield "<there>" if self._is_there(piece) else ""
            elif isinstance(piece, Bound):
                yield from ("<", (spelt.module, piece.name), ">")

    def _mark_of(self, hint: Ref) -> Iterator[str]:
        """The special marker that a name in a field's annotation stands for, if the name is not
        its own: ``from typing import ClassVar as Shared``."""
        for target in self.project.meaning(hint):
            mark = str(target).rpartition(".")[2]
            if target.library and mark in TYPE_MARKS and mark != hint.parts[-1]:
                yield f"<{mark}>"

    def _named(self, reference: Ref, shows_modules: bool) -> Iterator[str | Unit]:
        targets = self.project.meaning(reference)
        if not targets:
            place = reference.module if shows_modules else ""
            yield f"{{{place}:{reference.path}}}"
            return
        for number, target in enumerate(targets):
            yield "|" if number else "{"
            if target.library:
                yield str(target)
            else:
                yield target.unit
                yield "".join(f".{name}" for name in target.rest)
        yield "}"

    def _is_there(self, tried: Tried) -> bool:
        """Whether an import finds a module of the project, and the name in it."""
        if self.project.module(tried.module) is None:
            return False
        return tried.name in ("", "*") or bool(self.project.resolve(tried.module, (tried.name,)))

    # --- what a definition is --------------------------------------------------------------------

    def is_quiet(self, statement: Statement) -> bool:
        """Whether no decorator or base of the definition reads more of it than its effects."""
        place = statement.module, statement.place
        if place not in self._quiet:
            named = (*statement.decorators, *statement.bases, *statement.metaclass)
            self._quiet[place] = all(n is not None and self._is_quiet_name(n) for n in named)
        return self._quiet[place]

    def _is_quiet_name(self, name: Ref) -> bool:
        return all(
            not target.library or self.project.is_core(name) or f"{target}.".startswith(_QUIET)
            for target in self.project.meaning(name)
        )

    def _is_nameless(self, statement: Statement, below: tuple[Statement, ...] = ()) -> bool:
        """Whether the name of a class appears only where code asks for it. The name of a dataclass
        or enum appears in the text of its values."""
        if statement.metaclass or None in statement.bases:
            return False
        names = (*statement.decorators[: statement.own_decorators], *statement.bases)
        below = (*below, statement)  # as in `class Module(Module)`, a base may have its name
        return all(
            str(target).startswith(_NAMELESS)
            if target.library
            else all(
                p in below or (p.is_class and self._is_nameless(p, below))
                for p in self.project.statements(target)
            )
            for target in self.project.targets(names)
        )

    def _is_read_by_library(self, unit: Unit, below: frozenset[Unit] = frozenset()) -> bool:
        """Whether a decorator or an ancestor of a class is a library's that may read the class."""
        if not all(map(self.is_quiet, self.statements(unit))):
            return True
        below |= {unit}
        bases = (base for base in self.bases(unit) if base not in below)
        return any(self._is_read_by_library(base, below) for base in bases)

    def _bases(self, unit: Unit) -> tuple[Unit, ...]:
        """The project's own bases of a class."""
        names = (name for s in self.statements(unit) if s.is_class for name in s.bases)
        targets = self.project.targets(names)
        return tuple(target.unit for target in targets if not target.library)

    def _statements(self, unit: Unit) -> tuple[Statement, ...]:
        module, name = unit
        if name == IMPORT:
            return self.effects.of(module)
        return self.project.units(module).get(name, ())

    def _may_hide_details(self, unit: Unit) -> bool:
        """Whether it may say more to a walk that follows execution details."""
        return any(_has_details(statement.form) for statement in self.statements(unit))

    def declares(self, decorator: Ref) -> bool:
        """Whether a decorator is the one that declares execution details."""
        targets = self.project.meaning(decorator)
        return bool(targets) and all(
            target.name == DETAIL or (target.library and target.rest[-1:] == (DETAIL,))
            for target in targets
        )

    def _only_keeps_text(self, called: Ref, below: tuple[Statement, ...] = ()) -> bool:
        """Whether it is a logger, or an exception that only stores its text."""
        return all(self._keeps_text(target, below) for target in self.project.meaning(called))

    def _keeps_text(self, target: Target, below: tuple[Statement, ...] = ()) -> bool:
        if target.library:
            return True
        parts = self.project.statements(target)
        return bool(parts) and all(
            self._is_plain_error(part, below) if part.is_class else self.is_logger(part)
            for part in parts
        )

    def _is_plain_error(self, part: Statement, below: tuple[Statement, ...] = ()) -> bool:
        return part in below or (
            not part.special
            and all(
                base is not None and self._only_keeps_text(base, (*below, part))
                for base in part.bases
            )
        )

    def is_logger(self, part: Statement) -> bool:
        makers = [str(target) for target in self.project.targets(part.makers)]
        return part.kind == "other" and makers == ["logging.getLogger"]


def _has_details(form: Form) -> bool:
    within = (When, Decorator, Message, Evaluated)
    return any(
        isinstance(piece, Detail) or (isinstance(piece, within) and _has_details(piece.form))
        for piece in form
    )
