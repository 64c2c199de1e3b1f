"""The form of a statement: its content as text, with references in place of global names.

Code that does the same has the same form: comments, layout, parentheses, names of local variables
and the Python version do not change it. Parts that only certain readers can see stand in a
:class:`When`, and are left out unless the closure contains such a reader. A reference does not
contain the code that it refers to: so moving or renaming that code does not change the form.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple


def words(text: str) -> tuple[str, ...]:
    """The words of a list that is written as one text."""
    return tuple(text.split())


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def read_table(text: str) -> dict[str, frozenset[str]]:
    """The readers of each name, from a table with lines ``readers: names``."""
    lines = (line.partition(":") for line in text.strip().splitlines())
    readers = ((frozenset(before.split()) - {"nothing"}, names) for before, _, names in lines)
    return {name: found for found, names in readers for name in names.split()}


class Reader:
    """What reads a part of the code that does not count otherwise; the part counts for it.

    ``DOCS``: docstrings. ``HINTS``: annotations. ``NAMES``: names of functions and variables.
    ``CLASSES``: names of classes. ``TEXTS``: texts of errors and warnings. ``FIELDS``: a dataclass
    field, which counts unless instances are arguments, which count by value. ``DEFAULTS``: defaults
    of a function, which count unless it is the step, whose recipe holds them. ``TYPES``: the code
    may get from a value to the declarations of its type. ``SUBCLASSES``: it lists the subclasses of
    a class. ``ANY_SUBCLASSES``: of a class that may be a library's. ``ITSELF``: a class accesses
    itself. ``MODULES``: names of modules appear in its results. ``NAMESPACES``: it may access any
    global of a module that has code in the closure. ``LOOKUPS``: it may do so for every module that
    is loaded. ``ORDER``: it may list the globals of a module in their order. ``MESSAGES``: messages
    of the interpreter, which name functions and modules.
    """

    DOCS, HINTS, NAMES, CLASSES, TEXTS = "docs", "hints", "names", "classes", "texts"
    FIELDS, DEFAULTS, TYPES, SUBCLASSES = "fields", "defaults", "types", "subclasses"
    ITSELF, MODULES, NAMESPACES, LOOKUPS = "itself", "modules", "namespaces", "lookups"
    ORDER, MESSAGES, ANY_SUBCLASSES = "order", "messages", "any subclasses"


DETAIL = "execution_detail"
"""The decorator that declares that a definition affects no result."""

TYPE_MARKS = ("ClassVar", "InitVar", "KW_ONLY")
"""Annotations that change what a dataclass makes of a field."""

TRAITS_OF_NAMES = read_table("""
docs: __doc__ getdoc
names: __name__ __qualname__ co_name co_qualname
names modules: __module__ __mro__ __bases__ mro
hints types order: __annotations__ __annotate__
hints types: __signature__ __wrapped__ __type_params__ annotation return_annotation
types: __class__ __match_args__ delattr
types hints: __dataclass_fields__
subclasses: __subclasses__
lookups: __import__
order: vars __dict__ globals
names texts order: locals
texts names modules: handlers callHandlers lastResort return_exceptions __context__ __cause__
texts names modules: __traceback__ __notes__ addHandler addFilter setLogRecordFactory
texts names modules: setLoggerClass
texts: stderr push __exit__ __aexit__ set_exception_handler settrace unraisablehook setprofile
texts: callbacks excepthook showwarning formatwarning filterwarnings
docs hints names texts: __code__ f_code gi_code cr_code
names namespaces: f_locals f_globals tb_frame f_back
""")
"""Names with which code reads what does not count otherwise: docstrings, names, texts and so on."""


class Use:
    """How a name is used.

    ``CALL``: called, or one of its attributes is read. ``VALUE``: used as a value. ``HINT``: read
    as a type. ``NAMED``: named by an annotation whose text counts elsewhere. ``BASE``: base of a
    class. ``SHOWN``: converted to text. ``OWNED``: type of a field of a class. ``LISTED``: only
    asked for the names of its fields or parameters. ``STORED``: assigned to. ``MADE``: called for a
    value that is converted to text.
    """

    CALL, VALUE, HINT, NAMED, BASE = "call", "value", "hint", "named", "base"
    SHOWN, OWNED, LISTED, STORED, MADE = "shown", "owned", "listed", "stored", "made"


class Ref(NamedTuple):
    """A dotted name that is read from the globals of a module; an empty path is the module itself.
    ``use`` is one of :class:`Use`."""

    module: str
    path: str
    use: str = Use.VALUE

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split(".")) if self.path else ()


Dotted = tuple[str, ...]
"""The parts of a dotted name."""


class Load(NamedTuple):
    """An import that runs: of a module, or of a name in a module, which may be a submodule."""

    module: str
    name: str = ""


class Tried(NamedTuple):
    """An import after which the code goes on if there is no such module or name."""

    module: str
    name: str = ""


class Bound(NamedTuple):
    """A global name that the statement binds in its own module."""

    name: str


class Dynamic(NamedTuple):
    """A call with texts as arguments: names of modules, if the function imports modules."""

    called: Ref
    texts: tuple[str, ...]
    package: str


class When(NamedTuple):
    """A part that counts only if the closure contains this reader."""

    reader: str
    form: tuple["Piece", ...]


class Decorator(NamedTuple):
    """A decorator of the function or class that a statement defines."""

    name: Ref | None
    form: tuple["Piece", ...]


class Detail(NamedTuple):
    """A definition with a decorator that may declare it an execution detail."""

    decorator: Ref
    form: tuple["Piece", ...]


class Caught(NamedTuple):
    """An exception handler that does more with the exception than raise it again.

    Attributes:
        is_risky: it may catch messages of the interpreter, which name functions and modules.
        given_to: the functions that receive the exception; ``None`` for any other use.
    """

    is_risky: bool
    given_to: tuple[Ref | None, ...]


class Message(NamedTuple):
    """The text in a call; it does not count if the called function is a logger."""

    called: Ref
    form: tuple["Piece", ...]


class Evaluated(NamedTuple):
    """An annotation that is evaluated with its definition. It counts if the attributes, items or
    operators of one of these names may run project code, or if the names are ``None``: unknown."""

    names: tuple[Ref, ...] | None
    form: tuple["Piece", ...]


class Need(NamedTuple):
    """A condition on the target of a name; see :mod:`pipeline.code.acting`. ``holder`` is given the
    target, or what it returns."""

    what: str
    ref: Ref
    holder: Ref | None = None


Piece = (
    str
    | Ref
    | Load
    | Tried
    | Bound
    | Dynamic
    | When
    | Decorator
    | Detail
    | Caught
    | Message
    | Evaluated
)
Form = tuple[Piece, ...]

_KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Ref, Load, Tried, Bound, Dynamic, When, Decorator, Detail, Caught, Message),
        *(Evaluated, Need),
    )
}


def flat(form: Form, readers: Collection[str]) -> Iterator[Piece]:
    """The pieces that count for these readers, without the pieces inside other pieces."""
    for piece in form:
        if isinstance(piece, When):
            if piece.reader in readers:
                yield from flat(piece.form, readers)
        else:
            yield piece


def first_names(form: Form) -> Iterator[str]:
    """The first parts of the dotted names in a form."""
    for piece in form:
        if isinstance(piece, Ref):
            yield piece.parts[0] if piece.path else ""
        elif isinstance(piece, When | Decorator | Detail | Message | Evaluated):
            yield from first_names(piece.form)


def to_json(value: Any) -> Any:
    """A form, or a part of one, as JSON."""
    if isinstance(value, tuple):
        kind = [type(value).__name__] if hasattr(value, "_fields") else [""]
        return kind + [to_json(item) for item in value]
    return value


def from_json(data: Any) -> Any:
    """Raise KeyError, TypeError, ValueError or IndexError if the data is no form."""
    if isinstance(data, list):
        items = map(from_json, data[1:])
        return _KINDS[data[0]](*items) if data[0] else tuple(items)
    if not isinstance(data, str | int | bool | None):
        raise TypeError(data)
    return data
