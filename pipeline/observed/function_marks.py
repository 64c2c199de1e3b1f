"""Marks in compiled project code, which record which functions ran.

The first statement of every top-level function, and of every method of a top-level class, becomes a
call with a number. The call is inserted into the syntax tree, after the docstring, with the line
number of the next statement. So tracebacks, ``inspect`` and other readers of source see the
author's code. The numbers are indices of bytes in a memory map that every process of a step shares:
forked processes inherit it, others open the file behind it. So the record survives, however a
process ends.

A mark is a call and not a plain store because of ``torch.compile``. It analyses byte code; a
function that is declared constant is called once, during tracing, and nothing is compiled for it.
"""

import ast
import builtins
import mmap
from collections.abc import Sequence
from typing import Any

_COMPILERS = frozenset({"numba"})
"""Libraries that compile byte code and cannot compile a mark."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def install(name: str, marks: mmap.mmap) -> None:
    """Make code with the mark ``name``, in this process and in its forks, write into ``marks``. The
    mark is a builtin, so it is not visible in any module."""

    def ran(number: int, marks: mmap.mmap = marks) -> None:
        marks[number] = 1

    ran._dynamo_marked_constant = True  # type: ignore[attr-defined]
    setattr(builtins, name, ran)


def uninstall(name: str) -> None:
    """Make code with the mark ``name`` run without recording anything."""
    setattr(builtins, name, lambda number: None)


def is_for_a_compiler(tree: ast.Module, content: bytes) -> bool:
    """Whether a module uses a compiler of byte code, so that it must not be marked."""
    if not any(name.encode() in content for name in _COMPILERS):
        return False
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if not _COMPILERS.isdisjoint(name.partition(".")[0] for name in names):
            return True
    return False


def mark(functions: Sequence[tuple[str, _Function]], name: str, numbers: Sequence[Any]) -> None:
    """Insert a mark into each function, with a number or what stands for it."""
    for (_, function), number in zip(functions, numbers, strict=True):
        has_docstring = ast.get_docstring(function, clean=False) is not None
        place = min(int(has_docstring), len(function.body) - 1)
        call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number)], []))
        for node in ast.walk(call):
            ast.copy_location(node, function.body[place])
        function.body.insert(int(has_docstring), call)


def is_detail(node: ast.AST) -> bool:
    """Whether a definition is declared an execution detail, so that its code does not count."""
    found = getattr(node, "decorator_list", ())
    return any(getattr(d, "attr", getattr(d, "id", "")) == "execution_detail" for d in found)
