"""Marks in compiled project code: which functions ran.

The first statement of every top-level function, and of every method of a top-level class, is a call
with a number. It is put into the syntax tree, after the docstring and on the line of
the statement before which it stands, so that tracebacks, ``inspect`` and all that reads source see
what the author wrote. The numbers are indices of bytes in a memory map that every process of a step
shares: forked ones by inheritance, others by the file behind it. So a process may end in any way,
and what it ran is known.

Why a call, and not a plain store: ``torch.compile`` reads byte code, and takes a function that is
declared constant for what it is: it calls it once, while it traces, and compiles nothing for it.
"""

import ast
import builtins
import mmap
from collections.abc import Iterator, Sequence

_COMPILERS = frozenset({"numba"})
"""Libraries that compile byte code and cannot make anything of a mark."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def install(name: str, marks: mmap.mmap) -> None:
    """Let code of this process, and of those forked from it, that is marked with ``name`` write
    into ``marks``. It is a builtin, so that no module shows it."""

    def ran(number: int, marks: mmap.mmap = marks) -> None:
        marks[number] = 1

    ran._dynamo_marked_constant = True  # type: ignore[attr-defined]
    setattr(builtins, name, ran)


def uninstall(name: str) -> None:
    """Let code that is marked with ``name`` run on without leaving a mark."""
    setattr(builtins, name, lambda number: None)


def functions(tree: ast.Module) -> list[tuple[str, _Function]]:
    """Every function to be marked, with the unit that it belongs to."""
    return list(_in_body(tree.body, None))


def is_for_a_compiler(tree: ast.Module, content: bytes) -> bool:
    """Whether a module hands its functions to a compiler of byte code, and must not be marked."""
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


def mark(functions: Sequence[tuple[str, _Function]], name: str, numbers: Sequence[int]) -> None:
    """Put a mark into each function."""
    for (_, function), number in zip(functions, numbers, strict=True):
        has_docstring = ast.get_docstring(function, clean=False) is not None
        place = min(int(has_docstring), len(function.body) - 1)
        call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number)], []))
        for node in ast.walk(call):
            ast.copy_location(node, function.body[place])
        function.body.insert(int(has_docstring), call)


def _in_body(body: Sequence[ast.AST], unit: str | None) -> Iterator[tuple[str, _Function]]:
    for node in body:
        if isinstance(node, _Function):
            yield unit or node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _in_body(node.body, unit or node.name)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _in_body(list(ast.iter_child_nodes(node)), unit)
