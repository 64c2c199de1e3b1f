"""Projects with one thing changed: somewhere in the syntax of a module, or in the order, the names
or the places of its statements and files."""

import ast
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from laboratory import Files

CONSTANTS: tuple[Any, ...] = (0, 1, -1, 2, 1.5, True, None, "", "a", "b", b"a", (1, 2))
BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.BitAnd, ast.BitOr)
UNARY = (ast.Not, ast.USub, ast.UAdd, ast.Invert)
COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn)
LIBRARIES = ("json", "math", "textwrap", "collections")


def edit(files: Files, chance: random.Random) -> tuple[str, dict[str, str]]:
    """The name of an edit at random, and the project after it; half of the edits are mutants."""
    while True:
        change = mutant if chance.random() < 0.5 else chance.choice(CHANGES)
        edited = dict(files)
        with suppress(SyntaxError, ValueError, AttributeError, TypeError, IndexError):
            change(edited, chance)
            for name, text in edited.items():
                if name.endswith(".py"):
                    compile(text, name, "exec")
            if edited != files:
                return change.__name__, edited


def mutant(files: dict[str, str], chance: random.Random) -> None:
    name, tree = _module(files, chance)
    chance.choice([change for node in ast.walk(tree) for change in _changes(node, chance)])()
    _write(files, name, tree)


# --- statements of the top level ---------------------------------------------------------------


def move(files: dict[str, str], chance: random.Random) -> None:
    name, tree = _module(files, chance)
    node = tree.body.pop(chance.randrange(len(tree.body)))
    tree.body.insert(chance.randrange(len(tree.body) + 1), node)
    _write(files, name, tree)


def remove(files: dict[str, str], chance: random.Random) -> None:
    name, tree = _module(files, chance)
    tree.body.pop(chance.randrange(len(tree.body)))
    _write(files, name, tree)


def move_elsewhere(files: dict[str, str], chance: random.Random) -> None:
    """A definition goes into a new module, and is imported from there."""
    name, tree = _module(files, chance)
    node = chance.choice([n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)])
    files["moved_here.py"] = ast.unparse(node) + "\n"
    named = chance.choice([node.name, "*"])
    tree.body[tree.body.index(node)] = ast.ImportFrom("moved_here", [ast.alias(named)], 0)
    _write(files, name, tree)


def add(files: dict[str, str], chance: random.Random) -> None:
    """A statement that binds a name of the project once more, or imports another module."""
    name, tree = _module(files, chance)
    word = chance.choice(_names(files))
    other = chance.choice([*_modules(files), *LIBRARIES])
    added = chance.choice(
        [
            f"{word} = {chance.choice(CONSTANTS)!r}",
            f"def {word}(*args, **kwargs):\n    return 7",
            f"class {word}:\n    a = 7",
            f"import {other}",
            f"import {other} as {word}",
            f"from {other} import {word}",
            f"from {other} import *",
            f"del {word}",
            f"__all__ = [{word!r}]",
            f"def __getattr__(name):\n    return {chance.choice(CONSTANTS)!r}",
        ]
    )
    tree.body.insert(chance.randrange(len(tree.body) + 1), ast.parse(added).body[0])
    _write(files, name, tree)


# --- names and files ---------------------------------------------------------------------------


def rename(files: dict[str, str], chance: random.Random) -> None:
    """A name in one module alone, so that another one may mean something else."""
    name, tree = _module(files, chance)
    old, new = chance.choice(_names({name: files[name]})), chance.choice(_names(files))
    for node in ast.walk(tree):
        for field in ("id", "name", "attr", "asname"):
            if getattr(node, field, None) == old:
                setattr(node, field, new)
    _write(files, name, tree)


def add_file(files: dict[str, str], chance: random.Random) -> None:
    """A module where an import may lead from now on."""
    modules = _modules(files)
    module = chance.choice([*LIBRARIES, *modules, *_names(files)])
    package = chance.choice(["", *(f"{n.replace('.', '/')}/" for n in modules)])
    text = f"{chance.choice(_names(files))} = {chance.choice(CONSTANTS)!r}\n"
    path = f"{package}{module.replace('.', '/')}"
    files.setdefault(chance.choice([f"{path}.py", f"{path}/__init__.py"]), text)


def remove_file(files: dict[str, str], chance: random.Random) -> None:
    del files[chance.choice(sorted(files.keys() - {"steps.py"}))]


CHANGES: tuple[Callable[[dict[str, str], random.Random], None], ...] = (
    *(move, move, remove, move_elsewhere, add, add, add),
    *(rename, add_file, remove_file),
)


def _module(files: Files, chance: random.Random) -> tuple[str, ast.Module]:
    name = chance.choice(sorted(name for name in files if name.endswith(".py")))
    return name, ast.parse(files[name])


def _write(files: dict[str, str], name: str, tree: ast.Module) -> None:
    files[name] = ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _modules(files: Files) -> list[str]:
    paths = sorted(name for name in files if name.endswith(".py"))
    return [p.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for p in paths]


def _names(files: Files) -> list[str]:
    """The names that its modules bind."""
    trees = [ast.parse(text) for name, text in sorted(files.items()) if name.endswith(".py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    stored = (n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    named = (n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef))
    return sorted({*stored, *named})


# --- anywhere in the syntax --------------------------------------------------------------------


def _changes(node: ast.AST, chance: random.Random) -> Iterator[Any]:
    """Ways to change a node in place."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            yield from _list_changes(node, name, value, chance)
        elif isinstance(value, ast.expr):
            yield from _expression_changes(node, name, value, chance)
        elif value is None and name in (
            "lower",
            "upper",
            "step",
            "value",
            "msg",
            "vararg",
            "kwarg",
        ):
            if name in ("vararg", "kwarg"):
                yield lambda name=name: setattr(node, name, ast.arg("new"))
            elif not isinstance(node, ast.Constant):
                yield lambda name=name: setattr(node, name, ast.Constant(None))
    match node:
        case ast.BinOp() | ast.AugAssign():
            yield lambda: setattr(node, "op", chance.choice(BINARY)())
        case ast.UnaryOp():
            yield lambda: setattr(node, "op", chance.choice(UNARY)())
        case ast.Compare():
            yield lambda: node.ops.__setitem__(0, chance.choice(COMPARE)())
        case ast.BoolOp():
            yield lambda: setattr(
                node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
            )
        case ast.Constant():
            yield lambda: setattr(node, "value", chance.choice(CONSTANTS))
        case ast.FormattedValue():
            yield lambda: setattr(node, "conversion", chance.choice([-1, 114, 115, 97]))
        case ast.Attribute():
            yield lambda: setattr(node, "attr", chance.choice(["p", "q", "r"]))
        case ast.Name(ctx=ast.Load()):
            yield lambda: setattr(node, "id", chance.choice(["a", "x", "y", "len", "other"]))
        case ast.keyword():
            yield lambda: setattr(node, "arg", chance.choice(["p", "q", "r", None]))
        case ast.IfExp():
            yield lambda: _swap(node, "body", "orelse")
            yield lambda: _swap(node, "body", "test")
        case ast.arg():
            yield lambda: setattr(node, "arg", "renamed")
        case ast.comprehension():
            yield lambda: setattr(node, "is_async", 1 - node.is_async)
        case ast.Slice():
            yield lambda: _swap(node, "lower", "upper")


def _swap(node: ast.AST, one: str, other: str) -> None:
    first, second = getattr(node, one), getattr(node, other)
    setattr(node, one, second)
    setattr(node, other, first)


def _list_changes(
    node: ast.AST, name: str, value: list[Any], chance: random.Random
) -> Iterator[Any]:
    if name in ("ops", "names", "type_ignores", "type_params", "decorator_list"):
        return
    if len(value) > 1:
        yield lambda: value.reverse()
        yield lambda: value.insert(0, value.pop())
    if len(value) > (1 if name in ("body", "targets", "values", "generators", "items") else 0):
        yield lambda: value.pop(chance.randrange(len(value)))
    if value and isinstance(value[0], ast.expr):
        yield lambda: value.append(ast.Constant(None))
        yield lambda: value.__setitem__(0, ast.Starred(value[0]))
    if name == "body" and value and isinstance(value[0], ast.stmt):
        yield lambda: value.insert(0, ast.Return(ast.Constant(0)))
        yield lambda: value.append(ast.If(ast.Name("a", ast.Load()), [value.pop()], []))
    if name in ("keys", "kw_defaults") and value:
        place = chance.randrange(len(value))
        yield lambda: value.__setitem__(place, None)
        yield lambda: value.__setitem__(place, ast.Constant(None))
    if name == "orelse" and not value and not isinstance(node, ast.Try):
        yield lambda: value.append(ast.Return(ast.Constant(9)))


def _expression_changes(
    node: ast.AST, name: str, value: ast.expr, chance: random.Random
) -> Iterator[Any]:
    if isinstance(getattr(value, "ctx", None), ast.Store | ast.Del) or name == "annotation":
        return
    yield lambda: setattr(node, name, ast.UnaryOp(ast.Not(), value))
    yield lambda: setattr(node, name, ast.Call(value, [], []))
    yield lambda: setattr(node, name, ast.Tuple([value], ast.Load()))
    yield lambda: setattr(node, name, ast.Constant(chance.choice(CONSTANTS)))
    if isinstance(value, ast.Starred | ast.Await):
        yield lambda: setattr(node, name, value.value)
    if name in ("lower", "upper", "step", "format_spec", "value") and not isinstance(
        node, ast.Attribute | ast.Subscript | ast.Starred | ast.Assign | ast.FormattedValue
    ):
        yield lambda: setattr(node, name, None)
