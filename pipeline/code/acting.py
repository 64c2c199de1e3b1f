"""The conditions under which a top-level statement only binds names.

Importing a module runs its top-level statements. A statement that only binds names affects only
code that reads these names. Any other statement *acts*: it may fill a registry, draw from a random
generator, or change an object of another module. Whether a statement acts depends on the functions
that it calls, and on the objects whose operators and attributes it uses: all of these may run
project code. So this module derives the *needs* of a statement: conditions on the targets of its
names. A statement that is not known to be harmless acts.

An expression is *plain* if evaluating it changes nothing and gives data: numbers, texts, built-in
containers of these, results of a short list of library functions. Operators may be applied to plain
data. An expression is *harmless* if evaluating it changes nothing; its value, of any kind, may be
bound or stored.
"""

import ast
from collections.abc import Callable, Iterable

from pipeline.code.bindings import Comprehension, Definition, Function, Import, bound, own_scope
from pipeline.code.form import Dotted, Need, Ref, Use, word_set
from pipeline.code.reading.syntax import (
    called,
    dotted,
    is_idle,
    parameters,
    subscripted,
    worked_with,
)

CALLED, MAKES, DECORATES, APPLIED = "called", "makes", "decorates", "applied"
PLAIN, EITHER, READ = "plain", "either", "read"
INHERITED, METACLASS, OWNED = "inherited", "metaclass", "owned"
HANDED, HELD, HINTED = "handed", "held", "hinted"
"""The kinds of needs. ``CALLED``: harmless to call. ``MAKES``: also returns plain data.
``DECORATES``: a decorator of a library. ``APPLIED``: harmless when a built-in function calls it.
``PLAIN``: plain data. ``EITHER``: plain data or a type. ``READ``: its attributes are harmless to
read. ``INHERITED``: a base without hooks for subclasses. ``METACLASS``: a metaclass without
effects. ``OWNED``: a container that the module itself made. ``HANDED``: ``MAKES``, or ``CALLED`` if
the holder is a dataclass that only stores its fields. ``HELD``: ``PLAIN``, unless the holder is
such a dataclass. ``HINTED``: its attributes, items and operators are harmless in an annotation."""


class Acts(Exception):
    """The statement acts, whatever its names stand for."""


PURE_METHODS = word_set("""
    get items keys values copy index count union intersection difference issubset issuperset
    isdisjoint split rsplit splitlines strip lstrip rstrip lower upper title capitalize casefold
    replace join startswith endswith encode decode partition format rpartition removeprefix
    removesuffix zfill ljust rjust center find rfind isdigit isalpha isidentifier translate
    expandtabs hex bit_length joinpath with_suffix with_name with_stem resolve absolute
    relative_to as_posix is_relative_to fullmatch match search findall total_seconds isoformat
    fromkeys
""")
"""Methods of plain data that change nothing."""
_ACCESSORS = frozenset({"setter", "getter", "deleter"})
_GIVES_TO = word_set("map filter sorted min max")
_USED_UP = word_set("""
    filter map reversed zip enumerate iter product combinations permutations
""")
"""Functions whose result is an iterator, which can be read only once."""
_CONSUME = word_set("""
    tuple list set frozenset dict sum min max any all sorted join bytes Counter OrderedDict
    deque fromkeys
""")
"""Functions that read their iterable arguments to the end."""
_KEEPS = word_set("""
    field added_field execution_detail detail_field partial TypeVar NewType cast ParamSpec
    Field PrivateAttr AfterValidator BeforeValidator PlainValidator WrapValidator Factory ib attrib
    property staticmethod classmethod
""")
"""Functions that only store their arguments."""
_CALLED_AT_ONCE = "field_transformer"
"""What attrs calls while it defines a class; other arguments of decorators are called later."""
_CONTAINERS = word_set("dict list set bytearray OrderedDict Counter deque defaultdict")


def needs_of(node: ast.stmt, module: str, is_future: bool) -> dict[str, tuple[Need, ...] | None]:
    """The needs of a top-level statement and of what it defines, by the attributes of
    :class:`pipeline.code.statement.Statement`; ``None`` for what acts in any case.

    A function is called with plain data, so its parameters are plain data.

    Args:
        is_future: whether annotations are not evaluated.
    """
    here = module, is_future
    is_function = isinstance(node, Function)
    found = {"needs": _found(here, lambda f: f.statement(node), skips_defaults=is_function)}
    if isinstance(node, Function):
        found["needs_of_defaults"] = _found(here, lambda finder: finder.defaults(node))
    if isinstance(node, ast.FunctionDef):
        found["needs_of_call"] = _found(here, lambda f: f.body(node))
        found["needs_of_result"] = _found(here, lambda f: f.body(node), returns_data=True)
    elif isinstance(node, ast.ClassDef):
        found["needs_of_making"] = _found(here, lambda finder: finder.making(node))
    elif isinstance(_only_target(node), ast.Name | ast.Subscript):
        value: ast.expr | None = getattr(node, "value", None)  # `for` has a target, and no value
        found["needs_of_data"] = value and _found(here, lambda finder: finder.plain(value))
    return found


def _only_target(node: ast.stmt) -> ast.expr | None:
    """The target of an assignment, unless it has several."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return targets[0] if len(targets) == 1 else None


def made(node: ast.stmt) -> tuple[str, ...]:
    """The names that a statement binds to a new container or value, which has no other name."""
    value, target = getattr(node, "value", None), _only_target(node)
    is_new = value is not None and _is_made(value)
    return (target.id,) if is_new and isinstance(target, ast.Name) else ()


def attributes(node: ast.stmt) -> tuple[str, ...]:
    """The names that a class body binds to constants and methods."""
    body = node.body if isinstance(node, ast.ClassDef) else []
    found: set[str] = set()
    for inner in body:
        match inner:
            case ast.FunctionDef(name=name, decorator_list=[]):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_constant(value):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                if _is_constant(value):
                    found.add(name)
    return tuple(sorted(found))


def _is_constant(value: ast.expr) -> bool:
    """Whether an expression consists of constants, or is ``enum.auto()``."""
    if isinstance(value, ast.Call):
        return (dotted(value.func) or ("",))[-1] == "auto" and not value.args
    kinds = ast.Constant | ast.Tuple | ast.BinOp | ast.UnaryOp | ast.JoinedStr
    return all(
        isinstance(inner, kinds | ast.operator | ast.unaryop | ast.expr_context)
        for inner in ast.walk(value)
    )


def _found(
    here: tuple[str, bool], look: Callable[["_Finder"], None], **settings: bool
) -> tuple[Need, ...] | None:
    finder = _Finder(*here, **settings)
    try:
        look(finder)
    except (Acts, RecursionError):
        return None
    return tuple(dict.fromkeys(finder.needs))


def _names(node: ast.AST) -> set[str]:
    """The names that a node binds in its own scope."""
    return {name for inner in own_scope(node) for name in bound(inner)}


def _is_made(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return (dotted(value.func) or ("",))[-1] in _CONTAINERS
    return isinstance(
        value,
        ast.Constant | ast.JoinedStr | ast.Dict | ast.List | ast.Set | ast.Tuple | ast.ListComp
        | ast.DictComp | ast.SetComp,
    )  # fmt: skip


class _Finder:
    """Walks over the code that a statement runs, and collects its needs.

    Attributes:
        is_future: whether annotations are not evaluated.
        local: local names whose values are plain data.
        opaque: local names whose values may be anything.
        fresh: inside a function, the names of containers that it made; elsewhere ``None``.
        owned: inside a class body, the names of containers that it made.
        is_consumed: whether the current expression is read to its end at once.
        skips_defaults: leave out the defaults of the top-level function.
        returns_data: whether the function must return plain data.
    """

    def __init__(
        self,
        module: str,
        is_future: bool,
        skips_defaults: bool = False,
        returns_data: bool = False,
    ):
        self.module, self.is_future = module, is_future
        self.skips_defaults, self.returns_data = skips_defaults, returns_data
        self.needs: list[Need] = []
        self.local: set[str] = set()
        self.opaque: set[str] = set()
        self.fresh: set[str] | None = None
        self.owned: set[str] = set()
        self.in_class = False
        self.is_consumed = False

    def need(self, what: str, path: Iterable[str]) -> None:
        self.needs.append(Need(what, Ref(self.module, ".".join(path), Use.CALL)))

    def is_local(self, name: str) -> bool:
        return name in self.local or name in self.opaque

    def global_path(self, node: ast.expr) -> Dotted | None:
        """The dotted name that an expression is, unless it begins with a local one."""
        path = dotted(node)
        return None if path is None or self.is_local(path[0]) else path

    # --- statements --------------------------------------------------------------------------

    def body(self, node: ast.FunctionDef) -> None:
        """The effects of calling a function."""
        given = {argument.arg for argument in parameters(node.args)}
        inside = {name for part in node.body for name in _names(part)}
        self.local, self.fresh = given | inside, set()
        self.block(node.body)

    def making(self, node: ast.ClassDef) -> None:
        """The effects of a dataclass's constructor."""
        for inner in node.body:
            match inner:
                case ast.FunctionDef(name="__post_init__"):
                    self.body(inner)
                case ast.FunctionDef(name=name, decorator_list=decorators):
                    if any(getattr(d, "attr", "") in _ACCESSORS for d in decorators):
                        raise Acts
                    if name.startswith("__") and name not in _QUIET_METHODS:
                        raise Acts
                case ast.AnnAssign(value=ast.Call(func=func, keywords=words)):
                    path = dotted(func)
                    if path is None or path[-1] != "field":
                        self.harmless(inner.value)
                    for word in words:
                        if word.arg == "default_factory":
                            self.factory(word.value)
                case ast.AnnAssign(value=value):
                    self.harmless(value)

    def factory(self, node: ast.expr) -> None:
        path = dotted(node)
        if path is None:
            if not isinstance(node, ast.Lambda):
                raise Acts
            self.harmless(node.body)
        else:
            self.need(CALLED, path)

    def block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case _ if is_idle(node):
                pass
            case ast.Import() | ast.ImportFrom():
                if self.fresh is not None:
                    raise Acts  # an import inside a function may act
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.function(node)
            case ast.ClassDef():
                if self.fresh is not None:
                    raise Acts
                self.definition(node)
            case ast.Assign(targets=targets, value=value):
                self.assign(targets, value)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                if self.fresh is None or not isinstance(target, ast.Name):
                    self.annotation(annotation)
                if value is not None:
                    self.assign([target], value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.plain(value)
                self.change(name)
            case ast.If(test=test, body=body, orelse=orelse):
                self.plain(test)
                self.block(body + orelse)
            case ast.For(target=target, iter=items, body=body, orelse=orelse):
                self.consumed(items)
                self.bind(target)
                if not self.in_class:
                    self.local |= _names(target)
                self.block(body + orelse)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                self.block(body + [s for h in handlers for s in h.body] + orelse + final)
            case ast.Return(value=value) if self.fresh is not None:
                self.plain(value) if self.returns_data else self.harmless(value)
            case ast.Raise(exc=value) if self.fresh is not None:
                self.harmless(value)
            case ast.Expr(value=value) if self.fresh is not None:
                self.expression(value)
            case _ if type(node).__name__ == "TypeAlias":
                pass  # its value is evaluated only on demand
            case _:
                raise Acts

    def expression(self, value: ast.expr) -> None:
        """An expression statement in a function: it may change a container of the function."""
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=args, keywords=words):
                if name in (self.fresh or ()):
                    for argument in (*args, *(word.value for word in words)):
                        self.plain(argument)
                    return
        self.harmless(value)

    def change(self, name: str) -> None:
        """An item of the named container is set, or the container is changed in place."""
        if self.fresh is not None:
            if name not in self.fresh:
                raise Acts
        elif not self.is_local(name):
            self.need(OWNED, [name])
        elif name not in self.owned:
            raise Acts

    def assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        is_one = len(targets) == 1 and isinstance(targets[0], ast.Name)
        known = {name for target in targets for name in _names(target)} & self.local
        if self.fresh is not None or known or not is_one:
            self.plain(value)  # operators are applied to variables; unpacking iterates
        else:
            self.harmless(value)
        for target in targets:
            self.bind(target, value)

    def bind(self, target: ast.expr, value: ast.expr | None = None) -> None:
        match target:
            case ast.Name(id=name):
                if self.fresh is not None:
                    if name not in self.local:
                        raise Acts  # a global
                    (self.fresh.add if value and _is_made(value) else self.fresh.discard)(name)
                elif self.in_class:
                    (self.owned.add if value and _is_made(value) else self.owned.discard)(name)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for inner in targets:
                    self.bind(inner)
            case ast.Starred(value=inner):
                self.bind(inner)
            case ast.Subscript(value=ast.Name(id=name), slice=key):
                self.plain(key)
                if value is not None:
                    self.harmless(value)
                self.change(name)
            case _:
                raise Acts

    # --- definitions -------------------------------------------------------------------------

    def function(self, node: Function) -> None:
        self.decorators(node)
        if not self.skips_defaults:
            self.defaults(node)
        for argument in parameters(node.args):
            self.annotation(argument.annotation)
        self.annotation(node.returns)

    def defaults(self, node: Function) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.harmless(default)

    def annotation(self, node: ast.expr | None) -> None:
        if node is not None and any(
            isinstance(inner, ast.Call | ast.NamedExpr) for inner in ast.walk(node)
        ):
            self.harmless(node)
        if node is None or self.is_future:
            return
        for owner in worked_with(node):
            if path := self.global_path(owner):
                self.need(HINTED, path)
        if any(self.is_local(path[0]) for path in subscripted(node)):
            raise Acts

    def decorators(self, node: Definition) -> None:
        for decorator in node.decorator_list:
            path = dotted(called(decorator))
            if path is None:
                raise Acts
            if isinstance(decorator, ast.Call):
                if any(word.arg in (None, _CALLED_AT_ONCE) for word in decorator.keywords):
                    raise Acts
                for argument in (*decorator.args, *(w.value for w in decorator.keywords)):
                    self.harmless(argument)
            if not self.is_local(path[0]):
                self.need(DECORATES if isinstance(decorator, ast.Call) else CALLED, path)
            elif path[-1] not in _ACCESSORS:
                raise Acts

    def definition(self, node: ast.ClassDef) -> None:
        self.decorators(node)
        for base in node.bases:
            if isinstance(base, ast.Call):
                self.plain(base)
                continue
            path = self.global_path(base.value if isinstance(base, ast.Subscript) else base)
            if path is None:
                raise Acts
            self.need(INHERITED, path)
        for keyword in node.keywords:
            path = dotted(keyword.value)
            if keyword.arg != "metaclass" or path is None:
                raise Acts
            self.need(METACLASS, path)
        outer = self.local, self.opaque, self.in_class, self.fresh
        inside = {name for part in node.body for name in _names(part)}
        self.opaque, self.in_class, self.fresh = self.opaque | inside, True, None
        for statement in node.body:
            if not isinstance(statement, Import):
                self.statement(statement)
        self.local, self.opaque, self.in_class, self.fresh = outer

    # --- expressions -------------------------------------------------------------------------

    def harmless(self, node: ast.expr | None) -> None:
        """An expression whose value is only bound or stored."""
        match node:
            case None | ast.Name():
                pass
            case ast.Lambda(args=arguments):
                for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
                    self.harmless(default)
            case ast.Attribute():
                self.attribute(node)
            case ast.Tuple(elts=items) | ast.List(elts=items):
                for item in items:
                    self.harmless(item)
            case ast.Dict(keys=keys, values=items):
                for key, item in zip(keys, items, strict=True):
                    if key is None:
                        self.plain(item)
                    else:
                        self.type_or_plain(key)
                        self.harmless(item)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.plain(test)
                self.harmless(body)
                self.harmless(orelse)
            case ast.NamedExpr(target=target, value=inner):
                self.harmless(inner)
                self.bind(target)
            case ast.Call(func=func):
                if path := self.global_path(func):
                    self.need(CALLED, path)
                    self.arguments(node, path, path)
                else:
                    self.plain(node)
            case ast.BinOp(op=ast.BitOr()) | ast.Subscript():
                self.type_or_plain(node)
            case _:
                self.plain(node)

    def type_or_plain(self, node: ast.expr) -> None:
        """``A | None`` and ``list[A]``: operators are applied to types as well as to data."""
        match node:
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                self.type_or_plain(left)
                self.type_or_plain(right)
            case ast.Subscript(value=value, slice=inner):
                self.type_or_plain(value)
                items = inner.elts if isinstance(inner, ast.Tuple | ast.List) else [inner]
                for item in items:
                    self.type_or_plain(item)
            case ast.List(elts=items):
                for item in items:
                    self.type_or_plain(item)
            case ast.Name() | ast.Attribute():
                path = dotted(node)
                if path is None:
                    self.plain(node)
                elif not self.is_local(path[0]):
                    self.need(EITHER, path)
                elif path[0] in self.opaque or len(path) > 1:
                    raise Acts
            case _:
                self.plain(node)

    def plain(self, node: ast.expr | None) -> None:
        """An expression whose value is used in operators, so it must be plain data."""
        match node:
            case None | ast.Constant():
                pass
            case ast.Name(id=name):
                if name in self.opaque:
                    raise Acts
                if name not in self.local:
                    self.need(PLAIN, [name])
            case ast.Attribute(value=value, attr=attribute):
                if path := self.global_path(node):
                    self.need(PLAIN, path)
                elif attribute in PLAIN_ATTRIBUTES:
                    self.plain(value)
                else:
                    self.field_of_parameter(dotted(node))
            case ast.Call():
                self.plain_call(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.comprehension(node)
            case ast.NamedExpr(target=target, value=inner):
                self.plain(inner)
                self.bind(target)
            case (
                ast.BinOp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.Subscript()
                | ast.JoinedStr() | ast.FormattedValue() | ast.Slice() | ast.Tuple() | ast.List()
                | ast.Set() | ast.Dict() | ast.IfExp() | ast.Starred()
            ):  # fmt: skip
                for inner in ast.iter_child_nodes(node):
                    if isinstance(inner, ast.expr):
                        self.plain(inner)
            case _:
                raise Acts

    def field_of_parameter(self, path: Dotted | None) -> None:
        """``self.beta`` in a ``__post_init__``: a field of a dataclass made of plain data."""
        if path is None or path[0] != "self" or len(path) != 2 or "self" not in self.local:
            raise Acts

    def attribute(self, node: ast.Attribute) -> None:
        if path := self.global_path(node):
            self.need(READ, path)
        else:
            self.plain(node)

    def comprehension(self, node: Comprehension) -> None:
        outer = set(self.local)
        if isinstance(node, ast.GeneratorExp) and not self.is_consumed:
            raise Acts  # a generator can be read only once
        for generator in node.generators:
            self.consumed(generator.iter)
            self.local |= _names(generator.target)
            for test in generator.ifs:
                self.plain(test)
        for made_of in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.plain(made_of)
        self.local = outer

    def consumed(self, node: ast.expr) -> None:
        """An expression that is read to its end at once; it may be an iterator."""
        before, self.is_consumed = self.is_consumed, True
        self.plain(node)
        self.is_consumed = before

    def plain_call(self, node: ast.Call) -> None:
        path = dotted(node.func)
        if path is not None and path[-1] in _USED_UP and not self.is_consumed:
            raise Acts
        if path is not None and self.global_path(node.func):
            self.need(MAKES, path)
            self.arguments(node, path)
            return
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in PURE_METHODS:
            raise Acts
        self.plain(node.func.value)
        self.arguments(node, (node.func.attr,))

    def arguments(self, node: ast.Call, path: Dotted, holder: Dotted = ()) -> None:
        """Arguments must be plain data, unless the called function stores or calls them. ``holder``
        is that function, if what it returns is only bound or stored."""
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if path[-1] in _KEEPS:
                self.harmless(argument)
            elif path[-1] in _GIVES_TO and (given := self.global_path(argument)):
                self.need(APPLIED, given)
            elif path[-1] in _GIVES_TO and isinstance(argument, ast.Lambda):
                outer = set(self.local)
                self.local |= {parameter.arg for parameter in parameters(argument.args)}
                self.plain(argument.body)
                self.local = outer
            elif path[-1] in _CONSUME or (self.is_consumed and path[-1] in _USED_UP):
                self.consumed(argument)
            else:
                before, self.is_consumed = self.is_consumed, False
                self.handed(argument, holder)
                self.is_consumed = before

    def handed(self, node: ast.expr, holder: Dotted) -> None:
        """An argument that must be plain data, unless the holder is a dataclass that stores it."""
        path = self.global_path(node.func if isinstance(node, ast.Call) else node)
        is_known = path is not None and path[-1] not in _USED_UP
        if holder and isinstance(node, ast.Tuple | ast.List):
            for item in node.elts:
                self.handed(item, holder)
        elif holder and path is not None and is_known and isinstance(node, ast.Call | ast.Name):
            refs = [Ref(self.module, ".".join(name), Use.CALL) for name in (path, holder)]
            self.needs.append(Need(HANDED if isinstance(node, ast.Call) else HELD, *refs))
            if isinstance(node, ast.Call):
                self.arguments(node, path, path)
        else:
            self.plain(node)


_QUIET_METHODS = word_set("""
    __str__ __repr__ __len__ __iter__ __call__ __eq__ __hash__ __lt__ __contains__ __getitem__
    __format__ __bool__ __enter__ __exit__
""")
"""Special methods that constructing an instance does not call."""
PLAIN_ATTRIBUTES = word_set("parent parents name stem suffix parts value")
