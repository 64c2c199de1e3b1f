"""Serves project code as it was when it was hashed, whatever is edited meanwhile.

In a worker, and in every process that joins its observation, the import system compiles project
code from the bytes from which the closure of the step was computed. A module is compiled when the
step imports it, so the order of imports does not change. A file that is not in the closure is read
once. The compiled code carries marks (:mod:`pipeline.observed.marks`), and later readers of source
(``inspect``, tracebacks) get the same bytes.

Compiled files in ``__pycache__`` are not used: Python considers one as current if size and time in
whole seconds match, which may be so even after an edit. :mod:`pipeline.observed.marked_code` caches
code by the content of the file.
"""

import importlib.util
import io
import linecache
import os
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

from pipeline.code.modules import is_core
from pipeline.errors import TemperError
from pipeline.installed import in_library
from pipeline.observed.hook import unobserved
from pipeline.observed.marked_code import compiled
from pipeline.observed.observation import MOST_MARKS, Observation

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
            return self._compile(fullname, os.path.abspath(path), loader)

        SourceFileLoader.get_code = get_code  # type: ignore[method-assign]

    @staticmethod
    def uninstall() -> None:
        """Make this process import as before."""
        SourceFileLoader.get_code = _PLAIN  # type: ignore[method-assign]

    def adopt(self, sources: Mapping[str, bytes]) -> None:
        """Use the bytes from which a closure was computed. Raise `TemperError` if a file has been
        loaded with other bytes."""
        sources = {os.path.abspath(path): content for path, content in sources.items()}
        for path, content in self._loaded.items():
            if sources.get(path, content) != content:
                raise TemperError(
                    f"code was edited while the experiment ran ({path}); run it again"
                )
        self._known = dict(sources)
        self._observation.share_sources(self._known)

    def _compile(self, module: str, path: str, loader: SourceFileLoader) -> CodeType:
        """The compiled code of a module, with marks."""
        with unobserved():
            content = self._read(path)
            _show(path, content)
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
        return code.placed(path, self._observation.mark, self._observation.look, first)


def _show(path: str, content: bytes) -> None:
    """Give ``inspect`` and tracebacks these lines, which stay the same after an edit."""
    try:
        lines = io.StringIO(importlib.util.decode_source(content)).readlines()
    except (SyntaxError, UnicodeDecodeError):
        return
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    linecache.cache[path] = (len(content), None, lines, path)
