"""The user's project: which modules a store may name so that Temper imports them.

The command line runs no experiment, so it only has names from the store. Importing a module runs
its code, so a name in a store is not enough. This module reads the source, without running it, to
check that the module belongs to the project:

- a *step function* is in a module that defines it under ``@step``;
- an *experiment* is a script below the current folder that imports ``run`` or ``main`` from Temper;
- another module (of a kind, or of a type of an argument) belongs to a step if the step's module
  imports it, directly or through modules of the project; or if an experiment imports both.

Modules are looked for below the current folder and in ``sys.path``.
"""

import ast
import os
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pipeline.base.installed import in_library

_CORE = __name__.partition(".")[0]
_MOST_MODULES = 2000
_LARGEST_SOURCE = 4 * 2**20


class Project:
    """The project in the current folder.

    Args:
        script: the script of a run as the store records it.
    """

    def __init__(self, script: str = ""):
        self._here = Path.cwd()
        self._trees: dict[Path, ast.Module | None] = {}
        self.script = self._experiment(script)
        # Python also puts a script's own folder first
        own = [str(self.script.parent)] if self.script else []
        self.folders = [*own, str(self._here)]

    def has_step(self, module: str, name: str) -> bool:
        """Whether a module defines a step function of this name."""
        tree = self._tree(self.file_of(module))
        return tree is not None and any(
            isinstance(node, ast.FunctionDef)
            and node.name == name
            and any(map(_is_step, node.decorator_list))
            for node in ast.walk(tree)
        )

    def place_of(self, reference: str, step: str = "") -> str | None:
        """``module:name`` of a class or step function that may have moved: to a module that the
        script imports, or one beside it or in the current folder. ``None`` if it is not found, or
        in several of these.

        Args:
            step: the name of the step, if it is a step function; one that states this name with
                ``name=`` or ``was=`` is meant, too.
        """
        module, _, name = reference.partition(":")
        beside = {file.stem for folder in self.folders for file in Path(folder).glob("*.py")}
        for modules in ({module}, self._of_script, beside):
            names = ((other, self._defined(other, name, step)) for other in modules)
            if found := [f"{other}:{own}" for other, own in names if own is not None]:
                return found[0] if len(found) == 1 else None
        return None

    def _defined(self, module: str, name: str, step: str) -> str | None:
        """The name of a class or step function in a module."""
        if self.has_step(module, name) if step else self._has_class(module, name):
            return name
        tree = self._tree(self.file_of(module)) if step else None
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.FunctionDef) and any(
                isinstance(text, ast.Constant) and text.value == step
                for decorator in node.decorator_list
                if isinstance(decorator, ast.Call) and _is_step(decorator)
                for keyword in decorator.keywords
                if keyword.arg in ("name", "was")
                for text in ast.walk(keyword.value)
            ):
                return node.name
        return None

    def _has_class(self, module: str, name: str) -> bool:
        """Whether a module defines a class of this qualified name."""
        tree = self._tree(self.file_of(module))
        own = name.rpartition(".")[2]
        nodes = ast.walk(tree) if tree is not None else ()
        return any(isinstance(node, ast.ClassDef) and node.name == own for node in nodes)

    def belongs(self, module: str, step_module: str) -> bool:
        """Whether a module belongs to the step that another module defines."""
        if module in (around := self._reached(step_module)) or module == step_module:
            return True
        around = self._of_script
        at_home = step_module in around or step_module.partition(".")[0] == _CORE
        return at_home and module in around

    def file_of(self, module: str) -> Path | None:
        """The file of a module, found without importing its package."""
        parts = module.split(".")
        for folder in (*self.folders, *sys.path):
            place = Path(folder or ".").joinpath(*parts)
            for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if file.is_file():
                    return file
        return None

    @cached_property
    def _of_script(self) -> set[str]:
        return self._reached(self.script.stem) | {self.script.stem} if self.script else set()

    def _experiment(self, script: str) -> Path | None:
        """The file of a script, if it lies below the current folder and is an experiment."""
        file = Path(os.path.normpath(self._here / script))
        if not script.endswith(".py") or not file.is_relative_to(self._here):
            return None
        tree = self._tree(file)
        return file if tree is not None and any(map(_runs, ast.walk(tree))) else None

    def _reached(self, module: str) -> set[str]:
        """The modules that a module imports, directly or through others whose source is here."""
        reached: set[str] = set()
        waiting = [module]
        while waiting and len(reached) < _MOST_MODULES:
            current = waiting.pop()
            file = self.file_of(current)
            for name in self._imports(file, current):
                if name not in reached and name.partition(".")[0] != _CORE:
                    reached.add(name)
                    waiting.append(name)
        return reached

    def _imports(self, file: Path | None, module: str) -> Iterator[str]:
        tree = self._tree(file) if file is not None and not in_library(str(file)) else None
        package = module.split(".")
        if file is not None and file.name != "__init__.py":
            package = package[:-1]
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield from _with_parents(alias.name)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from _with_parents(base)
                yield from (f"{base}.{alias.name}" for alias in node.names)

    def _tree(self, file: Path | None) -> ast.Module | None:
        if file is None:
            return None
        if file not in self._trees:
            try:
                small = file.is_file() and file.stat().st_size <= _LARGEST_SOURCE
                self._trees[file] = ast.parse(file.read_bytes()) if small else None
            except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
                self._trees[file] = None
        return self._trees[file]


def _is_step(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name == "step"


def _runs(node: ast.AST) -> bool:
    """Whether a statement imports ``run`` or ``main`` from Temper."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == _CORE for alias in node.names)
    if not isinstance(node, ast.ImportFrom) or node.level:
        return False
    of_core = (node.module or "").partition(".")[0] == _CORE
    return of_core and any(alias.name in ("run", "main") for alias in node.names)


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1) if module)
