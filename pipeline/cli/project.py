"""The project that a person works in, read and not run: which of its modules a store may name.

The command line has no experiment, only names that a store gives it. Importing a module runs it, so
a name is not enough. The source must say that the module belongs:

- a *step function* is in a module that defines it under ``@step``;
- an *experiment* is a script below the present folder that takes ``run`` or ``main`` from Temper;
- other modules (kinds, types of arguments) belong to a step if its module imports them, or if an
  experiment does that imports its module too; directly, or through modules of the project.

Modules are looked for below the present folder and where Python looks.
"""

import ast
import os
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from pipeline.code.modules import in_library

_CORE = __name__.partition(".")[0]
_MOST_MODULES = 2000
_LARGEST_SOURCE = 4 * 2**20


class Project:
    """The project around the present folder.

    Args:
        script: of the run that is looked at, as it was called; the store says so.
    """

    def __init__(self, script: str = ""):
        self._here = Path.cwd()
        self._trees: dict[Path, ast.Module | None] = {}
        self.script = self._experiment(script)
        # a script's own folder is where Python looks first
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

    def belongs(self, module: str, step_module: str) -> bool:
        """Whether a module belongs to the step that another module defines."""
        if module in (around := self._reached(step_module)) or module == step_module:
            return True
        around = self._of_script
        at_home = step_module in around or step_module.partition(".")[0] == _CORE
        return at_home and module in around

    def file_of(self, module: str) -> Path | None:
        """Where a module lies, asked without importing its package."""
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
        """The file of a script, if it lies here and is an experiment."""
        file = Path(os.path.normpath(self._here / script))
        if not script.endswith(".py") or not file.is_relative_to(self._here):
            return None
        tree = self._tree(file)
        return file if tree is not None and any(map(_runs, ast.walk(tree))) else None

    def _reached(self, module: str) -> set[str]:
        """What a module imports, and what that imports, as far as it is in source here."""
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
    """Whether a statement takes what runs experiments from Temper."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == _CORE for alias in node.names)
    if not isinstance(node, ast.ImportFrom) or node.level:
        return False
    of_core = (node.module or "").partition(".")[0] == _CORE
    return of_core and any(alias.name in ("run", "main") for alias in node.names)


def _with_parents(module: str) -> Iterator[str]:
    parts = module.split(".")
    yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1) if module)
