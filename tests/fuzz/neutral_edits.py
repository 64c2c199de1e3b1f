"""Edits that cannot change a result unless code reads code: layout, comments, docstrings, hints,
names of locals, modules and helpers, moves, and the order of definitions.

Whether one did change the result, the interpreter says.
"""

import ast
import builtins
import random
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from laboratory import Files

T = TypeVar("T")
Change = Callable[[dict[str, str], random.Random], None]


class Impossible(Exception):
    """There is nothing in a project to which an edit applies."""


def edit(files: Files, chance: random.Random) -> tuple[str, dict[str, str]]:
    """The name of an edit at random, and the project after it."""
    while True:
        change = chance.choice(CHANGES)
        edited = dict(files)
        try:
            change(edited, chance)
            for name, text in edited.items():
                if name.endswith(".py"):
                    compile(text, name, "exec")
        except (Impossible, SyntaxError):
            continue
        if edited != files:
            return change.__name__, edited


# --- layout ------------------------------------------------------------------------------------


def reformat(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    files[name] = ast.unparse(ast.parse(files[name])) + "\n"


def comment(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    lines = files[name].split("\n")
    starts = [node.lineno - 1 for node in ast.parse(files[name]).body if not _decorated(node)]
    if not starts or "from __future__" in files[name]:
        raise Impossible
    lines.insert(chance.choice(starts), chance.choice(["# a comment", "", "\n\n", "#: x = 1"]))
    files[name] = "\n".join(lines)


def trailing(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    files[name] += chance.choice(["\n\n", "# the end\n", "    \n"])


def parenthesise(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    found = list(re.finditer(r"^( *return )(.+)$", files[name], re.M))
    match = _one(found, chance)
    start, end = match.span(2)
    text = files[name]
    files[name] = f"{text[:start]}({text[start:end]}){text[end:]}"


# --- what nobody reads ------------------------------------------------------------------------


def docstring(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    tree = ast.parse(files[name])
    definitions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    ]
    node = _one(definitions, chance)
    text = ast.Expr(ast.Constant("Says what this is."))
    if ast.get_docstring(node, clean=False) is not None:
        node.body[0] = text
    else:
        node.body.insert(0, text)
    files[name] = ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def hint(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    tree = ast.parse(files[name])
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    node = _one(functions, chance)
    arguments = [*node.args.args, *node.args.kwonlyargs]
    kind = chance.choice([ast.Name("object"), ast.Constant("anything"), ast.Name("int"), None])
    if arguments and chance.random() < 0.6:
        chance.choice(arguments).annotation = kind
    else:
        node.returns = kind
    files[name] = ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def local_name(files: dict[str, str], chance: random.Random) -> None:
    """Rename a local variable of a function, and of all functions within it."""
    name = _any_module(files, chance)
    tree = ast.parse(files[name])
    places = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    functions = [
        inner
        for place in places
        for inner in (place.body if isinstance(place, ast.ClassDef) else [place])
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    function = _one(functions, chance)
    old = _one(sorted(_renamable(function)), chance)
    _rename_local(function, old, f"{old}_renamed")
    files[name] = ast.unparse(tree) + "\n"


def rename_locals(source: str, chance: random.Random) -> str:
    """A source that is one function, with other names for its local variables."""
    tree = ast.parse(source)
    for old in _renamable(tree.body[0]):  # type: ignore[arg-type]
        _rename_local(tree.body[0], old, f"{chance.choice('klmn')}_{old}")
    return ast.unparse(tree) + "\n"


def _rename_local(function: ast.AST, old: str, new: str) -> None:
    for node in ast.walk(function):
        for field in ("id", "name", "rest"):
            if getattr(node, field, None) == old and not isinstance(node, ast.alias):
                setattr(node, field, new)


def _renamable(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    fixed: set[str] = {"out"}
    stored: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)
        elif isinstance(node, ast.Name) and node.id in ("locals", "vars", "eval", "exec", "dir"):
            return set()
        elif isinstance(node, ast.arg):
            fixed.add(node.arg)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            fixed.update(node.names)
        elif isinstance(node, ast.alias):
            fixed.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ClassDef):
            fixed.update(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        elif isinstance(node, ast.keyword) and node.arg:
            fixed.add(node.arg)
        elif isinstance(node, ast.FormattedValue | ast.Attribute):
            pass
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            fixed.add(node.name)
    own = {
        node.id
        for statement in function.body
        for node in _own(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return own & stored - fixed


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What lies in the scope of a function itself."""
    yield node
    closed = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    if not isinstance(node, closed | comprehension):
        for child in ast.iter_child_nodes(node):
            yield from _own(child)


# --- names and places -------------------------------------------------------------------------


def rename_module(files: dict[str, str], chance: random.Random) -> None:
    modules = [n for n in files if re.fullmatch(r"\w+\.py", n) and n not in _FIXED]
    name = _one(modules, chance)
    old = name.removesuffix(".py")
    _rename_word(files, old, f"{old}_renamed")
    files[f"{old}_renamed.py"] = files.pop(name)


def move_into_package(files: dict[str, str], chance: random.Random) -> None:
    """``import m`` as ``from lib import m``; only where it is imported in no other way."""
    modules = [n for n in files if re.fullmatch(r"\w+\.py", n) and n not in _FIXED]
    name = _one(modules, chance)
    module = name.removesuffix(".py")
    for other, text in files.items():
        for line in text.split("\n"):
            if re.search(rf"\b{module}\b", line) and "import" in line:
                known = re.fullmatch(rf" *(import {module}|from {module} import [^*]+)", line)
                if not known:
                    raise Impossible
        text = re.sub(rf"^( *)import {module}$", rf"\1from lib import {module}", text, flags=re.M)
        files[other] = re.sub(
            rf"^( *)from {module} import", rf"\1from lib.{module} import", text, flags=re.M
        )
    files[f"lib/{name}"] = files.pop(name)
    if chance.random() < 0.7:
        files["lib/__init__.py"] = chance.choice(["", "# a package\n", '"""A package."""\n'])


def module_to_package(files: dict[str, str], chance: random.Random) -> None:
    modules = [n for n in files if re.fullmatch(r"\w+\.py", n) and n not in _FIXED]
    name = _one(modules, chance)
    files[name.replace(".py", "/__init__.py")] = files.pop(name)


def rename_helper(files: dict[str, str], chance: random.Random) -> None:
    found = [
        node.name
        for name, text in files.items()
        if name.endswith(".py")
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name != "train"
    ]
    old = _one(found, chance)
    if any(_is_attribute(old, text) for name, text in files.items() if name.endswith(".py")):
        raise Impossible
    _rename_word(files, old, f"{old}_renamed")


def _is_attribute(name: str, text: str) -> bool:
    """Whether a class body imports the name: then it is an attribute, which code may look up."""
    bodies = (node.body for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    imports = (part for body in bodies for part in body if isinstance(part, ast.ImportFrom))
    return any(name in (alias.asname, alias.name) for part in imports for alias in part.names)


def _rename_word(files: dict[str, str], old: str, new: str) -> None:
    """Only where the word is no builtin, in no text, and no keyword or variable."""
    for name, text in files.items():
        if not name.endswith(".py"):
            continue
        if re.search(rf"""["'][^"'\n]*\b{old}\b""", text) or hasattr(builtins, old):
            raise Impossible
        if re.search(rf"\b{old}\b *=[^=]", text):
            raise Impossible
        files[name] = re.sub(rf"\b{old}\b", new, text)


def move_helper(files: dict[str, str], chance: random.Random) -> None:
    """A function that uses nothing of its module goes into a module of its own."""
    name = _any_module(files, chance)
    tree = ast.parse(files[name])
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and _stands_alone(n)]
    node = _one([n for n in found if (name, n.name) != ("steps.py", "train")], chance)
    if "__future__" in files[name] or sum(_binds(n, node.name) for n in tree.body) != 1:
        raise Impossible
    files["moved_here.py"] = ast.unparse(node) + "\n"
    place = tree.body.index(node)
    tree.body[place] = ast.ImportFrom("moved_here", [ast.alias(node.name)], 0)
    files[name] = ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _stands_alone(node: ast.FunctionDef) -> bool:
    if node.decorator_list or node.args.defaults or node.args.kw_defaults:
        return False
    own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
    own |= {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - own
    places = {"globals", "eval", "exec", "__name__", "__doc__", "locals", "__import__"}
    if any(isinstance(n, ast.Global | ast.Import | ast.ImportFrom) for n in ast.walk(node)):
        return False
    return not read & places and all(hasattr(builtins, name) for name in read)


def _binds(node: ast.stmt, name: str) -> bool:
    return any(
        name in (getattr(n, "id", ""), getattr(n, "name", ""), getattr(n, "asname", ""))
        and not isinstance(getattr(n, "ctx", None), ast.Load)
        for n in ast.walk(node)
    )


# --- order ------------------------------------------------------------------------------------


def swap_definitions(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    tree = ast.parse(files[name])
    pairs = [
        number
        for number, (one, two) in enumerate(zip(tree.body, tree.body[1:], strict=False))
        if _quiet(one) and _quiet(two) and one.name != two.name  # type: ignore[attr-defined]
    ]
    number = _one(pairs, chance)
    tree.body[number], tree.body[number + 1] = tree.body[number + 1], tree.body[number]
    files[name] = ast.unparse(tree) + "\n"


def unused_definition(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    added = [
        "def never_called(x):\n    return x\n",
        "NEVER_READ = 3\n",
        "class NeverMade:\n    x = 1\n",
    ]
    files[name] = files[name].rstrip("\n") + "\n\n\n" + chance.choice(added)


def unused_import(files: dict[str, str], chance: random.Random) -> None:
    name = _any_module(files, chance)
    if "__future__" in files[name]:
        raise Impossible
    files[name] = chance.choice(["import textwrap\n", "from string import digits\n"]) + files[name]


def _quiet(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.FunctionDef)
        and not node.decorator_list
        and not node.args.defaults
        and not node.args.kw_defaults
        and not any(isinstance(n, ast.arg) and n.annotation for n in ast.walk(node))
    )


# --- choosing ---------------------------------------------------------------------------------

_FIXED = {"steps.py", "experiment.py"}


def _any_module(files: Files, chance: random.Random) -> str:
    return _one(sorted(name for name in files if name.endswith(".py")), chance)


def _one(found: list[T], chance: random.Random) -> T:
    if not found:
        raise Impossible
    return chance.choice(found)


def _decorated(node: ast.stmt) -> bool:
    return bool(getattr(node, "decorator_list", []))


CHANGES: tuple[Change, ...] = (
    *(reformat, comment, trailing, parenthesise, docstring, hint, local_name),
    *(rename_module, move_into_package, module_to_package, rename_helper, move_helper),
    *(swap_definitions, unused_definition, unused_import),
)
