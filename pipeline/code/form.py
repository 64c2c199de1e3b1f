"""The form of a statement: what it says, as a text with holes where it names something.

The text is the same for code that does the same: it differs neither with comments, layout or
parentheses, nor with the names of local variables, nor with the version of Python that parses the
source. What a statement says only to some readers stands in a :class:`When`, and is left out
unless such a reader is among the code. What a name stands for is no part of a form: other code
says it, so that moving or renaming what is named changes no form.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

DOCS, HINTS, NAMES, CLASSES, TEXTS = "docs", "hints", "names", "classes", "texts"
"""Who must be among the code for a part to count: readers of docstrings, of annotations, of the
names of functions and variables, of those of classes, of the texts of errors and warnings."""

FIELDS = "fields"
"""The fields of a dataclass: counted unless its instances come in as arguments, by value."""

DEFAULTS = "defaults"
"""The defaults of a function: counted unless it is the step, whose arguments are in the recipe."""

CALL, VALUE, HINT, NAMED, BASE = "call", "value", "hint", "named", "base"
SHOWN, OWNED, LISTED, STORED, MADE = "shown", "owned", "listed", "stored", "made"


class Ref(NamedTuple):
    """A dotted name that is read from the globals of a module; no path is the module itself.

    Attributes:
        use: it is called (or asked for an attribute); used as a value; read as a type; named by a
            type, whose text counts elsewhere; the base of a class; turned into a text;
            the type of a field of a class; asked for names of fields or parameters alone; set; or
            called for something that is turned into a text.
    """

    module: str
    path: str
    use: str = VALUE

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split(".")) if self.path else ()


class Load(NamedTuple):
    """An import that runs: of a module, or of a name in it, which may be a module too."""

    module: str
    name: str = ""


class Bound(NamedTuple):
    """A global name of the statement's own module that it binds."""

    name: str


class Dynamic(NamedTuple):
    """A call with texts among its arguments: names of modules, if what is called imports."""

    called: Ref
    texts: tuple[str, ...]
    package: str


class When(NamedTuple):
    """A part for some readers only."""

    reader: str
    form: tuple["Piece", ...]


class Decorator(NamedTuple):
    """A decorator of the function or class that a statement defines."""

    name: Ref | None
    form: tuple["Piece", ...]


class Detail(NamedTuple):
    """A definition under a decorator that may declare it an execution detail."""

    decorator: Ref
    form: tuple["Piece", ...]


class Caught(NamedTuple):
    """A handler that does more with an exception than raise it.

    Attributes:
        is_risky: the interpreter's own messages may be caught, which name functions and modules.
        given_to: what it is given to; ``None`` for any other use.
    """

    is_risky: bool
    given_to: tuple[Ref | None, ...]


class Said(NamedTuple):
    """The text of a call: of no account where what is called is a logger."""

    called: Ref
    form: tuple["Piece", ...]


class Need(NamedTuple):
    """What a name must stand for; see :mod:`pipeline.code.acting`."""

    what: str
    ref: Ref


Piece = str | Ref | Load | Bound | Dynamic | When | Decorator | Detail | Caught | Said
Form = tuple[Piece, ...]

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (Ref, Load, Bound, Dynamic, When, Decorator, Detail, Caught, Said, Need)
}


def flat(form: Form, readers: Collection[str]) -> Iterator[Piece]:
    """The pieces that count where there are these readers; of what is in other pieces, nothing."""
    for piece in form:
        if isinstance(piece, When):
            if piece.reader in readers:
                yield from flat(piece.form, readers)
        else:
            yield piece


def first_names(form: Form) -> Iterator[str]:
    """The names with which the dotted names in a form begin."""
    for piece in form:
        if isinstance(piece, Ref):
            yield piece.parts[0] if piece.path else ""
        elif isinstance(piece, When | Decorator | Detail | Said):
            yield from first_names(piece.form)


def to_json(value: Any) -> Any:
    """A form, or a part of one, as JSON."""
    if isinstance(value, tuple):
        kind = [type(value).__name__] if hasattr(value, "_fields") else [""]
        return kind + [to_json(item) for item in value]
    return value


def from_json(data: Any) -> Any:
    """
    Raises:
        KeyError, TypeError, ValueError, IndexError: it is none.
    """
    if isinstance(data, list):
        items = map(from_json, data[1:])
        return _KINDS[data[0]](*items) if data[0] else tuple(items)
    if not isinstance(data, str | int | bool | None):
        raise TypeError(data)
    return data
