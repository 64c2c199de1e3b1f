"""What a top-level statement does while its module is imported, as far as one can see from it.

Looked at is what runs then: of a function its decorators and defaults, of a class its body too.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.code.bindings import Function, bound, everything, own_scope
from pipeline.code.names import dotted

_MUTATORS = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "register"}
    | {"pop", "popitem", "popleft", "remove", "discard", "clear", "sort", "reverse"}
)


@dataclass(frozen=True)
class Call:
    """A call of a dotted name, with the dotted names among its arguments."""

    path: tuple[str, ...]
    arguments: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Changes:
    """What a function changes outside itself.

    Attributes:
        stores: it sets a global, or an item or attribute of something that is not its own.
        arguments: it does so with something that it is given.
        mutated: dotted names, not its own, of which it calls a method that changes containers.
    """

    stores: bool = False
    arguments: bool = False
    mutated: frozenset[tuple[str, ...]] = frozenset()


def calls(node: ast.stmt) -> Iterator[Call]:
    """The calls that may run when the statement does."""
    for inner in _running(node):
        if isinstance(inner, ast.Call) and (path := dotted(inner.func)):
            values = [*inner.args, *(keyword.value for keyword in inner.keywords)]
            yield Call(path, tuple(filter(None, map(dotted, values))))


def _running(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, Function | ast.Lambda):
        children = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        children += node.decorator_list if isinstance(node, Function) else []
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from _running(child)


def values(node: ast.stmt, name: str) -> Iterator[ast.expr]:
    """What a statement may bind to a name; for an element of something, the name itself."""
    for inner in own_scope(node):
        match inner:
            case ast.Assign(targets=targets, value=value):
                if any(name in _stored(target) for target in targets):
                    yield value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                if name in _stored(target):
                    yield value
            case ast.NamedExpr(target=ast.Name(id=target), value=value) if target == name:
                yield value
            case ast.For(target=target) if name in _stored(target):
                yield ast.Name(name)
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                if name in _stored(target):
                    yield value


def _stored(target: ast.AST) -> set[str]:
    return {name for node in everything(target) for name in bound(node)}


def changes(function: Function) -> Changes:
    """What a function changes when it is called; for a method, ``cls`` is not its own."""
    nodes = list(everything(function))
    own = {name for node in nodes for name in bound(node)}
    given = {node.arg for node in nodes if isinstance(node, ast.arg)} - {"cls"}
    own |= given
    stores, mutated, changed = False, set(), set()
    for node in nodes:
        match node:
            case ast.Global():
                stores = True
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                stores |= (root(node) or function.name) not in own
                changed.add(root(node))
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _MUTATORS:
                path = dotted(owner)
                changed.add(root(owner))
                if path and path[0] not in own:
                    mutated.add(path)
    stores |= any(path[0] == "cls" for path in mutated)
    return Changes(stores, not given.isdisjoint(changed - {"self"}), frozenset(mutated))


def root(node: ast.AST) -> str:
    """The name at the left of ``a.b[0].c``; empty if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
