"""One source file as named units, read without importing it.

The model:

- A :class:`Module` is what a file binds at its top level. A *unit* is one such name with every
  statement that bears on it: its definition, and what later changes it (``TABLE["x"] = f``).
  A block (``try``, ``if``, ``for``, ...) belongs whole to each name bound in it.
- What executes something without binding it is an *effect* of importing the module. Definitions
  and assignments are possible effects: whether they act on something besides is for the caller,
  who knows other modules, to say.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from pipeline.code.bindings import Import, Imported, bound, imported, loaded, own_scope
from pipeline.code.execution import root
from pipeline.code.names import last_name
from pipeline.code.normal import is_idle
from pipeline.code.statement import Statement
from pipeline.errors import TemperError


@dataclass(frozen=True)
class Module:
    """What importing a file binds and does.

    Attributes:
        units: the statements of each name that is not merely imported.
        effects: statements that act.
        possible_effects: definitions and assignments, which act if what they use does.
        names: where each imported name comes from.
        stars: modules of which all names are imported.
        imports: what is imported when the module is.
        exports: ``__all__``, where it is a plain list.
        binary: the digest of a file that is not source; then there is nothing else.
    """

    name: str
    units: Mapping[str, tuple[Statement, ...]] = field(default_factory=dict)
    effects: tuple[Statement, ...] = ()
    possible_effects: tuple[Statement, ...] = ()
    names: Mapping[str, tuple[Imported, ...]] = field(default_factory=dict)
    stars: tuple[str, ...] = ()
    imports: frozenset[Imported] = frozenset()
    exports: tuple[str, ...] | None = None
    binary: str | None = None

    def offers(self, name: str) -> bool:
        """Whether ``from module import *`` gives this name, if the module has it."""
        if self.exports is not None:
            return name in self.exports
        return self.computes_exports or not name.startswith("_")

    @property
    def computes_exports(self) -> bool:
        """Whether there is an ``__all__``, but not as a plain list."""
        return self.exports is None and ("__all__" in self.units or "__all__" in self.names)


@lru_cache(maxsize=2048)
def read_module(name: str, file: str, is_package: bool, source: bytes) -> Module:
    """The module in ``source``. Kept by content, so that an edited file is read anew.

    Raises:
        TemperError: it is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an invalid escape: said when the module is run
            tree = ast.parse(source, file)
    except (SyntaxError, ValueError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", error)
        where = f"{file}, line {line}" if line else file
        raise TemperError(f"{where}: {reason}; correct it, steps reach this file") from error
    package = name if is_package else name.rpartition(".")[0]
    return _assemble(name, [Statement(node, name, package) for node in _executed(tree.body)])


def _assemble(name: str, statements: list[Statement]) -> Module:
    outlines = [(statement, _outline(statement)) for statement in statements]
    own = {name for _, outline in outlines for name in outline.binds}
    units: dict[str, list[Statement]] = {}
    effects: list[Statement] = []
    possible: list[Statement] = []
    names: dict[str, list[Imported]] = {}
    for statement, outline in outlines:
        for unit in outline.binds | outline.changes & own:
            units.setdefault(unit, []).append(statement)
        for local, source in outline.names:
            names.setdefault(local, []).append(source)
        if outline.acts or outline.changes - own:
            effects.append(statement)
        elif not isinstance(statement.node, Import):
            possible.append(statement)
    return Module(
        name,
        units={unit: tuple(parts) for unit, parts in units.items()},
        effects=tuple(effects),
        possible_effects=tuple(possible),
        names={local: tuple(sources) for local, sources in names.items()},
        stars=tuple(dict.fromkeys(source for _, outline in outlines for source in outline.stars)),
        imports=frozenset().union(*(outline.imports for _, outline in outlines)),
        exports=_exports(units.get("__all__", [])),
    )


def _exports(statements: list[Statement]) -> tuple[str, ...] | None:
    match [statement.node for statement in statements]:
        case [ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value)]:
            with suppress(ValueError, TypeError):
                return tuple(ast.literal_eval(value))
    return None


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported and that do anything."""
    for node in body:
        if isinstance(node, ast.If) and (_is_main_guard(node.test) or _is_type_guard(node.test)):
            yield from _executed(node.orelse)
        elif not is_idle(node):
            yield node


def _is_main_guard(test: ast.expr) -> bool:
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, *test.comparators)
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _is_type_guard(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"


@dataclass
class _Outline:
    """What one top-level statement binds, changes, imports, and whether it acts otherwise."""

    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    names: list[tuple[str, Imported]] = field(default_factory=list)
    stars: list[str] = field(default_factory=list)
    imports: set[Imported] = field(default_factory=set)
    acts: bool = False


def _outline(statement: Statement) -> _Outline:
    outline = _Outline()
    augmented: set[ast.AST] = set()
    for node in own_scope(statement.node):
        match node:
            case ast.Import() | ast.ImportFrom():
                _outline_import(outline, node, statement)
            case ast.AugAssign(target=ast.Name(id=name)):
                augmented.add(node.target)
                outline.changes.add(name)
            case ast.Name() if node in augmented:
                pass
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                outline.changes.add(root(node))
            case ast.Delete():
                outline.acts = True
            case ast.Expr():
                outline.acts |= not is_idle(node)
            case ast.ClassDef():
                outline.binds.add(node.name)
                _outline_body(outline, node, statement)
            case _:
                outline.binds.update(bound(node))
    if not isinstance(statement.node, Import):
        outline.acts |= not (outline.binds or outline.changes)
    return outline


def _outline_body(outline: _Outline, node: ast.ClassDef, statement: Statement) -> None:
    """What a class body imports, and changes outside itself."""
    inside = list(chain.from_iterable(map(own_scope, node.body)))
    own = set(chain.from_iterable(map(bound, inside)))
    for inner in inside:
        if isinstance(inner, Import):
            outline.imports.update(loaded(inner, statement.package))
        elif isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(inner.ctx, ast.Store):
            outline.changes.update({root(inner)} - own)


def _outline_import(outline: _Outline, node: Import, statement: Statement) -> None:
    for local, source in imported(node, statement.package):
        if local == "*":
            outline.stars.append(source[0])
            continue
        outline.names.append((local, source))
        if node is not statement.node:  # which import of a block runs, the block says
            outline.binds.add(local)
    outline.imports.update(loaded(node, statement.package))
