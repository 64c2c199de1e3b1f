"""The names that a piece of code reads from outside itself.

A *reference* is a dotted name as a path from a module. Whatever a function, class, lambda or
comprehension binds is local to it and no reference; an import within one is followed to the module
it names. A name read as a type, in an annotation or in the text of one, is told apart from a name
read as a value.
"""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pipeline.code.bindings import (
    Function,
    Import,
    Imported,
    absolute,
    bound,
    imported,
    loaded,
    own_scope,
    surely_bound,
)

_NAMESPACES = frozenset({"__globals__", "f_globals", "f_locals"})
"""Attributes by which a function, or a frame, gives all names of its module."""


@dataclass(frozen=True)
class Reference:
    """The dotted name ``path``, read from the globals of ``module``; no path is the module itself.

    Attributes:
        annotation: it is read as a type, not as a value.
    """

    module: str
    path: tuple[str, ...]
    annotation: bool = False


@dataclass(frozen=True)
class Names:
    """What a statement needs of other code: what it reads, and what it imports when it runs."""

    references: frozenset[Reference]
    imports: frozenset[Imported]


def names_in(node: ast.stmt, module: str, package: str, by_value: bool = False) -> Names:
    """The names in a top-level statement.

    Args:
        module: the module it is in.
        package: what relative imports in it start from.
        by_value: a class of which nothing is made: its bases and the annotations of its fields
            are read as types.
    """
    reader = _Reader(module, package, by_value)
    reader.visit(node)
    return Names(frozenset(reader.references), frozenset(reader.imports))


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


@dataclass
class _Scope:
    """The names local to a function, class or comprehension, with what the imported ones are."""

    names: dict[str, list[Imported]] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    is_class: bool = False

    def bind(self, nodes: Iterable[ast.AST], package: str) -> None:
        for node in nodes:
            if isinstance(node, ast.Global):
                self.globals.update(node.names)
            elif isinstance(node, ast.Nonlocal):
                self.nonlocals.update(node.names)
            elif isinstance(node, Import):
                for local, source in imported(node, package):
                    self.names.setdefault(local, []).append(source)
            else:
                for name in bound(node):
                    self.names.setdefault(name, [])
        for name in self.globals | self.nonlocals:
            self.names.pop(name, None)


class _Reader(ast.NodeVisitor):
    """Collects the references of one statement, keeping the scopes around where it is."""

    def __init__(self, module: str, package: str, by_value: bool):
        self.module = module
        self.package = package
        self.by_value = by_value
        self.references: set[Reference] = set()
        self.imports: set[Imported] = set()
        self.scopes: list[_Scope] = []
        self.annotation = False
        self.in_field = False  # what is read as a type may be made by whoever makes the class

    # names

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._read((node.id,))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._read((node.target.id,))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = dotted(node)
        if node.attr in _NAMESPACES:
            self._refer(self.module, ())
        if path is None:
            self.visit(node.value)
        else:
            self._read(path)

    def _read(self, path: tuple[str, ...]) -> None:
        sources = self._lookup(path[0])
        if sources is None:
            self._refer(self.module, path)
        for module, *name in sources or ():
            self._refer(module, (*name, *path[1:]))

    def _refer(self, module: str, path: tuple[str, ...]) -> None:
        as_type = self.annotation and not self.in_field
        self.references.add(Reference(module, path, as_type))

    def _lookup(self, name: str) -> list[Imported] | None:
        """What a local name was imported from, often nothing; ``None`` for a global."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if scope.is_class and depth:
                continue  # methods do not see the names of their class
            if name in scope.globals:
                return None
            if name in scope.names:
                return scope.names[name]
        return None

    # imports

    def visit_Import(self, node: Import) -> None:
        self.imports.update(loaded(node, self.package))
        for local, (module, *name) in imported(node, self.package):
            if any(local in scope.globals | scope.nonlocals for scope in self.scopes[-1:]):
                # bound where anyone may use it
                self._refer(module, tuple(name))

    visit_ImportFrom = visit_Import

    def visit_Call(self, node: ast.Call) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        first = next(iter([*node.args, *named]), None)
        is_import = last_name(node.func) in ("import_module", "__import__")
        if last_name(node.func) in ("vars", "locals") and not (node.args or self.scopes):
            self._refer(self.module, ())
        if is_import and isinstance(first, ast.Constant):
            name = str(first.value)
            if name.startswith("."):
                level = len(name) - len(name.lstrip("."))
                name = absolute(ast.ImportFrom(name[level:], [], level), self.package)
            self.imports.add((name,))
            self._refer(name, ())
        self.generic_visit(node)

    # scopes

    @contextmanager
    def _scope(self, scope: _Scope) -> Iterator[_Scope]:
        self.scopes.append(scope)
        yield scope
        self.scopes.pop()

    def visit_FunctionDef(self, node: Function) -> None:
        self._visit_all(node.decorator_list)
        self._visit_all([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        with self._type_parameters(node):
            for argument in _arguments(node.args):
                self._annotate(argument.annotation)
            self._annotate(node.returns)
            self._visit_body(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *filter(None, node.args.kw_defaults)])
        self._visit_body(node.args, [node.body])

    def _visit_body(self, arguments: ast.arguments, body: Iterable[ast.AST]) -> None:
        scope = _Scope({argument.arg: [] for argument in _arguments(arguments)})
        scope.bind((inner for node in body for inner in own_scope(node)), self.package)
        with self._scope(scope):
            self._visit_all(body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_all(node.decorator_list)
        visit_base = self._annotate if self.by_value and not self.scopes else self.visit
        with self._type_parameters(node):
            for base in node.bases:
                visit_base(base)
            self._visit_all(node.keywords)
            with self._scope(_Scope(is_class=True)) as scope:
                for statement in node.body:
                    self.visit(statement)
                    scope.bind(surely_bound(statement), self.package)

    @contextmanager
    def _type_parameters(self, node: ast.AST) -> Iterator[None]:
        """The scope of ``[T]`` in ``def f[T]``, Python 3.12 and later."""
        parameters = getattr(node, "type_params", [])
        if not parameters:
            yield
            return
        with self._scope(_Scope({parameter.name: [] for parameter in parameters})):
            for parameter in parameters:
                self._annotate(getattr(parameter, "bound", None))
            yield

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> None:
        self._visit_comprehension(node.generators, [node.elt])

    visit_SetComp = visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._visit_comprehension(node.generators, [node.key, node.value])

    def _visit_comprehension(
        self, generators: list[ast.comprehension], made: list[ast.expr]
    ) -> None:
        first, *others = generators
        self.visit(first.iter)  # in the scope around the comprehension
        scope = _Scope()
        for generator in generators:
            scope.bind(own_scope(generator.target), self.package)
        with self._scope(scope):
            self._visit_all([first.target, *first.ifs, *others, *made])

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # annotations

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        in_class = bool(self.scopes) and self.scopes[-1].is_class
        self.in_field = in_class and not self.by_value
        self._annotate(node.annotation)
        self.in_field = False
        self._visit_all(filter(None, [node.target, node.value]))

    def visit_Constant(self, node: ast.Constant) -> None:
        if self.annotation and isinstance(node.value, str):
            with suppress(SyntaxError, ValueError):  # a text that is no type
                self.visit(ast.parse(node.value, mode="eval"))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        kind = last_name(node.value)
        if kind == "modules" and isinstance(node.slice, ast.Constant):
            self._refer(str(node.slice.value), ())
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for position, item in enumerate(inner):
            is_data = kind == "Literal" or (kind == "Annotated" and position > 0)
            self._annotate(item, self.annotation and not is_data)

    def _annotate(self, node: ast.AST | None, as_type: bool = True) -> None:
        if node is not None:
            before, self.annotation = self.annotation, as_type
            self.visit(node)
            self.annotation = before


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return named + [packed for packed in (arguments.vararg, arguments.kwarg) if packed]
