"""Notes what code asks of the interpreter without any audit event.

Five things: which modules it looks up by a name that is known only at run time, which source lines
it reads, since :mod:`pipeline.observed.snapshot` puts them into ``linecache``, whether files exist,
where symbolic links point, and what the working folder is. To see them, this module replaces
functions of the standard library by functions that do the same and tell the hook. A replaced
function must not fail because it is observed.
"""

import importlib
import importlib.util
import inspect
import linecache
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.base.references import LISTENERS

if TYPE_CHECKING:
    from pipeline.observed.hook import Hook

_CORE = f"{os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}/"
_NO_LOOKUPS = (_CORE, "<frozen importlib", "/torch/_dynamo/", "/torch/_inductor/")
"""Code that imports modules by name and uses nothing of them that the step does not use: this
package, the import system, which imports the parents of a package, and compilers of functions."""


def install(hook: "Hook") -> None:
    """Replace the functions, in this process and for good."""
    _tap_imports(hook)
    _tap_searches(hook)
    _tap_lines(hook)
    _tap_source(hook)
    _tap_files(hook)
    _tap_working_folder(hook)
    LISTENERS.append(lambda module, name: hook.tell(hook.note_lookup, module, name))


def _caller(depth: int = 3) -> str:
    """The file of the caller's caller; empty if no Python code is there."""
    try:
        return sys._getframe(depth).f_code.co_filename
    except ValueError:
        return ""


def _tap_imports(hook: "Hook") -> None:
    """``import_module`` calls this function, wherever and whenever it was imported."""
    bootstrap: Any = importlib._bootstrap  # type: ignore[attr-defined]
    plain = bootstrap._gcd_import

    def _gcd_import(name: str, package: Any = None, level: int = 0) -> Any:
        caller = _caller()
        try:
            found = plain(name, package, level)
        except ModuleNotFoundError as error:
            missing = str(error.name)
            hook.tell(lambda: _note_search(hook, caller, missing))
            raise
        if not any(place in caller for place in _NO_LOOKUPS):
            full = bootstrap._resolve_name(name, package, level) if level else name
            hook.tell(lambda: hook.note_lookup(full))
            if not hook.is_of_project(getattr(found, "__file__", None) or "<built in>"):
                hook.tell(lambda: _note_search(hook, caller, full))
        return found

    bootstrap._gcd_import = _gcd_import


def _tap_searches(hook: "Hook") -> None:
    """``importlib.util.find_spec`` calls this function."""
    util: Any = importlib.util
    plain = util._find_spec

    def _find_spec(name: str, path: Any, *target: Any) -> Any:
        found, caller = plain(name, path, *target), _caller()
        if found is None or (found.has_location and hook.is_of_project(str(found.origin))):
            hook.tell(lambda: _note_search(hook, caller, name))
        return found

    util._find_spec = _find_spec


def _note_search(hook: "Hook", caller: str, module: str) -> None:
    """Libraries look for many modules of other libraries; only code of the project counts."""
    if caller and hook.is_of_project(caller):
        hook.note_search(module, folders_of(module))


def folders_of(module: str) -> Iterable[str]:
    """The folders in which Python looks for a module."""
    package = module.rpartition(".")[0]
    return sys.modules[package].__path__ if package else sys.path


def _tap_lines(hook: "Hook") -> None:
    """Tracebacks read lines too, but only code of the project puts them into a result."""
    plain = linecache.getlines

    def getlines(filename: str, module_globals: Any = None) -> list[str]:
        callers = _caller(2), _caller(3)

        def note() -> None:
            if any(map(hook.is_of_project, callers)):
                hook.note_source(os.path.abspath(filename))

        hook.tell(note)
        return plain(filename, module_globals)

    linecache.getlines = getlines


def _tap_source(hook: "Hook") -> None:
    """``inspect.getsource`` and similar functions open no file."""
    plain = inspect.findsource

    def findsource(object: Any) -> Any:
        found = plain(object)

        def note() -> None:
            if (file := inspect.getsourcefile(object)) is not None:
                hook.note_source(os.path.abspath(file))

        if not inspect.isframe(object) and not inspect.istraceback(object):
            hook.tell(note)
        return found

    inspect.findsource = findsource


def _resolves() -> bool:
    """Whether ``realpath`` or ``Path.resolve`` called the caller; they ask only for links."""
    frame = sys._getframe(1).f_back
    if frame is not None and frame.f_code.co_name == "stat":
        frame = frame.f_back  # `Path.resolve` calls `Path.stat`
    code = frame.f_code if frame is not None else None
    if code is None or code.co_name not in ("resolve", "realpath", "_joinrealpath"):
        return False
    return "pathlib" in code.co_filename or "posixpath" in code.co_filename


def _tap_files(hook: "Hook") -> None:
    """``exists``, ``is_file`` and ``getsize`` call ``stat``; ``lexists`` and ``glob`` ``lstat``.
    ``realpath`` calls ``lstat`` for every parent folder, and ``readlink`` for every link."""
    plain, plain_lstat, plain_access, plain_readlink = os.stat, os.lstat, os.access, os.readlink

    def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        if dir_fd is None and not _resolves():
            hook.tell(hook.note_look, path, follow_symlinks)
        return plain(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    def lstat(path: Any, *, dir_fd: int | None = None) -> Any:
        if dir_fd is None and not _resolves():
            hook.tell(hook.note_look, path, False)
        return plain_lstat(path, dir_fd=dir_fd)

    def access(path: Any, mode: int, *, dir_fd: int | None = None, **how: Any) -> bool:
        if dir_fd is None:
            hook.tell(hook.note_look, path)
        return plain_access(path, mode, dir_fd=dir_fd, **how)

    def readlink(path: Any, *, dir_fd: int | None = None) -> Any:
        if dir_fd is None:
            hook.tell(hook.note_link, path)
        return plain_readlink(path, dir_fd=dir_fd)

    for function in (stat, lstat, access, readlink):
        replaced = getattr(os, function.__name__)
        for functions in (
            *(os.supports_fd, os.supports_dir_fd),
            *(os.supports_follow_symlinks, os.supports_effective_ids),
        ):
            if replaced in functions:
                functions.add(function)
        setattr(os, function.__name__, function)


def _tap_working_folder(hook: "Hook") -> None:
    """``abspath``, ``realpath``, ``Path.cwd`` and ``Path.absolute`` call ``getcwd``."""
    plain = os.getcwd

    def getcwd() -> str:
        frame = sys._getframe(1)
        hook.tell(lambda: _note_base(hook, frame))
        return plain()

    os.getcwd = getcwd


def _note_base(hook: "Hook", frame: Any) -> None:
    """Note the path that code of the project makes absolute; ``.`` for the working folder."""
    base = "."
    while frame is not None and frame.f_code.co_filename in _PATHS:
        base = frame.f_locals.get(_MADE_ABSOLUTE.get(frame.f_code.co_name, ""), base)
        frame = frame.f_back
    if frame is not None and hook.is_of_project(frame.f_code.co_filename):
        hook.note_base(os.fsdecode(base))


_PATHS = frozenset(
    function.__code__.co_filename  # of `pathlib`, these are in two files in Python 3.13
    for function in (os.path.abspath, pathlib.Path.cwd, pathlib.Path.absolute)
)
_MADE_ABSOLUTE = {"abspath": "path", "absolute": "self"}
"""Functions of the standard library, each with its variable for the path."""
