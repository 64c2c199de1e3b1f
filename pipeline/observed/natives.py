"""Notes the files that project code gives to libraries which open files in native code.

Python has no audit event for these. So each argument of a call of such a library in project code
becomes a call that looks at it and returns it, as marks are inserted
(:mod:`pipeline.observed.marks`): ``load_file(path)`` becomes ``load_file(look(path))``. Calls that
write by their name are left alone.
"""

import ast
import builtins
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARIES = frozenset(
    {"safetensors", "tokenizers", "pyarrow", "polars", "h5py", "cv2", "sentencepiece", "duckdb"}
    | {"lxml", "soundfile", "faiss", "fasttext", "kenlm", "lightgbm", "llama_cpp", "onnxruntime"}
    | {"xgboost", "decord", "torchcodec"}
)
_WRITES = ("write", "save", "sink", "export", "dump", "imwrite")
_MODES = frozenset({"w", "w-", "wb", "x", "xb"})


def install(name: str, note: Callable[[Any], None]) -> None:
    """Make calls of ``name`` tell ``note`` of their argument."""

    def look(value: Any) -> Any:
        note(value)
        return value

    setattr(builtins, name, look)


def uninstall(name: str) -> None:
    """Make calls of ``name`` return their argument without telling anybody."""
    setattr(builtins, name, lambda value: value)


def mark(tree: ast.Module, content: bytes, name: str) -> None:
    """Insert the calls of ``name`` into a module."""
    if not any(library.encode() in content for library in _LIBRARIES):
        return
    nodes = list(ast.walk(tree))
    known = {bound for node in nodes for bound in _bound(node)}
    for node in nodes:
        if isinstance(node, ast.Call) and _root(node.func) in known and not _writes(node):
            node.args = [_looked_at(argument, name) for argument in node.args]
            for keyword in node.keywords:
                keyword.value = _looked_at(keyword.value, name)


def _bound(node: ast.AST) -> Iterator[str]:
    """The names that an import binds to such a library or to a part of one."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in _LIBRARIES:
                yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        is_of_one = (node.module or "").partition(".")[0] in _LIBRARIES
        yield from (alias.asname or alias.name for alias in node.names if is_of_one)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _writes(call: ast.Call) -> bool:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else _root(call.func)
    given = (*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode"))
    modes = (value.value for value in given if isinstance(value, ast.Constant))
    writes = called.startswith(_WRITES) or "writ" in called.lower()
    return writes or any(mode in _MODES for mode in modes)


def _looked_at(argument: ast.expr, name: str) -> ast.expr:
    if isinstance(argument, ast.Starred):
        return argument
    call = ast.Call(ast.Name(name, ast.Load()), [argument], [])
    for node in (call, call.func):
        ast.copy_location(node, argument)
    return call
