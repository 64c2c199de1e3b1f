"""What a node of the syntax tree is, and what lies in it."""

import ast
import re
from collections.abc import Iterator
from typing import TypeVar

from pipeline.code.bindings import Function, everything

_MODULE = re.compile(r"\.*[^\W\d]\w*(\.\w+)*(:\w+(\.\w+)*)?")
_Node = TypeVar("_Node", bound=ast.AST)


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


def makes_logger(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "getLogger"


def called(decorator: ast.expr) -> ast.expr:
    """A decorator without its arguments."""
    return decorator.func if isinstance(decorator, ast.Call) else decorator


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


def calls(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call | ast.NamedExpr) for inner in everything(node))


def worked_with(hint: ast.expr) -> Iterator[ast.expr]:
    """The parts of an annotation whose attributes, items or operators its evaluation uses."""
    for inner in everything(hint):
        match inner:
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                yield owner
            case ast.BinOp(left=left, right=right):
                yield from (left, right)
            case ast.UnaryOp(operand=operand):
                yield operand


def subscripted(hint: ast.expr) -> Iterator[tuple[str, ...]]:
    """The dotted names whose items an annotation reads."""
    paths = (dotted(inner.value) for inner in inside(hint, ast.Subscript))
    return filter(None, paths)


def is_type_of(node: ast.AST) -> bool:
    """``type(x)`` or ``x.__class__``."""
    is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "type"
    return is_call or getattr(node, "attr", "") == "__class__"


def is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super"


def typed(node: ast.expr) -> ast.expr:
    """The expression whose type is read: ``x`` in ``type(x)`` and ``x.__class__``."""
    if isinstance(node, ast.Call):
        return node.args[0] if node.args else node.func
    return node.value if isinstance(node, ast.Attribute) else node


def inside(node: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    return (inner for inner in everything(node) if isinstance(inner, kind))


def joined(items: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string, adjacent texts joined: Python versions split them differently."""
    joined: list[ast.expr] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(f"{last.value}{item.value}")
        elif not (isinstance(item, ast.Constant) and item.value == ""):
            joined.append(item)
    return joined


def name_of_module(node: ast.expr) -> str:
    """The text of an argument, if it may be the name of a module."""
    text = node.value if isinstance(node, ast.Constant) else ""
    return text if isinstance(text, str) and _MODULE.fullmatch(text) else ""


def names_of_types(node: ast.expr | None) -> set[str]:
    """The names of the exceptions that a handler catches; empty if they are unknown."""
    items = node.elts if isinstance(node, ast.Tuple) else [node] if node is not None else []
    names = {last_name(item) for item in items}
    return set() if "" in names else names


def uses_arguments(function: Function) -> bool:
    names = {argument.arg for argument in parameters(function.args)[2:]}
    return any(isinstance(node, ast.Name) and node.id in names for node in everything(function))


def only_a_dataclass(node: ast.ClassDef) -> bool:
    """Whether only the standard library's dataclasses can read the class's annotations."""
    return not node.bases and all(
        last_name(called(decorator)) == "dataclass" for decorator in node.decorator_list
    )
