"""Reading a top-level statement: its form (:mod:`pipeline.code.form`) and its traits.

One pass over the syntax tree writes the form. The reader keeps track of the enclosing scopes by the
rules of the language reference (section 4.2): names that a function, class, lambda or comprehension
binds are local to it; all others are globals of the module, or builtins.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from pipeline.code.bindings import (
    Comprehension,
    Definition,
    Function,
    Import,
    Imported,
    bound,
    everything,
    imported,
    loaded,
    own_scope,
    surely_bound,
)
from pipeline.code.form import (
    BASE,
    CALL,
    CLASSES,
    DEFAULTS,
    DOCS,
    FIELDS,
    HINT,
    HINTS,
    LISTED,
    MADE,
    NAMED,
    NAMES,
    OWNED,
    SHOWN,
    STORED,
    TEXTS,
    VALUE,
    Bound,
    Caught,
    Decorator,
    Detail,
    Dynamic,
    Form,
    Load,
    Message,
    Piece,
    Ref,
    When,
)

TYPES, SUBCLASSES, ITSELF = "types", "subclasses", "itself"
MODULES, NAMESPACES, LOOKUPS, ORDER = "modules", "namespaces", "lookups", "order"
"""Further traits. ``TYPES``: the code may get from a value to the declarations of its type.
``SUBCLASSES``: it lists the subclasses of a class. ``ITSELF``: a class accesses itself.
``MODULES``: names of modules appear in its results. ``NAMESPACES``: it may access any global of a
module that has code in the closure. ``LOOKUPS``: it may do so for every module that is loaded.
``ORDER``: it may list the globals of a module in their order."""

DETAIL = "execution_detail"
"""The decorator that declares that a definition affects no result."""

TRAITS_OF_NAMES = {
    **dict.fromkeys(("__doc__", "getdoc"), (DOCS,)),
    **dict.fromkeys(("__name__", "__qualname__", "co_name", "co_qualname"), (NAMES,)),
    "__module__": (NAMES, MODULES),
    **dict.fromkeys(("__annotations__", "__annotate__"), (HINTS, TYPES, ORDER)),
    **dict.fromkeys(("__signature__", "__wrapped__", "__type_params__"), (HINTS, TYPES)),
    **dict.fromkeys(("__class__", "__match_args__"), (TYPES,)),
    "__dataclass_fields__": (TYPES, HINTS),
    "__subclasses__": (SUBCLASSES,),
    "delattr": (TYPES,),
    "__import__": (LOOKUPS,),
    **dict.fromkeys(("vars", "__dict__", "globals"), (ORDER,)),
    **dict.fromkeys(("__mro__", "__bases__", "mro"), (NAMES, MODULES)),
    "locals": (NAMES, TEXTS, ORDER),
    **dict.fromkeys(("annotation", "return_annotation"), (HINTS, TYPES)),
    **dict.fromkeys(("handlers", "callHandlers", "lastResort"), (TEXTS, NAMES, MODULES)),
    **dict.fromkeys(("stderr", "push"), (TEXTS,)),
    **dict.fromkeys(("__exit__", "__aexit__", "set_exception_handler", "settrace"), (TEXTS,)),
    **dict.fromkeys(("unraisablehook", "setprofile", "callbacks"), (TEXTS,)),
    "return_exceptions": (TEXTS, NAMES, MODULES),
    **dict.fromkeys(("__code__", "f_code", "gi_code", "cr_code"), (DOCS, HINTS, NAMES, TEXTS)),
    **dict.fromkeys(("f_locals", "f_globals", "tb_frame", "f_back"), (NAMES, NAMESPACES)),
    **dict.fromkeys(
        ("__context__", "__cause__", "__traceback__", "__notes__"), (TEXTS, NAMES, MODULES)
    ),
    **dict.fromkeys(("excepthook", "showwarning", "formatwarning", "filterwarnings"), (TEXTS,)),
    **dict.fromkeys(
        ("addHandler", "addFilter", "setLogRecordFactory", "setLoggerClass"),
        (TEXTS, NAMES, MODULES),
    ),
}
"""Names with which code reads what does not count otherwise: docstrings, names, texts and so on."""

_NAMESPACES = frozenset({"__globals__", "f_globals", "f_locals", "__builtins__"})
_PLACES = frozenset({"__name__", "__file__", "__package__", "__spec__", "__path__", "__loader__"})
_LOOKS_UP_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
_KEEPS = frozenset(
    {"isinstance", "issubclass", "map", "filter", "sorted", "min", "max", "sum", "any", "all"}
    | {"list", "tuple", "set", "frozenset", "dict", "zip", "enumerate", "reversed", "callable"}
    | {"partial", "reduce", "cmp_to_key", "field", "cast", "suppress", "super", "len", "iter"}
)
"""Functions that use a function or class argument only for its effects, and read nothing of it."""
_KEEPING_KEYWORDS = frozenset({"key", "default_factory"})
_GIVEN_ERRORS = frozenset({"error_callback", "retry_error_callback"})
"""Keyword arguments that are called with exceptions."""
_LOG_LEVELS = frozenset(
    {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
)
_TYPE_MARKS = ("ClassVar", "InitVar", "KW_ONLY")
_VARIABLE = re.compile(r"@([^\W\d]\w*)")
"""The name of a variable in a query of pandas."""
_MODULE = re.compile(r"\.*[^\W\d]\w*(\.\w+)*(:\w+(\.\w+)*)?")
_Node = TypeVar("_Node", bound=ast.AST)
_RISKY = frozenset(
    {"Exception", "BaseException", "TypeError", "NameError", "UnboundLocalError", "RuntimeError"}
    | {"AttributeError", "ImportError", "ModuleNotFoundError", "ExceptionGroup"}
)
"""Exceptions whose messages by the interpreter contain names of functions and modules."""
_TEXTS = frozenset({"str", "repr", "format", "print", "ascii"})


def is_idle(node: object) -> bool:
    """Whether it is ``pass``, a docstring or ``...``, which have no effect."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass)


def dotted(node: ast.AST) -> tuple[str, ...] | None:
    """``a.b.c`` as its parts; ``None`` for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (node.id, *reversed(names)) if isinstance(node, ast.Name) else None


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``; empty for any other expression."""
    return (dotted(node) or ("",))[-1]


def called(decorator: ast.expr) -> ast.expr:
    """A decorator without its arguments."""
    return decorator.func if isinstance(decorator, ast.Call) else decorator


@dataclass
class Scope:
    """The local names of a function, class or comprehension; for imported names, their sources.

    Attributes:
        verbatim: names that are written as they are: parameters, since callers may name them, and
            definitions, since these know their names.
        imported: names that only one import binds: references to its source replace them.
        members: names that a class body may bind. Until it does, they are globals, even if the
            function around the class has a variable of that name.
        number: the position of the scope among the scopes of its statement, in order of entry.
    """

    names: dict[str, list[Imported]] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    verbatim: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    is_class: bool = False
    number: int = 0

    def bind(self, nodes: Iterable[ast.AST], package: str) -> None:
        others = set(self.names)
        for node in nodes:
            if isinstance(node, ast.Global):
                self.globals.update(node.names)
            elif isinstance(node, ast.Nonlocal):
                self.nonlocals.update(node.names)
            elif isinstance(node, Import):
                for local, source in imported(node, package):
                    self.names.setdefault(local, []).append(source)
            else:
                if isinstance(node, Definition):
                    self.verbatim.add(node.name)
                for name in bound(node):
                    self.names.setdefault(name, [])
                    others.add(name)
        for name in self.globals | self.nonlocals:
            self.names.pop(name, None)
        if not self.is_class:
            found = self.names.items()
            self.imported |= {n for n, sources in found if len(sources) == 1} - others


@dataclass(frozen=True)
class Home:
    """The module that a statement is in.

    Attributes:
        package: the package that relative imports start from.
        docstring: the value of ``__doc__``.
        is_future: whether annotations are not evaluated (``from __future__ import annotations``).
    """

    module: str
    package: str
    docstring: str
    is_future: bool


def read(node: ast.stmt, home: Home) -> tuple[Form, frozenset[str]]:
    """The form of a top-level statement, and its traits."""
    reader = _Reader(home, _renames(node))
    reader.write(node)
    return reader.form(), frozenset(reader.traits)


def _renames(node: ast.stmt) -> bool:
    """Whether the names of local variables have no effect in a statement."""
    return not any(
        getattr(inner, "id", getattr(inner, "attr", "")) in _LOOKS_UP_LOCALS | _NAMESPACES
        for inner in everything(node)
    )


class _Reader:
    """Writes the form of one statement."""

    def __init__(self, home: Home, renames: bool):
        self.module, self.package, self.docstring = home.module, home.package, home.docstring
        self.is_future = home.is_future
        self.renames = renames
        self.traits: set[str] = set()
        self.scopes: list[Scope] = []
        self.entered = 0
        self.use = VALUE
        self.classes: list[str] = []
        self.listed: set[int] = set()
        self.compared: set[int] = set()
        self.called: set[int] = set()
        self.locals: dict[tuple[int, str], int] = {}
        self._parts: list[list[Piece]] = [[]]

    def form(self) -> Form:
        names = ",".join(name for _, name in self.locals)
        if names:
            self.piece(When(NAMES, (names,)))
        return _joined_texts(self._parts[0])

    # --- writing -----------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        self._parts[-1].append(text)

    def piece(self, piece: Piece) -> None:
        self._parts[-1].append(piece)

    @contextmanager
    def part(self, make: Callable[[Form], Piece]) -> Iterator[None]:
        """Collect what is written inside the block into one piece."""
        self._parts.append([])
        yield
        self.piece(make(_joined_texts(self._parts.pop())))

    def when(self, reader: str) -> AbstractContextManager[None]:
        return self.part(lambda form: When(reader, form))

    @contextmanager
    def using(self, use: str) -> Iterator[None]:
        before, self.use = self.use, use
        yield
        self.use = before

    def write(self, value: object) -> None:
        """Write a node as its name and its non-empty fields, so that a field that a later Python
        version adds does not change the form."""
        if isinstance(value, list):
            self.emit("[")
            for item in value:
                if self.is_silent(item):
                    self.write_silent(item)
                    continue
                self.write(item)
                if not (self._parts[-1] and isinstance(self._parts[-1][-1], Message)):
                    self.emit(",")
            self.emit("]")
        elif isinstance(value, ast.AST):
            special = getattr(self, f"write_{type(value).__name__}", None)
            (special or self.generic)(value)
        else:
            self.emit("~" if value is None else ascii(value))

    def is_silent(self, node: object) -> bool:
        """Whether a statement of a function has no form of its own: an import of names that nothing
        else binds, or the annotation of a variable."""
        scope = self.scopes[-1] if self.scopes else None
        if scope is None or scope.is_class:
            return False
        if isinstance(node, Import):
            locals_ = [local for local, _ in imported(node, self.package)]
            return all(local in scope.imported for local in locals_)
        if not isinstance(node, ast.AnnAssign):
            return False
        return node.value is None and isinstance(node.target, ast.Name)

    def write_silent(self, node: ast.AST) -> None:
        if isinstance(node, Import):
            for source in loaded(node, self.package):
                self.piece(Load(*source))
        elif isinstance(node, ast.AnnAssign):
            self.name_only(node.annotation)

    def generic(self, node: ast.AST, leave_out: Iterable[str] = ()) -> None:
        is_shown = self.use == SHOWN and isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict)
        with self.using(self.use if self.use == HINT or is_shown else VALUE):
            self.emit(f"({type(node).__name__}")
            for name in _fields(type(node)):
                if name not in leave_out:
                    self.field(name, getattr(node, name, None))
            self.emit(")")

    def field(self, name: str, content: object) -> None:
        if isinstance(content, list):
            content = [item for item in content if not is_idle(item)]
        if content is not None and content != []:
            self.emit(f" {name}=")
            self.write(content)

    # --- names -------------------------------------------------------------------------------

    def write_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.read_as(node, (self.mangled(node.id),))
        else:
            self.bind(self.mangled(node.id))

    def mangled(self, name: str) -> str:
        """The name as the interpreter stores it: the class name is prefixed to a private name."""
        if self.classes and name.startswith("__") and not name.endswith("__"):
            self.traits.add(CLASSES)
            return f"_{self.classes[-1].lstrip('_')}{name}"
        return name

    def write_Attribute(self, node: ast.Attribute) -> None:
        path = dotted(node)
        if node.attr in ("__name__", "__qualname__") and _is_type_of(node.value):
            self.traits.add(CLASSES)
            self.emit(f"({node.attr} of ")
            self.write(_typed(node.value))
            self.emit(")")
            return
        self.note(self.mangled(node.attr), node.value)
        if self.takes_values_away(node):
            self.traits.add(TYPES)  # an attribute that an instance lacks may be read from its class
        if node.attr in _NAMESPACES:
            self.refer(self.module, ())
        if not isinstance(node.ctx, ast.Load):
            self.emit(f"({type(node.ctx).__name__})")
            if path is not None:
                with self.using(STORED):
                    self.read((self.mangled(path[0]), *path[1:]))
                return
        if path is None:
            if _is_super(node.value) and id(node) not in self.called:
                self.traits.add(TYPES)  # it reads the default of a field
            if node.attr == "parameters":
                self.listed.add(id(node.value))  # of a signature
            with self.using(CALL if self.use != HINT else HINT):
                self.emit("(Attribute attr=" + ascii(node.attr) + " value=")
                self.write(node.value)
                self.emit(")")
            return
        for number in range(1, len(path) - 1):
            self.note(path[number])
        self.read_as(node, (self.mangled(path[0]), *path[1:]))

    def write_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.read((node.target.id,))
        self.generic(node)

    def note(self, name: str, owner: ast.AST | None = None) -> None:
        """Note the traits that an attribute, a name or a text implies."""
        traits = TRAITS_OF_NAMES.get(name, ())
        if name == "__class__" and self.is_own(owner):
            traits = (ITSELF,)
        self.traits.update(traits)

    def takes_values_away(self, node: ast.Attribute) -> bool:
        """Whether it may delete or reset attributes of an instance: ``del x.a``,
        ``x.__dict__.clear()``, ``x.__init__()``."""
        owner = node.value
        if isinstance(node.ctx, ast.Del):
            return True
        if node.attr == "__init__":
            return isinstance(owner, ast.Name) and self.lookup(owner.id) is not None
        is_held = getattr(owner, "attr", "") == "__dict__" or (
            isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "vars"
        )
        return is_held and node.attr in ("clear", "pop", "popitem")

    def is_own(self, node: ast.AST | None) -> bool:
        """Whether it is the instance on which a method of the class is called."""
        is_method = any(scope.is_class for scope in self.scopes)
        return is_method and isinstance(node, ast.Name) and node.id == "self"

    def read_as(self, node: ast.expr, path: tuple[str, ...]) -> None:
        before, self.use = self.use, LISTED if id(node) in self.listed else self.use
        self.read(path)
        self.use = before

    def read(self, path: tuple[str, ...]) -> None:
        found = self.lookup(path[0])
        if found is None:
            self.read_global(path)
            return
        scope, sources = found
        rest = "".join(f".{name}" for name in path[1:])
        if path[0] not in scope.imported:
            self.emit(f"(Local {self.local(scope, path[0])}{rest})")
        for module, *name in sources:
            self.refer(module, (*name, *path[1:]))

    def read_global(self, path: tuple[str, ...]) -> None:
        name = path[0]
        if name == "__doc__":
            self.emit(f"(Doc {self.docstring!a})")
        elif name in _PLACES:
            self.emit(f"(Place {name} {self.module})")
        elif name == "type" and self.use != HINT:
            self.traits.add(TYPES)
        if name != "__import__" or self.use != LISTED:
            self.note(name)
        self.refer(self.module, path)

    def refer(self, module: str, path: tuple[str, ...]) -> None:
        self.piece(Ref(module, ".".join(map(self.mangled, path)), self.use))

    def bind(self, name: str) -> None:
        scope = self.scopes[-1] if self.scopes else None
        self.note(name)
        if scope is not None and scope.is_class and name not in scope.globals | scope.nonlocals:
            self.emit(f"(Member {name})")
            return
        found = self.lookup(name)
        if found is None:
            self.piece(Bound(name))
        else:
            self.emit(f"(Local {self.local(found[0], name)})")

    def local(self, scope: Scope, name: str) -> str:
        """The text of a local name: a number, in order of first use."""
        if not self.renames or scope.is_class or name in scope.verbatim:
            return name
        number = self.locals.setdefault((scope.number, name), len(self.locals))
        return f"%{number}"

    def lookup(self, name: str) -> tuple[Scope, list[Imported]] | None:
        """The scope of a local name, with the sources from which it is imported, if any; ``None``
        for a global."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if scope.is_class and depth:
                continue  # methods do not see the names of their class
            if name in scope.globals:
                return None
            if name in scope.names:
                return scope, scope.names[name]
            if name in scope.members - scope.nonlocals:
                return None
        return None

    def write_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        """Write nothing: each use of the names already tells their scope."""

    write_Nonlocal = write_Global

    def write_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self.emit("(ExceptHandler")
        if node.type is not None:
            self.emit(" type=")
            with self.using(CALL):
                self.write(node.type)
        if node.name:
            self.emit(" name=")
            self.bind(node.name)
            if uses := list(self.uses_of_error(node)):
                names = _names_of_types(node.type)
                self.piece(Caught(not names or not _RISKY.isdisjoint(names), tuple(uses)))
        self.field("body", node.body)
        self.emit(")")

    def uses_of_error(self, handler: ast.ExceptHandler) -> Iterator[Ref | None]:
        """The functions that a handler passes the caught exception to, and ``None`` for any other
        use; raising it, or another exception from it, does not count."""
        spent = {id(n) for raised in _inside(handler, ast.Raise) for n in everything(raised)}
        for call in _inside(handler, ast.Call):
            owners = self.globals_of(call.func)
            for argument in call.args if len(owners) == 1 else ():
                if getattr(argument, "id", "") == handler.name and id(argument) not in spent:
                    spent.add(id(argument))
                    yield owners[0]
        for node in _inside(handler, ast.Name):
            if node.id == handler.name and isinstance(node.ctx, ast.Load) and id(node) not in spent:
                yield None

    def write_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        self.generic(node, leave_out=["name"])
        if node.name:
            self.bind(node.name)

    write_MatchStar = write_MatchAs

    def write_MatchMapping(self, node: ast.MatchMapping) -> None:
        self.generic(node, leave_out=["rest"])
        if node.rest:
            self.emit(" rest=")
            self.bind(node.rest)

    def write_MatchClass(self, node: ast.MatchClass) -> None:
        self.emit("(MatchClass cls=")
        with self.using(CALL):
            self.write(node.cls)
        for name in ("kwd_attrs", "kwd_patterns", "patterns"):
            self.field(name, getattr(node, name))
        self.emit(")")

    # --- imports -----------------------------------------------------------------------------

    def write_Import(self, node: Import) -> None:
        self.emit("(Import")
        for source in loaded(node, self.package):
            self.piece(Load(*source))
        for local, (module, *name) in imported(node, self.package):
            scope = self.scopes[-1] if self.scopes else None
            if local == "*" or (scope is not None and local in scope.imported):
                continue
            self.emit(" ")
            self.bind(self.mangled(local))
            if scope is not None and (scope.is_class or local in scope.globals | scope.nonlocals):
                self.refer(module, tuple(name))  # other code may read the name here
        self.emit(")")

    write_ImportFrom = write_Import

    # --- calls -------------------------------------------------------------------------------

    def write_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        method = getattr(node.func, "attr", name)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if method in _TEXTS and any(map(_is_type_of, arguments)):
            self.traits.add(MODULES)
        if method == "exception" and not arguments:
            self.traits.add(TEXTS)  # `exception()` of a future
        if method in ("query", "eval"):
            self.refer_to_variables(arguments)
        is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if name == "__import__" and is_constant:
            self.listed.add(id(node.func))
        elif (dotted(node.func) or ())[-2:-1] == ("modules",) and node.args:
            self.refer_to_loaded(node.func, node.args[0])
        if name in ("getattr", "vars"):
            self.refer_to_attribute(arguments)
        if name in ("vars", "locals") and not (node.args or self.scopes):
            self.refer(self.module, ())
        if name == "getLogger" and any(last_name(argument) == "__name__" for argument in arguments):
            node = ast.Call(node.func, [], [])
        if name in _LOG_LEVELS and isinstance(node.func, ast.Attribute):
            self.write_log(node)
        elif name == "type" and len(node.args) == 1 and self.is_own(node.args[0]):
            self.traits.add(ITSELF)
            self.emit("(Type self)")
        elif name == "type" and len(node.args) == 1 and id(node) in self.compared:
            self.emit("(Type ")
            self.write(node.args[0])
            self.emit(")")
        else:
            self.write_any_call(node, keeps=name in _KEEPS)
        if texts := tuple(filter(None, map(_name_of_module, arguments))):
            for function in self.globals_of(node.func):
                self.piece(Dynamic(function, texts, self.package))

    def write_any_call(self, node: ast.Call, keeps: bool = False) -> None:
        self.emit("(Call func=")
        self.called.add(id(node.func))
        use = LISTED if id(node) in self.listed else MADE if self.use == SHOWN else CALL
        with self.using(use if self.use != HINT else HINT):
            self.write(node.func)
        is_text = last_name(node.func) in _TEXTS
        for argument in node.args:
            self.emit(" ")
            with self.using(SHOWN if is_text else CALL if keeps else VALUE):
                self.write(argument)
        for keyword in node.keywords:
            self.emit(f" {keyword.arg or '**'}=")
            if keyword.arg in _GIVEN_ERRORS:
                self.traits.add(TEXTS)
            kept = keeps or keyword.arg in _KEEPING_KEYWORDS
            with self.using(CALL if kept else VALUE):
                self.write(keyword.value)
        self.emit(")")

    def write_log(self, node: ast.Call) -> None:
        """A call that may be one of a logger, whose texts do not count."""
        owners = self.globals_of(node.func.value)  # type: ignore[attr-defined]
        if len(owners) == 1:
            self.write_call_with_message(node, owners[0])
        else:
            self.write_any_call(node)

    def write_Expr(self, node: ast.Expr) -> None:
        """A call of a logger does not count at all if its arguments compute nothing."""
        call = node.value
        is_log = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _LOG_LEVELS
            and all(map(self.is_bare, [*call.args, *(word.value for word in call.keywords)]))
        )
        owners = self.globals_of(call.func.value) if is_log else []  # type: ignore[union-attr]
        if len(owners) == 1:
            with self.part(lambda form: Message(owners[0], form)):
                self.write(call)
                self.emit(";")
        else:
            self.generic(node)

    def is_bare(self, node: ast.expr) -> bool:
        """Whether an expression consists of constants and local variables."""
        kinds = ast.Constant | ast.Name | ast.JoinedStr | ast.FormattedValue
        return all(
            isinstance(inner, kinds | ast.Mod | ast.BinOp | ast.Tuple | ast.expr_context)
            and not (isinstance(inner, ast.Name) and self.lookup(inner.id) is None)
            for inner in ast.walk(node)
        )

    def write_call_with_message(self, node: ast.Call, receiver: Ref) -> None:
        """A call whose texts count only if some code reads such texts."""
        self.emit("(Call func=")
        with self.using(CALL):
            self.write(node.func)
        for argument in node.args:
            self.emit(" ")
            self.write_message(argument, receiver)
        for keyword in node.keywords:
            self.emit(f" {keyword.arg or '**'}=")
            self.write_message(keyword.value, receiver)
        self.emit(")")

    def write_message(self, node: ast.expr, receiver: Ref) -> None:
        match node:
            case ast.Constant(value=str(text)):
                self.piece(Message(receiver, (ascii(text),)))
            case ast.JoinedStr(values=values):
                self.emit("(Joined ")
                for part in _joined(values):
                    self.write_message(part, receiver)
                self.emit(")")
            case ast.BinOp(left, ast.Add() | ast.Mod() as operator, right):
                self.emit(f"({type(operator).__name__} ")
                self.write_message(left, receiver)
                self.emit(" ")
                self.write_message(right, receiver)
                self.emit(")")
            case _:
                self.write(node)

    @contextmanager
    def collected(self) -> Iterator[list[Ref]]:
        """Collect the references that are written inside the block, and discard the rest."""
        self._parts.append([])
        named: list[Ref] = []
        yield named
        named += [piece for piece in self._parts.pop() if isinstance(piece, Ref)]

    def name_only(self, node: ast.expr) -> None:
        """Write only the references of an annotation."""
        with self.using(HINT), self.collected() as named:
            self.write(node)
        for reference in named:
            self.piece(reference._replace(use=NAMED))

    def globals_of(self, node: ast.AST) -> list[Ref]:
        """The references that a dotted name stands for; empty for a local variable."""
        path = dotted(node)
        found = self.lookup(path[0]) if path else None
        if path is None:
            return []
        if found is None:
            return [Ref(self.module, ".".join(path), CALL)]
        return [Ref(m, ".".join((*name, *path[1:])), CALL) for m, *name in found[1]]

    def write_Raise(self, node: ast.Raise) -> None:
        """The texts of an exception count only if some code reads such texts."""
        self.emit("(Raise")
        for name in ("exc", "cause"):
            value = getattr(node, name)
            if value is None:
                continue
            self.emit(f" {name}=")
            made_by = self.globals_of(value.func) if isinstance(value, ast.Call) else []
            if len(made_by) == 1:
                self.write_call_with_message(value, made_by[0])
            else:
                with self.using(CALL):
                    self.write(value)
        self.emit(")")

    def write_Assert(self, node: ast.Assert) -> None:
        self.emit("(Assert test=")
        self.write(node.test)
        if node.msg is not None:
            self.emit(" msg=")
            self.write_message(node.msg, Ref(self.module, "AssertionError", CALL))
        self.emit(")")

    # --- constants ---------------------------------------------------------------------------

    def write_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, str):
            self.note(value)
            if self.use == HINT:
                with suppress(SyntaxError, ValueError):  # a text that is no annotation
                    self.write(ast.parse(value, mode="eval"))
                    return
        self.emit(_literal(value))

    def write_JoinedStr(self, node: ast.JoinedStr) -> None:
        if any(isinstance(p, ast.FormattedValue) and _is_type_of(p.value) for p in node.values):
            self.traits.add(MODULES)
        match _joined(node.values):
            case []:
                self.emit(_literal(""))
            case [ast.Constant(text)]:
                self.emit(_literal(text))
            case parts:
                self.emit("(JoinedStr ")
                self.write(parts)
                self.emit(")")

    def write_Compare(self, node: ast.Compare) -> None:
        """A comparison of a value's type does not read the declarations of the type."""
        if all(isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for op in node.ops):
            self.compared |= {id(side) for side in (node.left, *node.comparators)}
        if all(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            self.listed |= {id(s) for s in node.comparators if last_name(s) == "modules"}
        self.generic(node)

    def write_FormattedValue(self, node: ast.FormattedValue) -> None:
        self.emit(f"(FormattedValue {node.conversion} ")
        with self.using(SHOWN):
            self.write(node.value)
        self.field("format_spec", node.format_spec)
        self.emit(")")

    def write_BinOp(self, node: ast.BinOp) -> None:
        match node:
            case ast.BinOp(ast.Constant(value=str(one)), ast.Add(), ast.Constant(value=str(two))):
                self.note(one + two)
            case ast.BinOp(ast.Constant(value=str()), ast.Mod(), right):
                self.emit("(Mod ")
                self.write(node.left)
                with self.using(SHOWN):
                    self.write(right)
                self.emit(")")
                return
        self.generic(node)

    def write_UnaryOp(self, node: ast.UnaryOp) -> None:
        match node:
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.In()], right)):
                self.generic(ast.Compare(left, [ast.NotIn()], right))
            case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Is()], right)):
                self.generic(ast.Compare(left, [ast.IsNot()], right))
            case _:
                self.generic(node)

    def write_Subscript(self, node: ast.Subscript) -> None:
        kind = last_name(node.value)
        if kind == "modules":
            if isinstance(node.ctx, ast.Load):
                self.refer_to_loaded(node.value, node.slice)
            else:
                self.listed.add(id(node.value))
        self.emit("(Subscript value=")
        with self.using(HINT if self.use == HINT else CALL):
            self.write(node.value)
        self.emit(" slice=")
        is_data = kind == "Literal"
        with self.using(HINT if self.use == HINT and not is_data else VALUE):
            if kind == "Annotated" and isinstance(node.slice, ast.Tuple):
                self.write(node.slice.elts[0])
                with self.using(VALUE):
                    self.write(node.slice.elts[1:])
            else:
                self.write(node.slice)
        self.emit(")")

    def refer_to_attribute(self, arguments: list[ast.expr]) -> None:
        """``getattr(a, "b")`` refers to ``a.b``, and ``vars(a)`` to ``a.__dict__``."""
        match arguments:
            case [owner, ast.Constant(str(name)), *_]:
                attribute = name
            case [owner]:
                attribute = "__dict__"
            case _:
                return
        for ref in self.globals_of(owner):
            self.refer(ref.module, (*ref.parts, attribute))

    def refer_to_variables(self, arguments: list[ast.expr]) -> None:
        """``frame.query("a > @LIMIT")`` refers to ``LIMIT``."""
        for argument in arguments:
            for text in _inside(argument, ast.Constant):
                for name in _VARIABLE.findall(text.value) if isinstance(text.value, str) else ():
                    if self.lookup(name) is None:
                        self.refer(self.module, (name,))

    def refer_to_loaded(self, modules: ast.expr, name: ast.expr) -> None:
        """Refer to a module that is read from ``sys.modules``, if its name is known. If it is not,
        ``sys.modules`` stands for any module."""
        if isinstance(name, ast.Constant):
            self.refer(str(name.value), ())
        if isinstance(name, ast.Constant) or getattr(name, "id", "") == "__name__":
            self.listed.add(id(modules))

    # --- definitions -------------------------------------------------------------------------

    @contextmanager
    def scope(self, scope: Scope) -> Iterator[Scope]:
        self.entered += 1
        scope.number = self.entered
        self.scopes.append(scope)
        yield scope
        self.scopes.pop()

    def write_FunctionDef(self, node: Function) -> None:
        with self.detail(node):
            self.write_function(node)

    write_AsyncFunctionDef = write_FunctionDef

    def write_ClassDef(self, node: ast.ClassDef) -> None:
        with self.detail(node):
            self.write_class(node)

    @contextmanager
    def detail(self, node: Definition) -> Iterator[None]:
        """Write a definition that may be an execution detail into a piece of its own."""
        names = [name for d in node.decorator_list for name in self.globals_of(called(d))]
        declaring = [name for name in names if name.path and name.parts[-1] == DETAIL]
        if len(declaring) != 1:
            yield
            return
        with self.part(lambda form: Detail(declaring[0], form)):
            yield

    def write_function(self, node: Function) -> None:
        self.write_decorators(node)
        self.emit(f"({type(node).__name__} ")
        if self.scopes:
            self.emit(node.name)
        else:
            self.piece(Bound(node.name))
            with self.when(NAMES):
                self.emit(node.name)
        self.write_defaults(node.args)
        with self.type_parameters(node):
            self.write_hints(node)
            if node.name in ("__exit__", "__aexit__") and _uses_arguments(node):
                self.traits.add(TEXTS)
            self.write_docstring(node)
            self.write_body(node.args, node.body)
        self.emit(")")

    def write_Lambda(self, node: ast.Lambda) -> None:
        self.emit("(Lambda")
        self.write_defaults(node.args)
        self.write_body(node.args, [node.body])
        self.emit(")")

    def write_decorators(self, node: Definition) -> None:
        for decorator in node.decorator_list:
            named = self.globals_of(called(decorator))
            name = named[0] if len(named) == 1 else None
            with self.part(lambda form, name=name: Decorator(name, form)):
                self.emit("@")
                if isinstance(decorator, ast.Call):
                    self.write(decorator)
                else:
                    with self.using(CALL):
                        self.write(decorator)

    def write_defaults(self, arguments: ast.arguments) -> None:
        """Write the names of the parameters, which callers may use, and then their defaults."""
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            found = getattr(arguments, kind) or []
            names = [a.arg for a in (found if isinstance(found, list) else [found])]
            if names:
                self.emit(f" {kind}={','.join(names)}")
        if not (arguments.defaults or any(arguments.kw_defaults)):
            return

        def write() -> None:
            self.emit(" defaults=")
            self.write(arguments.defaults)
            self.write(arguments.kw_defaults)

        if self.scopes:
            write()
        else:
            with self.when(DEFAULTS):
                write()

    def write_hints(self, node: Function) -> None:
        """Annotations: references in them are followed; their text counts only if it is read."""
        hints = [argument.annotation for argument in parameters(node.args)] + [node.returns]
        for hint in hints:
            self.write_hint(hint)

    def write_hint(self, hint: ast.expr | None) -> None:
        with self.when(HINTS):
            self.emit(f"~{self.is_future}")
        if hint is None:
            return
        if not self.is_future and _calls(hint):
            self.emit(" hint=")
            self.write(hint)  # evaluated with the definition
        else:
            with self.using(HINT), self.when(HINTS):
                self.write(hint)
            self.name_only(hint)

    def write_docstring(self, node: Definition) -> None:
        first = node.body[0]
        if is_idle(first) and isinstance(getattr(first, "value", None), ast.Constant):
            value = first.value.value  # type: ignore[attr-defined]
            if isinstance(value, str):
                with self.when(DOCS):
                    self.emit(ascii(value))

    def write_body(self, arguments: ast.arguments, body: Iterable[ast.AST]) -> None:
        names = {argument.arg for argument in parameters(arguments)}
        scope = Scope({name: [] for name in names}, verbatim=names)
        body = [item for item in body if not is_idle(item)]
        scope.bind((inner for node in body for inner in own_scope(node)), self.package)
        self.emit(" body=")
        with self.scope(scope), self.using(VALUE):
            self.write(body)

    def write_class(self, node: ast.ClassDef) -> None:
        self.write_decorators(node)
        self.emit("(ClassDef ")
        if self.scopes:
            self.emit(node.name)
        else:
            self.piece(Bound(node.name))
            with self.when(CLASSES):
                self.emit(node.name)
        if node.body and "__qualname__" in {getattr(n, "id", "") for n in everything(node)}:
            self.traits.add(NAMES)
        with self.type_parameters(node):
            self.emit(" bases=")
            for base in node.bases:
                with self.using(BASE):
                    self.write(base)
                self.emit(",")
            for keyword in node.keywords:
                self.emit(f" {keyword.arg or '**'}=")
                self.write(keyword.value)
            self.write_docstring(node)
            self.emit(" body=[")
            is_top = not self.scopes
            self.classes.append(node.name)
            members = {
                name
                for statement in node.body
                for inner in own_scope(statement)
                for name in bound(inner)
            }
            with self.scope(Scope(is_class=True, members=members)) as scope:
                for statement in node.body:
                    if not is_idle(statement):
                        self.write_member(statement, is_top, node)
                    scope.bind(surely_bound(statement), self.package)
            self.classes.pop()
            self.emit("])")

    def write_member(self, node: ast.stmt, is_top: bool, owner: ast.ClassDef) -> None:
        if not isinstance(node, ast.AnnAssign):
            self.write(node)
            self.emit(",")
        elif is_top and is_field(node):
            with self.when(f"{FIELDS} {node.target.id}"):  # type: ignore[union-attr]
                self.write_field(node, owner)
        else:
            self.write_field(node, owner)

    def write_field(self, node: ast.AnnAssign, owner: ast.ClassDef) -> None:
        """A field of a class. Its annotation counts if it has a special marker, or if other code
        than the standard library's dataclasses may read it."""
        self.emit("(AnnAssign target=")
        self.write(node.target)
        self.emit(" value=")
        self.write(node.value)
        names = {last_name(inner) for inner in everything(node.annotation)}
        text = node.annotation.value if isinstance(node.annotation, ast.Constant) else ""
        if isinstance(text, str):
            names |= {mark for mark in _TYPE_MARKS if mark in text}
        self.emit(f" marks={sorted(names.intersection(_TYPE_MARKS))}")
        if (self.is_future or text) and not names.isdisjoint(_TYPE_MARKS):
            self.emit(ascii(ast.unparse(node.annotation)))  # dataclasses look for certain texts
        with self.using(HINT), self.collected() as named:
            self.write(node.annotation)
        for reference in named:  # whoever constructs the class may construct these too
            self.piece(reference._replace(use=OWNED))
        if _only_a_dataclass(owner) and (self.is_future or not _calls(node.annotation)):
            with self.using(HINT), self.when(HINTS):
                self.emit(f"~{self.is_future}")
                self.write(node.annotation)
        else:
            self.emit(f" {self.is_future} annotation=")
            self.write(node.annotation)
        self.emit("),")

    def write_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Outside of classes, the annotation of a variable has no effect."""
        if self.scopes and self.scopes[-1].is_class:
            self.generic(node)
            return
        if isinstance(node.target, ast.Name):
            if not self.scopes:
                self.write_hint(node.annotation)
            else:
                self.name_only(node.annotation)
        else:
            self.write(node.annotation)
        if node.value is not None:
            self.generic(ast.Assign([node.target], node.value))

    @contextmanager
    def type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of ``[T]`` in ``def f[T]``, Python 3.12 and later."""
        found = getattr(node, "type_params", [])
        if not found:
            yield
            return
        names = {parameter.name for parameter in found}
        with self.scope(Scope({name: [] for name in names}, verbatim=names)):
            for parameter in found:
                self.emit(f" {type(parameter).__name__} {parameter.name}")
                for name in ("bound", "default_value"):
                    if (value := getattr(parameter, name, None)) is not None:
                        self.write_hint(value)
            yield

    # --- comprehensions ----------------------------------------------------------------------

    def write_comprehension_of(self, node: Comprehension, made: list[ast.expr]) -> None:
        first, *others = node.generators
        self.list_names(first.target, first.iter, [*first.ifs, *others, *made])
        self.emit(f"({type(node).__name__} ")
        self.write(first.iter)  # in the scope around the comprehension
        scope = Scope()
        for generator in node.generators:
            scope.bind(own_scope(generator.target), self.package)
        with self.scope(scope):
            for value in (first.is_async, first.target, first.ifs, others, made):
                self.emit(" ")
                self.write(value)
        self.emit(")")

    def list_names(self, target: ast.expr, items: ast.expr, uses: Iterable[ast.AST]) -> None:
        """Note a loop that only reads the names of the items, for example over the fields of a
        dataclass: the names of an argument's fields are in the key already."""
        if not (isinstance(target, ast.Name) and isinstance(items, ast.Call)):
            return
        nodes = [node for use in uses for node in everything(use)]
        named = {
            id(node.value)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr == "name"
        }
        if all(id(node) in named for node in nodes if getattr(node, "id", "") == target.id):
            self.listed.add(id(items))

    def write_For(self, node: ast.For) -> None:
        self.list_names(node.target, node.iter, [*node.body, *node.orelse])
        self.generic(node)

    def write_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> None:
        self.write_comprehension_of(node, [node.elt])

    write_SetComp = write_GeneratorExp = write_ListComp

    def write_DictComp(self, node: ast.DictComp) -> None:
        self.write_comprehension_of(node, [node.key, node.value])


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters of a function."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return named + [packed for packed in (arguments.vararg, arguments.kwarg) if packed]


def is_field(node: ast.stmt) -> bool:
    """Whether it declares a dataclass field, which instances store."""
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
        return False
    names = {last_name(inner) for inner in everything(node.annotation)}
    text = getattr(node.annotation, "value", "")
    return "ClassVar" not in names and not (isinstance(text, str) and "ClassVar" in text)


def _only_a_dataclass(node: ast.ClassDef) -> bool:
    """Whether only the standard library's dataclasses can read the class's annotations."""
    return not node.bases and all(
        last_name(called(decorator)) == "dataclass" for decorator in node.decorator_list
    )


def _name_of_module(node: ast.expr) -> str:
    """The text of an argument, if it may be the name of a module."""
    text = node.value if isinstance(node, ast.Constant) else ""
    return text if isinstance(text, str) and _MODULE.fullmatch(text) else ""


def _calls(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call | ast.NamedExpr) for inner in everything(node))


def _is_type_of(node: ast.AST) -> bool:
    """``type(x)`` or ``x.__class__``."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type"
    return is_call or getattr(node, "attr", "") == "__class__"


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def _typed(node: ast.expr) -> ast.expr:
    """The expression whose type is read: ``x`` in ``type(x)`` and ``x.__class__``."""
    if isinstance(node, ast.Call):
        return node.args[0] if node.args else node.func
    return node.value if isinstance(node, ast.Attribute) else node


def _inside(node: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    return (inner for inner in everything(node) if isinstance(inner, kind))


def _names_of_types(node: ast.expr | None) -> set[str]:
    """The names of the exceptions that a handler catches; empty if they are unknown."""
    items = node.elts if isinstance(node, ast.Tuple) else [node] if node is not None else []
    names = {last_name(item) for item in items}
    return set() if "" in names else names


def _uses_arguments(function: Function) -> bool:
    names = {argument.arg for argument in parameters(function.args)[2:]}
    return any(isinstance(node, ast.Name) and node.id in names for node in everything(function))


def _joined_texts(pieces: list[Piece]) -> Form:
    """The pieces, with adjacent texts joined."""
    joined: list[Piece] = []
    texts: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        if texts:
            joined.append("".join(texts))
            texts.clear()
        joined.append(piece)
    if texts:
        joined.append("".join(texts))
    return tuple(joined)


def _literal(value: object) -> str:
    """The text of a constant; constants of different type or value have different texts.

    ``repr`` does not serve: the characters that it escapes depend on Python's Unicode tables, and
    Python limits the number of decimal digits of an int.
    """
    return hex(value) if type(value) is int else ascii(value)


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(sorted(set(kind._fields) - {"ctx", "type_comment"}))


def _joined(items: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string with adjacent texts joined, since Python versions split them
    differently."""
    joined: list[ast.expr] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(f"{last.value}{item.value}")
        elif not (isinstance(item, ast.Constant) and item.value == ""):
            joined.append(item)
    return joined
