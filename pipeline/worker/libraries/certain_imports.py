"""Predicts which libraries a step function imports, without importing anything.

The walk follows simple Python code from the function's module. Top-level statements run when the
module is imported, statements of a function when it is called. Statements in a branch or loop, or
after a statement that leaves the function, may not run, so the walk skips them. An import inside a
``try`` always runs. The walk enters project modules, and project functions that are called on the
way; it enters no other code.

It is a prediction that only serves speed: it has no influence on what runs.
"""

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from pipeline.base import user_cache
from pipeline.trace.modules import Modules, is_core


def certain_imports(function: str) -> tuple[str, ...]:
    """The library imports that a step function makes in every call, in order.

    Args:
        function: ``module:name``, as :func:`pipeline.base.references.reference_to` writes it.

    Returns: ``module`` for ``import module``, and ``module:name`` for ``from module import name``,
        without the standard library. Empty if the code cannot be read.
    """
    module, _, name = function.partition(":")
    place = user_cache.place("imports", f"{_READER} {sys.version} {sys.path} {function}".encode())
    with suppress(OSError, ValueError, TypeError):
        states, found = user_cache.load(place)
        if all(_state(path) == state for path, state in states.items()):
            return tuple(found)
    walk = _Walk(Modules(module))
    walk.import_module(module)
    walk.call(module, name)
    user_cache.save(place, [{path: _state(path) for path in walk.read}, list(walk.found)])
    return tuple(walk.found)


def _state(path: str) -> list[int]:
    now = os.stat(path)
    return [now.st_size, now.st_mtime_ns, now.st_ctime_ns]


class _Walk:
    def __init__(self, modules: Modules):
        self._modules = modules
        self._done: set[tuple[str, str]] = set()
        self._sources: dict[tuple[str, str], tuple[str, str]] = {}
        self.found: dict[str, None] = {}
        self.read: dict[str, ast.Module | None] = {}

    def import_module(self, name: str) -> None:
        """Follow ``import name``."""
        for part in accumulate(name.split("."), "{}.{}".format):
            if ("import", part) not in self._done and (tree := self._tree(part)) is not None:
                self._done.add(("import", part))
                self._run(part, tree.body)

    def call(self, module: str, name: str) -> None:
        """Follow ``name()`` in a module, where ``name`` is a function of it or imported by it."""
        if (module, name) in self._done or (tree := self._tree(module)) is None:
            return
        self._done.add((module, name))
        if (source := self._sources.get((module, name))) is not None:
            self.call(*source)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                self._run(module, node.body)

    def _tree(self, name: str) -> ast.Module | None:
        """The syntax tree of a project module."""
        path = None if is_core(name) or not self._modules.has(name) else self._modules.file(name)
        if path is None:
            return None
        if path not in self.read:
            self.read[path] = _parsed(path)
        return self.read[path]

    def _run(self, module: str, body: Iterable[ast.stmt]) -> None:
        for node in _that_run(body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(module, node)
                self._import_from(base, node.names)
                for alias in node.names:
                    self._sources[module, alias.asname or alias.name] = base, alias.name
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self.call(module, node.func.id)

    def _import(self, name: str) -> None:
        if self._is_library(name):
            self.found[name] = None
        else:
            self.import_module(name)

    def _import_from(self, base: str, names: list[ast.alias]) -> None:
        if not base:  # a relative import beyond the top-level package, which fails
            return
        self._import(base)
        for alias in names:
            if not self._is_library(base):
                self.import_module(f"{base}.{alias.name}")
            elif base in self.found and alias.name != "*":
                self.found[f"{base}:{alias.name}"] = None

    def _is_library(self, name: str) -> bool:
        top = name.partition(".")[0]
        if is_core(top) or top in sys.stdlib_module_names:
            return False
        return not self._modules.has(top)

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        """The module that an import names; empty beyond the top-level package, where it fails."""
        is_package = (self._modules.file(module) or "").endswith("__init__.py")
        parts = module.split(".")
        above = parts[: len(parts) - node.level + is_package] if node.level else []
        if node.level and not above:
            return ""
        return ".".join([*above, *([node.module] if node.module else [])])


def _parsed(path: str) -> ast.Module | None:
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _that_run(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """The imports and calls among statements that always run, in order."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.With | ast.Try):
            yield from _that_run(node.body)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.Return):
            if isinstance(node.value, ast.Call):
                yield node.value
            if isinstance(node, ast.Return):
                return
        elif isinstance(node, ast.Raise):
            return


_READER = user_cache.version_of(Path(__file__).name, folder=Path(__file__).parent)
