"""Splits a source file into named units, without importing it.

The model:

- A :class:`Module` holds what a file binds at its top level. A *unit* is one such name, with every
  statement that affects it: its definition, and later changes (``TABLE["x"] = f``). A block
  (``try``, ``if``, ``for``, ...) belongs as a whole to each name bound in it.
- The analysis of a file depends only on its bytes. So it is cached on disk under their hash, for
  every project on the machine (:mod:`pipeline.code.shelf`).
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pipeline.code import shelf
from pipeline.code.bindings import everything
from pipeline.code.form import Load
from pipeline.code.reading.scopes import Home
from pipeline.code.reading.syntax import dotted, is_idle
from pipeline.code.statement import Statement, make_statement
from pipeline.errors import TemperError


@dataclass(frozen=True)
class Module:
    """The names that importing a file binds, and the statements that it runs.

    Attributes:
        statements: the statements that run on import, in order.
        docstring: the module's docstring.
        exports: ``__all__``, if it is a literal list.
        binary: the digest of a file that is no source; the other attributes are then empty.
    """

    name: str
    statements: tuple[Statement, ...] = ()
    docstring: str = ""
    exports: tuple[str, ...] | None = None
    binary: str | None = None

    @cached_property
    def units(self) -> Mapping[str, tuple[Statement, ...]]:
        """The statements of each name that the module defines, as opposed to only importing it."""
        own = {name for statement in self.statements for name in statement.binds}
        units: dict[str, list[Statement]] = {}
        for statement in self.statements:
            for name in {*statement.binds, *own.intersection(statement.changes)}:
                units.setdefault(name, []).append(statement)
        if self.docstring:
            docstring = Statement(self.name, -1, "other", (ascii(self.docstring),), ())
            units.setdefault("__doc__", [docstring])
        return {name: tuple(parts) for name, parts in units.items()}

    @cached_property
    def names(self) -> Mapping[str, tuple[tuple[int, Load], ...]]:
        """The sources of each imported name, each with the position of the import."""
        found: dict[str, list[tuple[int, Load]]] = {}
        for statement in self.statements:
            for local, source in statement.names:
                found.setdefault(local, []).append((statement.place, source))
        return {local: tuple(sources) for local, sources in found.items()}

    @cached_property
    def stars(self) -> tuple[tuple[int, str], ...]:
        """The modules of ``from module import *``, each with the position of the import."""
        return tuple((s.place, star) for s in self.statements for star in s.stars)

    def offers(self, name: str) -> bool:
        """Whether ``from module import *`` may bind this name, if the module has it."""
        if self.exports is not None:
            return name in self.exports
        return self.computes_exports or not name.startswith("_")

    @property
    def computes_exports(self) -> bool:
        """Whether there is an ``__all__`` that is not a literal list."""
        return self.exports is None and ("__all__" in self.units or "__all__" in self.names)


@lru_cache(maxsize=2048)
def read_module(name: str, file: str, is_package: bool, source: bytes) -> Module:
    """The module with this source; an edited file has other source, so it is parsed again.

    Raises:
        TemperError: the source is not valid Python.
    """
    kept = shelf.find(name, is_package, source)
    if kept is not None:
        return kept
    module = _parse(name, file, is_package, source)
    shelf.keep(module, is_package, source)
    return module


def _parse(name: str, file: str, is_package: bool, source: bytes) -> Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python itself warns when the module is imported
            tree = ast.parse(source, file)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", error)
        where = f"{file}, line {line}" if line else file
        raise TemperError(f"{where}: {reason}; correct it, steps reach this file") from error
    package = name if is_package else name.rpartition(".")[0]
    docstring = ast.get_docstring(tree, clean=False) or ""
    home = Home(name, package, docstring, any(map(_is_future, tree.body)))
    # `import *` takes no names that begin with an underscore
    is_imported = not _times_bound(tree.body, "__name__", by_star=False)
    body = _executed(tree.body, _type_guards(tree.body), is_imported)
    statements = tuple(make_statement(node, place, home) for place, node in enumerate(body))
    return Module(name, statements, docstring, _exports(tree.body))


def _is_future(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
    )


def _exports(body: Sequence[ast.stmt]) -> tuple[str, ...] | None:
    """``__all__``, if one top-level assignment of a literal is its only mention."""
    mentions = [
        node
        for statement in body
        for node in everything(statement)
        if isinstance(node, ast.Name) and node.id == "__all__"
    ]
    for node in body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=value)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value)
            ) if len(mentions) == 1:
                with suppress(ValueError, TypeError):
                    return tuple(ast.literal_eval(value))
    return None


def _executed(
    body: list[ast.stmt], guards: set[tuple[str, ...]], is_imported: bool
) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported, without idle ones.

    Args:
        guards: names that are false then.
        is_imported: whether ``__name__`` is not ``"__main__"``, as the module does not bind it.
    """
    for node in body:
        is_main = isinstance(node, ast.If) and is_imported and is_main_guard(node.test)
        if isinstance(node, ast.If) and (is_main or dotted(node.test) in guards):
            yield from _executed(node.orelse, guards, is_imported)
        elif not is_idle(node):
            yield node


def is_main_guard(test: ast.expr) -> bool:
    """Whether a condition is ``__name__ == "__main__"``, which holds in a script alone."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return False
    sides = (test.left, *test.comparators)
    names = {getattr(side, "id", getattr(side, "value", None)) for side in sides}
    return isinstance(test.ops[0], ast.Eq) and names == {"__name__", "__main__"}


def _type_guards(body: list[ast.stmt]) -> set[tuple[str, ...]]:
    """The dotted names in a module that stand for ``typing.TYPE_CHECKING`` and nothing else."""
    guards: set[tuple[str, ...]] = set()
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module == "typing" and not node.level:
            found = [alias for alias in node.names if alias.name == "TYPE_CHECKING"]
            guards |= {(alias.asname or alias.name,) for alias in found}
        elif isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name == "typing"]
            guards |= {(alias.asname or alias.name, "TYPE_CHECKING") for alias in found}
    return {guard for guard in guards if _times_bound(body, guard[0]) == 1}


def _times_bound(body: list[ast.stmt], name: str, by_star: bool = True) -> int:
    """How many statements of a module bind a name, or may bind it, in any scope.

    Args:
        by_star: whether an ``import *`` may bind it.
    """
    count = 0
    for statement in body:
        for node in everything(statement):
            if isinstance(node, ast.alias):
                count += by_star and node.name == "*"
                count += (node.asname or node.name.partition(".")[0]) == name
            elif isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                count += name in (getattr(node, "id", ""), getattr(node, "attr", ""))
                count += getattr(node, "attr", "") == "TYPE_CHECKING"
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                count += node.name == name
            elif isinstance(node, ast.Constant):
                count += node.value == "TYPE_CHECKING"
    return count
