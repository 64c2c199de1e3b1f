"""The normal form of a syntax tree: a text that is the same for code that does the same.

It differs neither with comments, layout, docstrings or parentheses, nor with the version of Python
that parses the source; anything else in which two trees differ shows. Digests are made from it, so
a change of the form changes the key of every step that declares no version.
"""

import ast
from collections.abc import Callable
from functools import cache


def normal_form(node: ast.AST, docstrings: bool = False) -> str:
    """The text, in ASCII."""
    parts: list[str] = []
    _write(node, parts.append, docstrings)
    return "".join(parts)


def is_idle(node: object) -> bool:
    """``pass``, a docstring, ``...``: says nothing to the interpreter."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass)


def _write(value: object, emit: Callable[[str], None], docstrings: bool) -> None:
    """Nodes by name with the fields that are there, so that a field which a later Python adds is
    not seen."""
    if isinstance(value, ast.UnaryOp):
        value = _without_not(value)
    if isinstance(value, ast.Constant):
        emit(_literal(value.value))
    elif isinstance(value, ast.JoinedStr):
        match _joined(value.values):
            case []:
                emit(_literal(""))
            case [ast.Constant(text)]:
                emit(_literal(text))
            case parts:
                emit("(JoinedStr ")
                _write(parts, emit, docstrings)
                emit(")")
    elif isinstance(value, ast.AST):
        emit(f"({type(value).__name__}")
        for name in _fields(type(value)):
            content = _said(getattr(value, name, None), docstrings)
            if content is not None and content != []:
                emit(f" {name}=")
                _write(content, emit, docstrings)
        emit(")")
    elif isinstance(value, list):
        emit("[")
        for item in value:
            _write(item, emit, docstrings)
            emit(",")
        emit("]")
    else:
        emit(ascii(value))


def _said(content: object, docstrings: bool) -> object:
    """A field without what says nothing, so that a body of docstrings alone is an empty one."""
    if not isinstance(content, list):
        return content
    return [
        item for item in content if not is_idle(item) or (docstrings and isinstance(item, ast.Expr))
    ]


def _literal(value: object) -> str:
    """A constant such that no two of different type or value look alike.

    Not by ``repr``: which characters it shows depends on the Unicode tables of the Python, and
    there is a limit to the digits of an int in decimal.
    """
    return hex(value) if type(value) is int else ascii(value)


@cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(sorted(set(kind._fields) - {"ctx"}))


def _without_not(node: ast.UnaryOp) -> ast.expr:
    """``x not in y`` for ``not x in y``, and ``x is not y`` likewise."""
    match node:
        case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.In()], right)):
            return ast.Compare(left, [ast.NotIn()], right)
        case ast.UnaryOp(ast.Not(), ast.Compare(left, [ast.Is()], right)):
            return ast.Compare(left, [ast.IsNot()], right)
    return node


def _joined(items: list[ast.expr]) -> list[ast.expr]:
    """The parts of an f-string with neighbouring texts as one: how it is cut varies by version."""
    joined: list[ast.expr] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, ast.Constant) and isinstance(last, ast.Constant):
            joined[-1] = ast.Constant(f"{last.value}{item.value}")
        elif not (isinstance(item, ast.Constant) and item.value == ""):
            joined.append(item)
    return joined
