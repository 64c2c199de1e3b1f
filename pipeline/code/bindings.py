"""Which names a piece of code binds in the scope it lies in, and what an import brings.

Scopes are those of the language reference (section 4.2, "Naming and binding"). They are worked out
here and not with ``symtable``, whose tables carry neither attributes nor imports, and are cut
differently by each version of Python.
"""

import ast
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Import = ast.Import | ast.ImportFrom

Imported = tuple[str, ...]
"""What an import brings: ``(module,)``, or ``(module, name)`` of a name in it."""

_BLOCKS = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar),
    *(ast.With, ast.AsyncWith, ast.Match),
)


def own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what lies in it, but nothing that has a scope of its own."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Comprehension):
            yield from (inner for inner in everything(node) if isinstance(inner, ast.NamedExpr))
        elif not isinstance(node, (Definition, ast.Lambda)):
            waiting += reversed(_children(node))


def everything(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all that lies in it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _children(node)


def _children(node: ast.AST) -> list[ast.AST]:
    """What lies directly in a node, in its order; not whether it is loaded or stored, which is a
    third of all nodes. Every plan looks at all the code there is, so this is where its time goes.
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
    """The names that a node itself binds in its scope; of imports, see :func:`imported`."""
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
    """What binds names in a class body, whatever happens: what a block may bind may still be read
    as a global afterwards, unless it is imported."""
    is_block = isinstance(statement, _BLOCKS)
    for node in own_scope(statement):
        if not is_block or isinstance(node, Import):
            yield node


def imported(node: Import, package: str) -> Iterator[tuple[str, Imported]]:
    """Each local name that an import binds, with what it stands for.

    ``from m import *`` gives ``"*"``; ``import a.b`` gives ``a``.

    Args:
        package: what a relative import starts from.
    """
    if isinstance(node, ast.ImportFrom):
        source = absolute(node, package)
        yield from ((alias.asname or alias.name, (source, alias.name)) for alias in node.names)
        return
    for alias in node.names:
        if alias.asname:  # it reads the attribute of the package
            package_name, _, name = alias.name.rpartition(".")
            yield alias.asname, (package_name, name) if package_name else (name,)
        else:
            top = alias.name.partition(".")[0]
            yield top, (top,)


def loaded(node: Import, package: str) -> Iterator[Imported]:
    """What runs when an import does: ``import a.b`` loads ``a.b``, though it binds ``a``."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield (alias.name,)
        else:
            yield absolute(node, package), alias.name


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that ``from ..a import b`` reads from."""
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    start = parents[: len(parents) - node.level + 1]
    return ".".join([*start, *filter(None, [node.module])])
