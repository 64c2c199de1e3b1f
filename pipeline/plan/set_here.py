"""Refuses steps whose code the driver has changed in its own memory.

A worker imports the files of the project. A script or a notebook may assign to a name of another
module (``config.RATE = 3``, ``Model.act = mine``): the worker would not know, and the step would
use what the file says, silently. So planning compares constants, class attributes and functions
that a step reaches, in modules that this process has loaded, with what their files say.

Only what is certain is refused: a name that its file binds once, to a literal or by an undecorated
``def``, and that no code which the step reaches may set, since then a worker sets it too. That may
also be code of a library: ``import *``, or what decorates or makes a class. A file
that was edited after this process began is not compared, nor one that Python did not compile anew
after an edit, since the module is older than the file.
"""

import ast
import importlib.util
import inspect
import marshal
import os
import re
import sys
import time
from abc import ABCMeta
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pipeline.code import Closure
from pipeline.code.source import is_main_guard
from pipeline.dag.step import Step
from pipeline.errors import TemperError
from pipeline.installed import SHIPPED_STEPS, in_library
from pipeline.text import cut

_BEGAN = time.time()
_PLAIN = (type(None), bool, int, float, str, bytes)
_SETTERS = frozenset({"exec", "globals", "locals", "vars", "__dict__"})
"""Names of code that may set any name."""
_ABSENT = object()
_HEAD_OF_COMPILED = 16
"""The bytes before the code in a ``.pyc`` file."""
_LONGEST_SHOWN = 60


def require_code_as_in_files(steps: Iterable[Step]) -> None:
    """
    Raises:
        TemperError: this process has changed a value that a step reads; workers would not have it.
    """
    own = {(step.function, step.types) for step in steps if step.function.version is None}
    closures = {id(found): found for found in (fn.closure(types) for fn, types in own)}
    for closure in closures.values():
        reached: dict[str, set[str]] = {}
        for unit in closure.units:
            module, _, name = unit.partition(":")
            reached.setdefault(module, set()).add(name)
        for name, names in reached.items():
            module, file = _loaded(name)
            source = closure.sources.get(file)
            if module is not None and source is not None and _is_comparable(file):
                _require_as_said(module, name, names, file, source, closure)


def _loaded(name: str) -> tuple[ModuleType | None, str]:
    """The module of this process with the name that a worker gives it, and its file."""
    main = sys.modules["__main__"]
    script = os.path.abspath(getattr(main, "__file__", None) or "")
    spec = getattr(main, "__spec__", None)
    if name == (Path(script).stem if spec is None else spec.name):
        return main, script
    module = sys.modules.get(name)
    return module, str(getattr(module, "__file__", None) or "")


def _is_comparable(file: str) -> bool:
    if file.startswith(f"{SHIPPED_STEPS}{os.sep}") or in_library(file):
        return False
    try:
        status = os.stat(file)
    except OSError:
        return False
    return max(status.st_mtime, status.st_ctime) < _BEGAN


def _was_compiled_from(source: bytes, file: str) -> bool:
    """Whether the file that Python keeps of its compilation, if there is one, has this source. An
    edit of the same size whose time is put back leaves an older one, which Python still imports."""
    kept = Path(importlib.util.cache_from_source(file))
    if not kept.exists():
        return True
    try:
        code = marshal.loads(kept.read_bytes()[_HEAD_OF_COMPILED:])
        return code == compile(source, file, "exec", dont_inherit=True)
    except (OSError, ValueError, EOFError, TypeError, SyntaxError):
        return False


def _require_as_said(
    module: ModuleType, name: str, names: set[str], file: str, source: bytes, closure: Closure
) -> None:
    for (owner, attribute), said in _said(source).items():
        if (owner or attribute) not in names:
            continue
        holder = vars(module).get(owner) if owner else module
        if owner and not (_is_as_written(holder) and holder.__module__ == module.__name__):
            continue
        live = vars(holder).get(attribute, _ABSENT)
        if _is_as_said(live, said, file) or _may_be_set(attribute, closure):
            continue
        if not _was_compiled_from(source, file):
            continue
        where = ".".join(filter(None, (name, owner, attribute)))
        advice = "pass it to the step as an argument, or write it into the file"
        if isinstance(said, ast.FunctionDef):
            raise TemperError(
                f"{where} is a function of {live.__code__.co_filename} in this process, and "
                f"workers import that of {file}; {advice}"
            )
        raise TemperError(
            f"{where} is {_short(live)} in this process, and {_short(said)} in {file}, which "
            f"workers import; {advice}"
        )


def _is_as_written(holder: Any) -> bool:
    """Whether it is a class that no metaclass and no base has changed as it was made."""
    is_plain = type(holder) in (type, ABCMeta)
    return is_plain and not hasattr(holder.__init_subclass__, "__func__")


def _is_as_said(live: Any, said: Any, file: str) -> bool:
    """Whether a value is what its file says, or may be: anything else than data and functions."""
    if isinstance(said, ast.FunctionDef):
        if not isinstance(live, FunctionType) or inspect.unwrap(live) is not live:
            return True
        place = live.__code__.co_filename
        return place.startswith("<") or os.path.realpath(place) == os.path.realpath(file)
    return not _is_plain(live) or (type(live) is type(said) and repr(live) == repr(said))


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _short(value: Any) -> str:
    return cut(repr(value), _LONGEST_SHOWN)


@lru_cache(maxsize=1024)
def _said(source: bytes) -> Mapping[tuple[str, str], Any]:
    """The names that a file binds once, at its top level or in a class there, with their values; a
    function is its syntax tree. The key is the class, or nothing, and the name."""
    tree = ast.parse(source)
    found = {("", name): value for name, value in _bound_once(tree)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.decorator_list:
            found |= {(node.name, name): value for name, value in _bound_once(node)}
    return found


def _bound_once(scope: ast.Module | ast.ClassDef) -> Iterator[tuple[str, Any]]:
    times = Counter(name for node in _run_on_import(scope) for name in _binds(node))
    if times["*"]:  # any name
        return
    for node in scope.body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=[]) if times[name] == 1:
                yield name, node
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if times[name] == 1:
                try:
                    literal = ast.literal_eval(value)
                except (ValueError, TypeError, MemoryError, RecursionError):
                    continue
                if _is_plain(literal):
                    yield name, literal


def _run_on_import(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module or class, without the bodies of functions, which bind names of their
    own, and of classes, and without what only a script runs."""
    for node in ast.iter_child_nodes(scope):
        if not _is_for_scripts(node):
            yield node
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _run_on_import(node)


def _binds(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name.partition(".")[0],)
    return ()


def _may_be_set(name: str, closure: Closure) -> bool:
    """Whether code that a step reaches may set a global name or an attribute."""
    reached = {unit.rpartition(":")[2] for unit in closure.units}
    mentions = re.compile(rb"\b(?:%s)\b" % "|".join((name, "setattr", *_SETTERS)).encode())
    return any(
        _sets(node, name)
        for file, source in closure.sources.items()
        if not file.startswith(f"{SHIPPED_STEPS}{os.sep}") and mentions.search(source)
        for statement in ast.parse(source).body
        if not _is_left_out(statement, reached)
        for node in ast.walk(statement)
    )


def _is_left_out(statement: ast.stmt, reached: set[str]) -> bool:
    """Whether no worker runs a statement."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return statement.name not in reached
    return _is_for_scripts(statement)


def _is_for_scripts(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not node.orelse and is_main_guard(node.test)


def _sets(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Attribute(attr=attribute, ctx=ast.Store() | ast.Del()):
            return attribute == name
        case ast.Attribute(attr=attribute) | ast.Name(id=attribute):
            return attribute in _SETTERS
        case ast.Global(names=names):
            return name in names
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value=given), *_]):
            return given == name
        case ast.Call(func=ast.Name(id="setattr")):
            return True
        case ast.Constant(value=given):
            return given == name
    return False
