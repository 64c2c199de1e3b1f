"""Serves project code as it was when the step began, whatever is edited meanwhile.

In a worker, and in every process that joins its observation, the import system compiles project
code from bytes that were read when the step began. A module is compiled when the step imports it,
so the order of imports does not change. The compiled code carries marks
(:mod:`pipeline.observed.function_marks`), and later readers of source (``inspect``, tracebacks) get
the same bytes.

Compiled files in ``__pycache__`` are not used: Python considers one as current if size and time in
whole seconds match, which may be so even after an edit. :mod:`pipeline.observed.marked_code` caches
code by the content of the file.
"""

import importlib.util
import io
import linecache
import os
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from pipeline.base.installed import in_library
from pipeline.observed.hook import HOOK, unobserved
from pipeline.observed.marked_code import compiled
from pipeline.observed.observation import MOST_MARKS, Observation
from pipeline.trace import sources
from pipeline.trace.modules import Modules, is_core
from pipeline.trace.reach import reached, whole

_PLAIN = SourceFileLoader.get_code


class Snapshot:
    """The bytes of project files in this process."""

    def __init__(self, observation: Observation):
        self._observation, self._home = observation, observation.rules.package
        self._known: dict[str, bytes] = observation.shared_sources()
        self._loaded: dict[str, bytes] = {}

    def install(self) -> None:
        """Make this process import project code from here."""
        kept = _PLAIN

        def get_code(loader: SourceFileLoader, fullname: str) -> Any:
            path = loader.get_filename(fullname)
            if is_core(fullname):  # the core is never part of a project
                return kept(loader, fullname)
            with unobserved():  # it may read the file
                is_installed = in_library(path)
            if is_installed and fullname.partition(".")[0] != self._home:
                return kept(loader, fullname)
            if not _is_imported(sys._getframe(1)):
                HOOK.tell(HOOK.note_lookup, fullname)
            return self._compile(fullname, os.path.abspath(path), loader)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]

    @staticmethod
    def uninstall() -> None:
        """Make this process import as before."""
        SourceFileLoader.get_code = _PLAIN  # type: ignore[method-assign]

    def add_loaded(self, home: str) -> None:
        """Record the modules that this process had imported before it was observed, of those that
        the module of the step may import. Which of their functions ran is not known."""
        with unobserved():
            places = Modules(home)
            for name in reached([home], places, whole):
                if (path := places.file(name)) is not None and name in sys.modules:
                    content = self._read(path)
                    sources.keep(content)
                    self._observation.add_whole_module(name, path, content)

    def take(self) -> None:
        """Read the packages of the modules that are loaded now, for this process and those that it
        starts: what is edited from now on does not count."""
        with unobserved():
            for folder, pattern in {_beside(path) for path in self._loaded}:
                for file in sorted(folder.glob(pattern)):
                    with suppress(OSError):
                        self._known.setdefault(str(file), file.read_bytes())
        self._observation.share_sources(self._known)

    def _compile(self, module: str, path: str, loader: SourceFileLoader) -> CodeType:
        """The compiled code of a module, with marks."""
        with unobserved():
            content = self._read(path)
            _show(path, content)
            sources.keep(content)
            try:
                return self._marked(module, path, content, loader)
            except Exception:  # invalid Python, a very deep tree, a loader for text, a full disk
                self._observation.add_module(module, path, content, None)
                return loader.source_to_code(content, path)

    def _read(self, path: str) -> bytes:
        if path not in self._loaded:
            if path not in self._known:
                with open(path, "rb") as file:
                    self._known[path] = file.read()
            self._loaded[path] = self._known[path]
        return self._loaded[path]

    def _marked(self, module: str, path: str, content: bytes, loader: SourceFileLoader) -> CodeType:
        code = compiled(path, content, loader)
        first = self._observation.add_module(module, path, content, code.units)
        if code.units and first + len(code.units) > MOST_MARKS:
            raise ValueError("there are more functions than marks")
        return code.placed(path, self._observation.mark, first)


def _is_imported(frame: FrameType | None) -> bool:
    """Whether the import system executes a module by itself: a spec and ``LazyLoader`` give a
    module to code that names it nowhere."""
    while frame is not None and frame.f_code.co_name == "exec_module":  # loaders wrap loaders
        frame = frame.f_back
    names = [f.f_code.co_name for f in (frame, frame and frame.f_back) if f is not None]
    return names == ["_load_unlocked", "_find_and_load_unlocked"]


def _beside(path: str) -> tuple[Path, str]:
    """The folder of the outermost package of a file, and the pattern of its sources."""
    folder = Path(path).parent
    pattern = "*.py"
    while (folder / "__init__.py").exists():
        folder, pattern = folder.parent, f"{folder.name}/**/*.py"
    return folder, pattern


def _show(path: str, content: bytes) -> None:
    """Give ``inspect`` and tracebacks these lines, which stay the same after an edit."""
    try:
        lines = io.StringIO(importlib.util.decode_source(content)).readlines()
    except (SyntaxError, UnicodeDecodeError):
        return
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    linecache.cache[path] = (len(content), None, lines, path)
