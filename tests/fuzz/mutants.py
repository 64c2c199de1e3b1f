"""Sources with one small thing changed."""

import ast
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from fragments import BINARY, BITS, COMPARE, CONSTANTS, UNARY
from meaning import compiles


def mutant(source: str, chance: random.Random, within: bool = False) -> str | None:
    """The source with one small thing changed somewhere; ``None`` if that does not compile.

    Args:
        within: its statements stay, in their order, and something in one of them is changed.
    """
    tree = deepcopy(ast.parse(source))
    nodes = [inner for node in tree.body for inner in ast.walk(node)] if within else ast.walk(tree)
    changes = [change for node in nodes for change in _changes(node, chance)]
    if not changes:
        return None
    chance.choice(changes)()
    try:
        changed = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None
    return changed if compiles(changed) else None


def _changes(node: ast.AST, chance: random.Random) -> Iterator[Any]:
    """Ways to change a node in place."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from _list_changes(node, name, value, chance)
        elif isinstance(value, ast.expr):
            yield from _expression_changes(node, name, value, chance)
        elif value is None and name in (
            "lower",
            "upper",
            "step",
            "value",
            "msg",
            "vararg",
            "kwarg",
        ):
            if name in ("vararg", "kwarg"):
                yield lambda name=name: setattr(node, name, ast.arg("new"))
            elif not isinstance(node, ast.Constant):
                yield lambda name=name: setattr(node, name, ast.Constant(None))
    match node:
        case ast.BinOp() | ast.AugAssign():
            yield lambda: setattr(node, "op", chance.choice(BINARY + BITS)())
        case ast.UnaryOp():
            yield lambda: setattr(node, "op", chance.choice(UNARY)())
        case ast.Compare():
            yield lambda: node.ops.__setitem__(0, chance.choice(COMPARE)())
        case ast.BoolOp():
            yield lambda: setattr(
                node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
            )
        case ast.Constant():
            yield lambda: setattr(node, "value", chance.choice(CONSTANTS))
        case ast.FormattedValue():
            yield lambda: setattr(node, "conversion", chance.choice([-1, 114, 115, 97]))
        case ast.Attribute():
            yield lambda: setattr(node, "attr", chance.choice(["p", "q", "r"]))
        case ast.Name(ctx=ast.Load()):
            yield lambda: setattr(node, "id", chance.choice(["a", "x", "y", "len", "other"]))
        case ast.keyword():
            yield lambda: setattr(node, "arg", chance.choice(["p", "q", "r", None]))
        case ast.IfExp():
            yield lambda: _swap(node, "body", "orelse")
            yield lambda: _swap(node, "body", "test")
        case ast.arg():
            yield lambda: setattr(node, "arg", "renamed")
        case ast.comprehension():
            yield lambda: setattr(node, "is_async", 1 - node.is_async)
        case ast.Slice():
            yield lambda: _swap(node, "lower", "upper")


def _swap(node: ast.AST, one: str, other: str) -> None:
    first, second = getattr(node, one), getattr(node, other)
    setattr(node, one, second)
    setattr(node, other, first)


def _list_changes(
    node: ast.AST, name: str, value: list[Any], chance: random.Random
) -> Iterator[Any]:
    if name in ("ops", "names", "type_ignores", "type_params", "decorator_list"):
        return
    if len(value) > 1:
        yield lambda: value.reverse()
        yield lambda: value.insert(0, value.pop())
    if len(value) > (1 if name in ("body", "targets", "values", "generators", "items") else 0):
        yield lambda: value.pop(chance.randrange(len(value)))
    if value and isinstance(value[0], ast.expr):
        yield lambda: value.append(ast.Constant(None))
        yield lambda: value.__setitem__(0, ast.Starred(value[0]))
    if name == "body" and value and isinstance(value[0], ast.stmt):
        yield lambda: value.insert(0, ast.Return(ast.Constant(0)))
        yield lambda: value.append(ast.If(ast.Name("a", ast.Load()), [value.pop()], []))
    if name in ("keys", "kw_defaults") and value:
        place = chance.randrange(len(value))
        yield lambda: value.__setitem__(place, None)
        yield lambda: value.__setitem__(place, ast.Constant(None))
    if name == "orelse" and not value and not isinstance(node, ast.Try):
        yield lambda: value.append(ast.Return(ast.Constant(9)))


def _expression_changes(
    node: ast.AST, name: str, value: ast.expr, chance: random.Random
) -> Iterator[Any]:
    if isinstance(getattr(value, "ctx", None), ast.Store | ast.Del) or name == "annotation":
        return
    yield lambda: setattr(node, name, ast.UnaryOp(ast.Not(), value))
    yield lambda: setattr(node, name, ast.Call(value, [], []))
    yield lambda: setattr(node, name, ast.Tuple([value], ast.Load()))
    yield lambda: setattr(node, name, ast.Constant(chance.choice(CONSTANTS)))
    if isinstance(value, ast.Starred | ast.Await):
        yield lambda: setattr(node, name, value.value)
    if name in ("lower", "upper", "step", "format_spec", "value") and not isinstance(
        node, ast.Attribute | ast.Subscript | ast.Starred | ast.Assign | ast.FormattedValue
    ):
        yield lambda: setattr(node, name, None)
