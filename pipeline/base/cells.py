"""Writes the definitions of a notebook's cells to a module that a worker can import.

A worker is another process, so it needs the code of its step in a file. If ``__main__`` is a
notebook or an IPython shell, this module writes such a file. It contains the functions and classes
that a step needs and everything that they use, as the session has them now. From then on it is a
module like any other: the step's key covers its code, and a worker refuses code that the key does
not cover.

- A function has the source of the cell that defined it. Python keeps that source, whatever cells
  ran later. It keeps none of a cell below a magic, such as ``%%time``: the source is that of the
  newest such cell that compiles to the same code.
- A class has the source of the newest cell that defines it. The class in the session must have the
  same methods and annotations.
- A name that a cell imports is imported in the same way.
- A number, string or the like, also inside lists and dicts, is written as its present value.
- Anything else exists in this process alone and is refused, for example a table that was loaded.

The file lies in the working folder, below :data:`FOLDER`, in a folder that is named by the hash of
its content. So no later cell changes the file of a job that waits in a queue.
"""

import ast
import builtins
import inspect
import linecache
import os
import symtable
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import blake3

from pipeline.base.errors import TemperError

MODULE = "notebook_cells"
"""The module's name in a worker."""
FOLDER = ".temper/cells"

_PLAIN = (type(None), bool, int, float, str, bytes)
_HOLDERS = (list, tuple, set, dict)
_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
_ROOTS: dict[str, None] = {}
"""All names that were requested so far. They share one module, so that all steps share a class."""
_ABSENT = object()


def are_known() -> bool:
    """Whether ``__main__`` is a session that keeps the source of its cells."""
    main = sys.modules["__main__"]
    if not isinstance(vars(main).get("In"), list):
        return False
    file = getattr(main, "__file__", None)
    return file is None or not _is_running(file)  # `%run -i` leaves the name of its script there


def _is_running(script: str) -> bool:
    """Whether this thread is in the top level of a script of the session."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__file__") == script:
            return frame.f_code.co_filename == script
        frame = frame.f_back
    return False


def written(definitions: Iterable[Any]) -> Path | None:
    """Write those of the functions and classes that the session defines to a module, with
    everything that they use; return its file, or ``None`` if the session defines none of them.

    Workers that start from now on find the module. Call this again after every cell.

    Raises:
        TemperError: the session has a newer definition of one of the names, or something that a
            definition uses cannot be written to a file.
    """
    definitions = [one for one in definitions if one.__module__ == "__main__"]
    if not definitions or not are_known():
        return None
    session = vars(sys.modules["__main__"])
    found: dict[str, _Part] = {}
    for definition in definitions:
        name = definition.__qualname__.partition(".")[0]
        _require_newest(name, definition, session)
        _collect(name, "", session, found)
        _ROOTS[name] = None
    for name in _ROOTS:
        others = dict(found)
        try:
            _collect(name, "", session, others)
        except TemperError:  # it cannot be written any more, and nothing requests it now
            continue
        found = others
    return _saved("\n\n".join(_in_order(found)) + "\n")


@dataclass(frozen=True)
class _Part:
    """The statements that define a name.

    Attributes:
        early: the names that the statements use when they run.
        late: the names that are only used when a function is called.
    """

    text: str
    early: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()


def _require_newest(name: str, definition: Any, session: Mapping[str, Any]) -> None:
    present = session.get(name)
    for inner in definition.__qualname__.split(".")[1:]:
        present = getattr(present, inner, None)
    if definition is not present and definition is not _function_in(present):
        raise TemperError(
            f"a later cell defines {name} again; run the cells that use it again, so that steps "
            "and their arguments have its new definition"
        )


def _collect(name: str, user: str, session: Mapping[str, Any], found: dict[str, _Part]) -> None:
    """Add the part of a name and the parts of all names that it uses."""
    if name in found or (user and _is_of_python(name, session)):
        return
    part = found[name] = _part(name, user, session)
    for needed in sorted(part.early | part.late):
        _collect(needed, name, session, found)


def _is_of_python(name: str, session: Mapping[str, Any]) -> bool:
    """Whether a name is built in. An undefined name counts too: Python reports it better."""
    value = session.get(name, _ABSENT)
    if callable(value):
        value = inspect.unwrap(value)  # IPython wraps `open`
    return value is _ABSENT or (hasattr(builtins, name) and value is getattr(builtins, name))


def _part(name: str, user: str, session: Mapping[str, Any]) -> _Part:
    value = session.get(name)
    if imports := list(dict.fromkeys(_imports(name, value, session))):
        return _Part("\n".join(imports))
    function = _function_in(value)
    if function is not None and (function.__module__, function.__qualname__) == ("__main__", name):
        return _with_names(_source_of_function(function, session))
    if isinstance(value, type) and (value.__module__, value.__qualname__) == ("__main__", name):
        return _with_names(_source_of_class(value, session))
    if _is_plain(value):
        return _Part(f"{name} = {_literal(value)}")
    where = f"{name}, which {user} uses," if user else name
    raise TemperError(
        f"{where} is a value of type {type(value).__qualname__} that only this notebook has; "
        "define it inside the step, import it from a file, or pass it to the step as an argument"
    )


# --- where a name comes from ---------------------------------------------------------------------


def _imports(name: str, value: Any, session: Mapping[str, Any]) -> Iterator[str]:
    """The imports that yield this value: those in cells, or else one made from the value's own
    module and name."""
    found = False
    for cell in _texts(session):
        for node in _statements(cell):
            for text in _giving(node, name, value):
                found = True
                yield text
    if found or getattr(value, "__module__", None) == "__main__":
        return
    if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
        yield f"import {value.__name__} as {name}"
    elif isinstance(value, FunctionType | type):
        module, own = str(value.__module__), value.__name__
        if value.__qualname__ == own and _member(module, own) is value and module != "builtins":
            yield f"from {module} import {own} as {name}"


def _giving(node: ast.stmt, name: str, value: Any) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            if alias.asname == name and sys.modules.get(alias.name, _ABSENT) is value:
                yield f"import {alias.name} as {name}"
            elif alias.asname is None and top == name and sys.modules.get(top, _ABSENT) is value:
                yield f"import {alias.name}"
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for alias in node.names:
            own = name if alias.name == "*" else alias.name
            is_it = alias.name == "*" or (alias.asname or alias.name) == name
            if is_it and _member(node.module, own) is value:
                yield f"from {node.module} import {own} as {name}"


def _member(module: str, name: str) -> Any:
    found = getattr(sys.modules.get(module), name, _ABSENT)
    return sys.modules.get(f"{module}.{name}", _ABSENT) if found is _ABSENT else found


def _function_in(value: Any) -> FunctionType | None:
    """The plain function inside a step function or inside the result of another decorator."""
    if type(value).__name__ == "StepFunction":
        value = value.function
    inner = inspect.unwrap(value) if callable(value) else value
    return inner if isinstance(inner, FunctionType) else None


def _is_plain(value: Any) -> bool:
    """Whether a value's source text gives the same value again."""
    if type(value) in _PLAIN:
        return type(value) is not float or value - value == 0  # not for infinities and NaN
    if type(value) not in _HOLDERS:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(map(_is_plain, items))


def _literal(value: Any) -> str:
    """A plain value as Python source. Sets are sorted, because their order differs between
    processes."""
    if isinstance(value, set):
        return f"{{{', '.join(sorted(map(_literal, value)))}}}" if value else "set()"
    if isinstance(value, dict):
        items = (f"{_literal(key)}: {_literal(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, tuple):
        return f"({''.join(f'{_literal(item)}, ' for item in value)})"
    return repr(value)


# --- what cells say ------------------------------------------------------------------------------


def _source_of_function(function: FunctionType, session: Mapping[str, Any]) -> str:
    code = function.__code__
    kept = "".join(linecache.getlines(code.co_filename))
    below = [] if kept else [t for t in _texts(session) if code in _functions_of(t)]
    for text in (kept, *reversed(below)):
        for node in _statements(text):
            is_it = isinstance(node, ast.FunctionDef) and node.name == function.__name__
            if is_it and _first_line(node) == code.co_firstlineno:
                return _lines_of(text, node)
    raise _no_source(function.__name__)


def texts() -> list[str]:
    """The texts of all cells of the notebook."""
    return _texts(vars(sys.modules["__main__"]))


def _texts(session: Mapping[str, Any]) -> list[str]:
    """The source of all cells; of a cell below a magic, also that of what is below it."""
    return [text for cell in session["In"] for text in (cell, *_below_magic(cell))]


def _below_magic(cell: str) -> Iterator[str]:
    """What IPython has made of such a cell is one call, whose last argument is the text."""
    match _statements(cell):
        case [ast.Expr(ast.Call(ast.Attribute(attr="run_cell_magic"), [*_, ast.Constant(text)]))]:
            if isinstance(text, str):
                yield text
                if (shell := sys.modules["IPython"].get_ipython()) is not None:
                    yield shell.transform_cell(text)  # without empty lines at its beginning


def _functions_of(text: str) -> list[CodeType]:
    try:
        whole = compile(text, MODULE, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return []
    return [part for part in whole.co_consts if isinstance(part, CodeType)]


def _source_of_class(cls: type, session: Mapping[str, Any]) -> str:
    methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    files = {method.__code__.co_filename for method in methods}
    texts = ["".join(linecache.getlines(file)) for file in sorted(files)]
    for text in (*filter(None, texts), *reversed(_texts(session))):
        for node in reversed(_statements(text)):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                if not _is_of(node, cls):
                    raise _no_source(cls.__name__)
                return _lines_of(text, node)
    raise _no_source(cls.__name__)


def _is_of(node: ast.ClassDef, cls: type) -> bool:
    """Whether this statement may have made a class: both have the same annotations and the same
    literal values."""
    values = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
    annotated = [part.target for part in values if isinstance(part, ast.AnnAssign)]
    names = [target.id for target in annotated if isinstance(target, ast.Name)]
    return list(dict.fromkeys(names)) == list(inspect.get_annotations(cls)) and all(
        _plain_value(part.value) in (vars(cls).get(target.id), _ABSENT)
        for part in values
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
        if isinstance(target, ast.Name) and _is_plain(vars(cls).get(target.id))
    )


def _plain_value(written: ast.expr | None) -> Any:
    try:
        return _ABSENT if written is None else ast.literal_eval(written)
    except (ValueError, TypeError):
        return _ABSENT


def _no_source(name: str) -> TemperError:
    return TemperError(
        f"no cell of this notebook has the present source of {name}; define it at the top level of "
        "a cell, and run that cell again"
    )


@lru_cache(maxsize=1024)
def _statements(cell: str) -> list[ast.stmt]:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree: Any = compile(cell, MODULE, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return []  # such a cell did not run either
    return tree.body


def _first_line(node: Any) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _lines_of(text: str, node: ast.stmt) -> str:
    return "\n".join(text.splitlines()[_first_line(node) - 1 : node.end_lineno])


def _with_names(text: str) -> _Part:
    """A part with the global names that its statements use: early those of module level and class
    bodies, late those of functions."""
    early: set[str] = set()
    late: set[str] = set()
    waiting = [symtable.symtable(text, MODULE, "exec")]
    while waiting:
        scope = waiting.pop()
        is_early = scope.get_type() in ("module", "class") or scope.get_name() in _COMPREHENSIONS
        names = early if is_early else late
        for symbol in scope.get_symbols():
            if symbol.is_referenced() and (scope.get_type() == "module" or symbol.is_global()):
                names.add(symbol.get_name())
        waiting += scope.get_children()
    return _Part(text, frozenset(early), frozenset(late))


# --- the file ------------------------------------------------------------------------------------


def _in_order(parts: Mapping[str, _Part]) -> Iterator[str]:
    """The texts, each after the texts that it needs when it runs. A function that is used at that
    time may also be called, as a decorator is, so the names that it uses come first too."""
    done: set[tuple[str, bool]] = set()
    shown: set[str] = set()

    def ordered(name: str, is_called: bool) -> Iterator[str]:
        if name not in parts or (name, is_called) in done:
            return
        done.add((name, is_called))
        part = parts[name]
        for needed in sorted(part.early | part.late if is_called else part.early):
            yield from ordered(needed, True)
        if name not in shown:
            shown.add(name)
            yield part.text

    for name in sorted(parts):
        yield from ordered(name, False)


def _saved(text: str) -> Path:
    """Write the text to its file, and put the file's folder first in ``sys.path``."""
    top = Path.cwd() / FOLDER
    folder = top / blake3.blake3(text.encode()).hexdigest()[:16]
    file = folder / f"{MODULE}.py"
    try:
        if not (file.is_file() and file.read_text("utf-8") == text):
            folder.mkdir(parents=True, exist_ok=True)
            (top.parent / ".gitignore").write_text("*\n")
            descriptor, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
                opened.write(text)
            os.replace(temporary, file)
    except OSError as error:
        raise TemperError(
            f"cannot write {file}, from which workers import the definitions of your cells "
            f"({error}); change to a folder in which you can write"
        ) from error
    sys.path[:] = [str(folder), *(entry for entry in sys.path if not _is_ours(entry))]
    return file


def project_file(function: Any) -> str:
    """The file that decides to which project a function belongs; for a function in a cell, a file
    name in the working folder."""
    file = function.__code__.co_filename
    if function.__module__ == "__main__" and are_known():
        file = os.path.join(next(filter(_is_ours, sys.path), ""), f"{MODULE}.py")
    folder = Path(file).parent
    return str(folder.parents[2] / f"{MODULE}.py") if _is_ours(str(folder)) else file


def _is_ours(folder: str) -> bool:
    return Path(folder).parent.as_posix().endswith(FOLDER)
