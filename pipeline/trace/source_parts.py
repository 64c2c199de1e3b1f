"""What each statement of a source file does and mentions: the facts behind the rule for code.

A *part* is a statement of a module's top level, without the bodies of its functions, or one of
these functions. A part has a digest of its syntax, and facts about how it can reach other code:
the words that it mentions, the modules that it uses as values, and its reflection.

A statement *only binds* names if running it has no effect besides binding them. The conditions are
narrow: what is not known to be quiet counts.
"""

import ast
import builtins
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import blake3

from pipeline.trace.looks import Looks, Origin

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[^\W\d]\w*")
_BUILTIN = frozenset(dir(builtins))

EVERYTHING, MODULE, BODIES, READS_TEXT = "*everything", "*module", "*bodies", "*text"
"""Reflection of a part: it can reach every name of every module; of its own module; the bodies of
functions that did not run; the text of files, with line numbers and comments. The name of a module
stands for one that it takes from ``sys.modules``, of which it can reach every name."""

_REACHES_EVERYTHING = frozenset(
    (
        *("eval", "exec", "__import__", "runpy", "__main__", "__subclasses__", "__globals__"),
        *("f_globals", "f_locals", "get_objects", "get_referrers", "getmodule"),
    )
)
_READS_BODIES = frozenset(
    ("__code__", "co_code", "co_consts", "co_names", "dis", "marshal", "settrace", "setprofile")
)
_TEXT_READERS = frozenset(
    (
        *("getsource", "getsourcelines", "findsource", "getcomments", "linecache"),
        *("f_lineno", "tb_lineno", "co_firstlineno", "co_lines", "co_positions"),
    )
)
_TYPES_ACT = frozenset(("__or__", "__ror__", "__class_getitem__"))
_METACLASSES = frozenset(("type", "ABCMeta", "EnumMeta", "EnumType"))
_NAMESPACES = frozenset(("globals", "locals", "vars", "dir"))
_QUIET_DECORATORS = frozenset(
    (
        *("builtins.property", "builtins.staticmethod", "builtins.classmethod"),
        *("dataclasses.dataclass", "abc.abstractmethod", "typing.overload", "typing.final"),
        *("functools.cache", "functools.lru_cache", "functools.cached_property"),
        *("contextlib.contextmanager", "contextlib.asynccontextmanager"),
        *("pipeline.step", "pipeline.execution_detail"),
        "steps.shared.execution_detail.execution_detail",
    )
)
_KEEPS = frozenset(
    (
        *("dataclasses.field", "pipeline.added_field", "pipeline.execution_detail"),
        *(f"steps.shared.execution_detail.{n}" for n in ("added_field", "detail_field")),
    )
)
"""Functions that only keep what they are given."""
_READS = frozenset(
    (
        *("builtins.frozenset", "builtins.set", "builtins.tuple", "builtins.list", "builtins.dict"),
        *("builtins.float", "builtins.int", "builtins.range", "re.compile", "pathlib.Path"),
        *("typing.TypeVar", "typing.NewType", "types.MappingProxyType", "enum.auto"),
        *("collections.Counter", "collections.deque", "collections.OrderedDict"),
    )
)
"""Functions that only make a value of literals. What a name stands for may act: ``list(rows)``
uses an iterator up."""
_QUIET_BASES = frozenset(
    (
        *("abc.ABC", "enum.Enum", "enum.IntEnum", "enum.StrEnum", "typing.Generic"),
        *("typing.NamedTuple", "typing.Protocol", "typing.TypedDict", "pipeline.Artifact"),
        *(f"builtins.{n}" for n in _BUILTIN if isinstance(getattr(builtins, n), type)),
    )
)
_ACCESSORS = frozenset(("setter", "getter", "deleter"))


@dataclass(frozen=True)
class Part:
    """A statement or a function, and how it can reach other code.

    Attributes:
        words: the names that it mentions, also inside texts; of an import at the top level, only
            those in the name of its module.
        values: imported names, each with attributes, that it uses as values: ``conf``, ``np.abs``.
        imports: what it imports, as ``(level, module, name)``; the name is empty without ``from``.
        reflection: those that hold of :data:`EVERYTHING`, :data:`MODULE`, :data:`BODIES` and
            :data:`READS_TEXT`; and the modules that it takes from ``sys.modules`` by name.
        look: how it looks; empty if nothing is left. See :mod:`pipeline.trace.looks`.
        origins: those of the imported names in its look, in order.
        line: where it begins.
    """

    digest: str
    words: frozenset[str]
    values: frozenset[str] = frozenset()
    imports: tuple[tuple[int, str, str], ...] = ()
    reflection: frozenset[str] = frozenset()
    look: str = ""
    origins: tuple[Origin, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Statement:
    """A statement of a module's top level.

    Attributes:
        binds: the names that it binds, if it does nothing else; ``None`` if it may do more.
        has_own_digest: whether its digest can be shown under the name that it binds.
        has_hints: whether it only binds if types do nothing of their own in ``X | Y`` and ``X[Y]``.
        functions: its functions, by qualified name.
    """

    part: Part
    binds: tuple[str, ...] | None
    has_own_digest: bool
    has_hints: bool = False
    functions: Mapping[str, Part] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A source file.

    Attributes:
        statements: those of its top level, in order.
        bindings: how often its top level, or a function with ``global``, binds each name.
        aliases: what each imported name stands for, as ``(level, module, name)``.
        whole: all of it, with the body of every function.
        text: the digest of its bytes.
        has_acting_types: whether it has a metaclass, a class that acts in ``X | Y`` or ``X[Y]``, or
            a function that serves attributes of the module.
    """

    statements: tuple[Statement, ...]
    bindings: Mapping[str, int]
    aliases: Mapping[str, tuple[tuple[int, str, str], ...]]
    whole: Part
    text: str
    has_acting_types: bool

    @property
    def functions(self) -> list[str]:
        """The qualified names of its functions."""
        return [name for statement in self.statements for name in statement.functions]

    @functools.cached_property
    def looks(self) -> Mapping[str, str]:
        """How each function, class and constant of its top level looks."""
        found: dict[str, str] = {}
        for statement in self.statements:
            for name in statement.binds or ():
                found[name] = statement.part.look
            found |= {name: part.look for name, part in statement.functions.items()}
        return found

    @functools.cached_property
    def stars(self) -> frozenset[tuple[int, str, str]]:
        """The modules of which it imports all names."""
        imports = (i for alias in self.aliases.values() for i in alias)
        return frozenset(found for found in imports if found[2] == "*")


def read_source(source: bytes) -> Source:
    """The statements of a source file. Raise `SyntaxError` or `ValueError` if it is not valid."""
    tree = ast.parse(source)
    if "__name__" not in _bound(tree.body):
        tree.body = [n for m in tree.body for n in (m.orelse if _is_program(m) else [m])]
    return _Reader(tree).source(blake3.blake3(source).hexdigest()[:32])


class _Reader:
    def __init__(self, tree: ast.Module):
        self.tree = tree
        self.bindings = Counter(_bound(tree.body))
        self.aliases = _aliases(tree)
        self.inert = {name for node in tree.body for name in _inert(node)}
        self.looks = Looks(self.bindings, self.aliases)
        futures = (n for n in tree.body if isinstance(n, ast.ImportFrom))
        self.hints_run = not any(
            n.module == "__future__" and n.names[0].name == "annotations" for n in futures
        )

    def source(self, text: str) -> Source:
        statements = tuple(self._statement(n, is_first=not i) for i, n in enumerate(self.tree.body))
        whole = self._part(self.tree.body, strip=False)
        acting = any(map(_acts_as_type, ast.walk(self.tree))) or "__getattr__" in self.bindings
        return Source(statements, dict(self.bindings), self.aliases, whole, text, acting)

    def _statement(self, node: ast.stmt, is_first: bool) -> Statement:
        if is_first and _is_text(node):
            return Statement(Part(_digest([node], False), frozenset()), ("__doc__",), True)
        self.has_hints = False
        inner: dict[str, list[_Function]] = {}
        for name, function in functions([node]):
            inner.setdefault(name, []).append(function)
        binds = self._binds(node)
        if binds is not None and any(_is_special(n) or self.bindings[n] > 1 for n in binds):
            binds = None
        if binds is not None and isinstance(node, ast.AnnAssign):
            binds = (*binds, "__annotations__")
        part = self._part([node], strip=True)
        if isinstance(node, ast.ImportFrom):  # it reads nothing of what it names
            part = replace(part, words=frozenset((node.module or "").split(".")))
        return Statement(
            part,
            binds,
            isinstance(node, ast.ClassDef | ast.Assign | ast.AnnAssign),
            self.has_hints,
            {name: self._part(nodes, False, name) for name, nodes in inner.items()},
        )

    # --- quiet statements ------------------------------------------------------------------------

    def _binds(self, node: ast.stmt) -> tuple[str, ...] | None:
        if isinstance(node, _Function):
            return (node.name,) if self._is_quiet_function(node) else None
        if isinstance(node, ast.ClassDef):
            return (node.name,) if self._is_quiet_class(node) else None
        if isinstance(node, ast.Import):
            return tuple(a.asname or a.name.partition(".")[0] for a in node.names)
        if isinstance(node, ast.ImportFrom):
            is_plain = not node.level and node.module != "__future__"
            names = tuple(a.asname or a.name for a in node.names)
            return names if is_plain and "*" not in names else None
        if isinstance(node, ast.Assign):
            targets = [n for target in node.targets for n in _pairwise(target, node.value)]
            names = tuple(t.id for t in targets if isinstance(t, ast.Name))
            is_plain = len(names) == len(targets) and self._is_still(node.value)
            return names if is_plain else None
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            is_plain = node.value is not None and self._is_still(node.value)
            return (node.target.id,) if is_plain and self._is_quiet_hint(node.annotation) else None
        return None

    def _is_quiet_function(self, node: _Function) -> bool:
        a = node.args
        given = [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]
        hints = [arg.annotation for arg in given if arg is not None] + [node.returns]
        return (
            not getattr(node, "type_params", None)
            and all(
                self._is_quiet_decorator(d) or _is_accessor(d, node) for d in node.decorator_list
            )
            and self._has_still_defaults(a)
            and all(map(self._is_quiet_hint, hints))
        )

    def _has_still_defaults(self, arguments: ast.arguments) -> bool:
        given = (*arguments.defaults, *arguments.kw_defaults)
        return all(self._is_still(default) for default in given if default is not None)

    def _is_quiet_class(self, node: ast.ClassDef) -> bool:
        return (
            not node.keywords
            and not getattr(node, "type_params", None)
            and all(map(self._is_quiet_decorator, node.decorator_list))
            and all(self._origin(_subscripted(base)) in _QUIET_BASES for base in node.bases)
            and all(map(self._is_quiet_in_class, node.body))
        )

    def _is_quiet_in_class(self, node: ast.stmt) -> bool:
        if isinstance(node, _Function):
            return node.name != "__init_subclass__" and self._is_quiet_function(node)
        if isinstance(node, ast.ClassDef):
            return self._is_quiet_class(node)
        if isinstance(node, ast.Assign):
            is_plain = all(isinstance(t, ast.Name) for t in node.targets)
            return is_plain and self._is_quiet_attribute(node.value)
        if isinstance(node, ast.AnnAssign):
            is_plain = isinstance(node.target, ast.Name) and self._is_quiet_hint(node.annotation)
            return is_plain and (node.value is None or self._is_quiet_attribute(node.value))
        return isinstance(node, ast.Pass) or _is_text(node)

    def _is_quiet_attribute(self, value: ast.expr) -> bool:
        """Whether a class with this attribute tells nobody: an object may have ``__set_name__``."""
        given = value
        if isinstance(value, ast.Call):
            given = next((k.value for k in value.keywords if k.arg == "default"), value)
        name = given.id if isinstance(given, ast.Name) else ""
        return self._is_still(value) and (name not in self.bindings or name in self.inert)

    def _is_quiet_decorator(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            given = [*node.args, *(k.value for k in node.keywords)]
            return self._is_quiet_decorator(node.func) and all(map(self._is_still, given))
        return self._origin(node) in _QUIET_DECORATORS

    def _is_still(self, node: ast.expr) -> bool:
        """Whether evaluating an expression runs no code of anybody, but for a few functions that
        only make what they are told."""
        if isinstance(node, ast.Name):
            return self._is_known(node.id)
        if isinstance(node, ast.Tuple | ast.List):
            return all(map(self._is_still, node.elts))
        if isinstance(node, ast.Call):
            given = [*node.args, *(k.value for k in node.keywords)]
            name = self._origin(node.func)
            if name in _READS:
                return all(map(self._is_still, given)) and not any(map(_has_names, given))
            return name in _KEEPS and all(map(self._is_still, given))
        if isinstance(node, ast.BinOp):
            return all(isinstance(n, _IN_SUMS) for n in ast.walk(node))
        if isinstance(node, ast.Lambda):
            return self._has_still_defaults(node.args)
        return _is_data(node)

    def _is_quiet_hint(self, node: ast.expr | None) -> bool:
        if node is None or not self.hints_run:
            return True
        for n in ast.walk(node):
            if not isinstance(n, _IN_HINTS):
                return False
            if isinstance(n, ast.Name) and not self._is_known(n.id):
                return False
            if isinstance(n, ast.Attribute) and _dotted(n).partition(".")[0] not in self.aliases:
                return False
            self.has_hints |= isinstance(n, ast.Subscript | ast.BinOp | ast.Attribute)
        return True

    def _is_known(self, name: str) -> bool:
        return name in _BUILTIN or name in self.bindings

    def _origin(self, node: ast.expr) -> str:
        """The full name of a library's object; empty if it may be another."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module, name = self._stands_for(node.value.id)
            return f"{module}.{node.attr}" if module and not name else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id not in self.bindings:
            return f"builtins.{node.id}" if node.id in _BUILTIN else ""
        module, name = self._stands_for(node.id)
        return f"{module}.{name}" if name else ""

    def _stands_for(self, alias: str) -> tuple[str, str]:
        """The module, and the name in it, of which a name is an alias; empty if it may be
        another."""
        found = self.aliases.get(alias, ())
        is_sure = self.bindings[alias] <= 1 and len(found) == 1 and not found[0][0]
        return found[0][1:] if is_sure else ("", "")

    # --- parts -----------------------------------------------------------------------------------

    def _part(self, nodes: list[Any], strip: bool, name: str = "") -> Part:
        words: set[str] = set()
        named: set[str] = set()  # without the words of longer texts
        values: set[str] = set()
        imports: set[tuple[int, str, str]] = set()
        reflection: set[str] = set()
        for node, classes, is_inner in _walk(nodes, strip, tuple(name.split(".")[:-1])):
            words.update(_words(node, classes))
            named.update(_named(node))
            if (value := self._value(node)) is not None:
                values.add(value)
            if classes and not is_inner and isinstance(node, ast.Import | ast.ImportFrom):
                values.update(_bound([node]))  # attributes of the class
            imports.update(_imports(node))
            reflection.update(self._reflection(node, is_inner))
        if named & _REACHES_EVERYTHING or ("modules" in words and any(map(self._is_sys, values))):
            reflection.add(EVERYTHING)
        if named & _READS_BODIES:
            reflection.add(BODIES)
        if named & _TEXT_READERS:
            reflection.add(READS_TEXT)
        return Part(
            _digest(nodes, strip),
            frozenset(words),
            frozenset(values),
            tuple(sorted(imports)),
            frozenset(reflection),
            *self.looks.of(nodes, strip, is_method="." in name),
            line=nodes[0].lineno if nodes else 0,
        )

    def _value(self, node: Any) -> str | None:
        """The dotted imported name that is used as a value here. A name is such a value unless it
        is the base of a plain attribute."""
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return None
        if getattr(node, "is_base", False):
            return None
        dotted = _dotted(node)
        if isinstance(node, ast.Attribute) and _is_special(node.attr):
            dotted = _dotted(node.value)
        return dotted if dotted and dotted.partition(".")[0] in self.aliases else None

    def _reflection(self, node: Any, is_inner: bool) -> Iterator[str]:
        if isinstance(node, ast.Name) and node.id in _NAMESPACES and node.id not in self.bindings:
            given = getattr(node, "call", None)
            if getattr(node, "is_given", False) and node.id in ("vars", "dir"):
                return  # as in `map(vars, rows)`
            if given is None or (not given and (node.id == "globals" or not is_inner)):
                yield MODULE
        if isinstance(node, ast.Attribute) and node.attr == "modules":
            base = _dotted(node.value)
            if base.rpartition(".")[2] == "sys" or self._is_sys(base):
                yield from getattr(node, "asked", (EVERYTHING,))
        taken = _imports(node) if isinstance(node, ast.ImportFrom) else ()
        if any(module == "sys" and name in ("modules", "*") for _, module, name in taken):
            yield EVERYTHING

    def _is_sys(self, name: str) -> bool:
        return (0, "sys", "") in self.aliases.get(name, ())


_IN_HINTS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.BitOr, ast.Tuple, ast.List),
    *(ast.Load, ast.Subscript, ast.UnaryOp, ast.USub),
)
_IN_SUMS = (ast.BinOp, ast.operator, ast.Constant)
_IN_DATA = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Load),
    *(ast.UnaryOp, ast.USub, ast.UAdd),
)


def _is_data(node: ast.expr) -> bool:
    """Whether an expression is made of literals alone."""
    nodes = [*ast.walk(node)]
    signed = (n.operand for n in nodes if isinstance(n, ast.UnaryOp))
    return all(isinstance(n, _IN_DATA) for n in nodes) and all(
        isinstance(n, ast.Constant) for n in signed
    )


def _pairwise(target: ast.expr, value: ast.expr) -> list[ast.expr]:
    """The targets of an assignment, one by one if it unpacks as many literals: ``a, b = 1, 2``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return target.elts if len(target.elts) == len(value.elts) else [target]
    return [target]


def _is_accessor(decorator: ast.expr, function: _Function) -> bool:
    """Whether it is the decorator in ``@x.setter def x``."""
    is_named = isinstance(decorator, ast.Attribute) and decorator.attr in _ACCESSORS
    return is_named and _dotted(decorator.value) == function.name  # type: ignore[attr-defined]


def _inert(node: ast.stmt) -> list[str]:
    """The names that a statement binds to functions, classes or literals."""
    if isinstance(node, _Function | ast.ClassDef):
        return [] if node.decorator_list else [node.name]
    if isinstance(node, ast.Assign) and _is_data(node.value):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _has_names(node: ast.expr) -> bool:
    inner = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return any(n.id not in _BUILTIN for n in inner)


def _is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)  # type: ignore[attr-defined]


def _is_program(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether a statement only runs where its module is the program, which no worker's is."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _acts_as_type(node: Any) -> bool:
    if isinstance(node, _Function):
        return node.name in _TYPES_ACT
    if not isinstance(node, ast.ClassDef):
        return False
    is_type = any(
        _dotted(base).rpartition(".")[2] in ("type", "ABCMeta", "EnumMeta") for base in node.bases
    )
    return is_type or any(k.arg == "metaclass" for k in node.keywords)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _subscripted(node: ast.expr) -> ast.expr:
    return node.value if isinstance(node, ast.Subscript) else node


def _dotted(node: Any) -> str:
    """``a.b.c``; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def functions(
    nodes: Iterable[Any], prefix: str = "", leaves_out: Callable[[Any], bool] = lambda _: False
) -> Iterator[tuple[str, _Function]]:
    """The functions that are in no other function, by qualified name."""
    for node in nodes:
        if leaves_out(node):
            continue
        if isinstance(node, _Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{prefix}{node.name}.", leaves_out)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions(ast.iter_child_nodes(node), prefix, leaves_out)


def _bound(nodes: Iterable[Any]) -> Iterator[str]:
    """Each name that these nodes bind at the top level of a module, once for each time."""
    for node in nodes:
        if isinstance(node, _Function | ast.ClassDef):
            yield node.name
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            yield from (n for m in inner for n in _globals(m))
            yield from () if isinstance(node, ast.ClassDef) else _globals(node)
            yield from _bound(node.decorator_list)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (a.asname or a.name.partition(".")[0] for a in node.names)
        elif isinstance(node, ast.Lambda):
            continue
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            named = getattr(node, "name", None) or getattr(node, "rest", None)
            if isinstance(named, str):  # of an exception, or in a pattern
                yield named
            yield from _bound(ast.iter_child_nodes(node))


def _globals(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Global):
            yield from inner.names


def _aliases(tree: ast.Module) -> dict[str, tuple[tuple[int, str, str], ...]]:
    found: dict[str, dict[tuple[int, str, str], None]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                name, stands_for = a.asname, a.name
                if name is None:
                    name = stands_for = a.name.partition(".")[0]
                found.setdefault(name, {})[0, stands_for, ""] = None
        elif isinstance(node, ast.ImportFrom):
            for a in node.names:
                at = node.level, node.module or "", a.name
                found.setdefault(a.asname or a.name, {})[at] = None
    return {name: tuple(all_of) for name, all_of in found.items()}


def _imports(node: Any) -> Iterator[tuple[int, str, str]]:
    if isinstance(node, ast.Import):
        yield from ((0, a.name, "") for a in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((node.level, node.module or "", a.name) for a in node.names)


def _walk(
    nodes: Iterable[Any], strip: bool, classes: tuple[str, ...]
) -> Iterator[tuple[Any, tuple[str, ...], bool]]:
    """Every node, the names of the classes around it, and whether a function is around it. Bodies
    of functions are left out if ``strip``; texts of documentation are left out."""
    pending: list[tuple[Any, tuple[str, ...], bool]] = [(n, classes, False) for n in nodes]
    while pending:
        node, classes, is_inner = pending.pop()
        yield node, classes, is_inner
        if isinstance(node, ast.Attribute):
            vars(node.value)["is_base"] = not _is_special(node.attr)
        if isinstance(node, ast.Call):
            vars(node.func)["call"] = [*node.args, *node.keywords]
            for given in node.args:
                vars(given)["is_given"] = True
        _name_modules(node)
        if isinstance(node, ast.ClassDef):
            classes = (*classes, node.name)
        for name, value in ast.iter_fields(node):
            is_body = name == "body" and isinstance(node, _Function)
            if is_body and strip:
                continue
            inner = is_inner or is_body or isinstance(node, ast.Lambda)
            children = value if isinstance(value, list) else [value]
            if name == "body" and children and isinstance(node, _Function | ast.ClassDef):
                children = children[_is_text(children[0]) :]
            pending += ((c, classes, inner) for c in children if isinstance(c, ast.AST))


def _name_modules(node: Any) -> None:
    """Where ``sys.modules`` is asked for one module by a constant name, let it know which: none,
    if only whether it is there."""
    match node:
        case ast.Compare(left=ast.Constant(), comparators=[modules, *_]):
            vars(modules)["asked"] = ()
        case ast.Subscript(value=modules, slice=ast.Constant(value=name)) | ast.Call(
            ast.Attribute(modules, "get" | "pop"), [ast.Constant(value=name), *_]
        ):
            vars(modules)["asked"] = (str(name),)


def _words(node: Any, classes: tuple[str, ...]) -> Iterator[str]:
    own: list[str] = []
    if isinstance(node, ast.Name):
        own = [node.id]
    elif isinstance(node, ast.Attribute):
        own = [] if node.attr == "__doc__" else [node.attr]  # of a module: see `_value`
    elif isinstance(node, ast.keyword):
        own = [node.arg or ""]
    elif isinstance(node, ast.Global | ast.Nonlocal):
        own = node.names
    elif isinstance(node, ast.MatchClass):
        own = node.kwd_attrs
    elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        own = _WORD.findall(text)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        names = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
        own = [part for name in names for part in name.split(".")]
    for word in own:
        yield word
        if classes and word.startswith("__") and not word.endswith("__"):
            yield from (f"_{name.lstrip('_')}{word}" for name in classes)


def _named(node: Any) -> Iterator[str]:
    """The names that a node mentions in code, or as a text that is a name with an underscore:
    ``getattr(f, "__globals__")``, but not a split that is called ``eval``."""
    if not isinstance(node, ast.Constant):
        yield from _words(node, ())
    elif isinstance(node.value, str) and "_" in node.value:
        yield node.value


def _digest(nodes: Iterable[Any], strip: bool) -> str:
    hasher = blake3.blake3()
    for node in nodes:
        hasher.update(repr(_form(node, strip)).encode("utf-8", "surrogatepass"))
    return hasher.hexdigest()[:32]


def _form(node: Any, strip: bool) -> Any:
    """The syntax without places, the same in every version of Python."""
    if isinstance(node, ast.AST):
        fields: list[Any] = []
        for name, value in ast.iter_fields(node):
            if strip and name == "body" and isinstance(node, _Function):
                value = value[:1] if _is_text(value[0]) else []
            if value is not None and value != [] and name not in ("type_comment", "kind"):
                fields.append((name, _form(value, strip)))
        return (type(node).__name__, fields)
    if isinstance(node, list):
        return [_form(inner, strip) for inner in node]
    return (type(node).__name__, node)
