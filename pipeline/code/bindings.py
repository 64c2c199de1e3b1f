"""The names that a piece of code binds in its scope, and the sources of imported names.

Scopes follow the language reference (section 4.2, "Naming and binding"). This module does not use
``symtable``, whose tables hold neither attributes nor imports and differ between Python versions.
"""

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Import = ast.Import | ast.ImportFrom

Imported = tuple[str, ...]
"""The source of an imported name: ``(module,)``, or ``(module, name)`` for a name in a module."""

_BLOCKS = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar),
    *(ast.With, ast.AsyncWith, ast.Match),
)


def own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes inside it that belong to the same scope."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Comprehension):
            yield from (inner for inner in everything(node) if isinstance(inner, ast.NamedExpr))
        elif not isinstance(node, (Definition, ast.Lambda)):
            waiting += reversed(_children(node))


def everything(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes inside it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _children(node)


def _children(node: ast.AST) -> list[ast.AST]:
    """The direct children of a node, in order, without expression contexts (a third of all nodes).

    Every plan walks over all project code, and most of its time is spent here.
    """
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST) and name != "ctx":
            found.append(value)
    return found


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds in its scope, except imports: see :func:`imported`."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.NamedExpr(target=ast.Name(id=name)):
            yield name
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name


def surely_bound(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes that surely bind their names when a class body runs. A name that a block may bind
    can still be read as a global afterwards, unless it is imported."""
    is_block = isinstance(statement, _BLOCKS)
    for node in own_scope(statement):
        if not is_block or isinstance(node, Import):
            yield node


def imported(node: Import, package: str) -> Iterator[tuple[str, Imported]]:
    """Each local name that an import in a package binds, with its source: ``from m import *`` gives
    ``"*"``, ``import a.b`` gives ``a``."""
    if isinstance(node, ast.ImportFrom):
        source = absolute(node.module or "", node.level, package)
        yield from ((alias.asname or alias.name, (source, alias.name)) for alias in node.names)
        return
    for alias in node.names:
        if alias.asname:  # `import a.b as x` binds the attribute `b` of `a`
            package_name, _, name = alias.name.rpartition(".")
            yield alias.asname, (package_name, name) if package_name else (name,)
        else:
            top = alias.name.partition(".")[0]
            yield top, (top,)


def loaded(node: Import, package: str) -> Iterator[Imported]:
    """The modules and names that an import loads: ``import a.b`` loads ``a.b``, but binds ``a``."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield (alias.name,)
        else:
            yield absolute(node.module or "", node.level, package), alias.name


def absolute(module: str, level: int, package: str) -> str:
    """The absolute name of a module that is named from a package, with a dot for each level."""
    parents = package.split(".")
    parents = parents[: len(parents) - level + 1] if level else []
    return ".".join([*parents, *filter(None, [module])])
