"""Compiles project code with marks, and keeps the code among the caches of the user.

A worker compiles each project module that it imports, and for the steps that ship with Temper this
takes as long as importing a library. The code depends on the content of the file and on this
interpreter, and on three things that differ between workers: the path of the file, the names of the
marks and their numbers. A worker puts its own in the place of those in the code that is kept.
"""

import ast
import base64
import json
import marshal
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import blake3

from pipeline.base import user_cache
from pipeline.observed import function_marks
from pipeline.trace import source_parts

_RAN = "__temper_ran__"


@dataclass(frozen=True)
class MarkedCode:
    """The code of a module.

    Attributes:
        units: the unit of each mark; ``None`` without marks.
    """

    units: list[str] | None
    _code: CodeType
    _number: bytes

    def placed(self, path: str, ran: str, first: int) -> CodeType:
        """The code of a file whose marks call ``ran``, with numbers from ``first`` on."""

        def value(constant: Any) -> Any:
            if isinstance(constant, CodeType):
                return placed(constant)
            if isinstance(constant, bytes) and constant.startswith(self._number):
                return first + int(constant.removeprefix(self._number))
            return constant

        def placed(code: CodeType) -> CodeType:
            constants = tuple(map(value, code.co_consts))
            called = tuple(ran if name == _RAN else name for name in code.co_names)
            return code.replace(co_filename=path, co_consts=constants, co_names=called)

        return placed(self._code)


def compiled(path: str, content: bytes, loader: SourceFileLoader) -> MarkedCode:
    """Compile a module, or find its code in the cache. Raise what a compiler raises."""
    is_plain = type(loader) is SourceFileLoader  # another one may compile in another way
    about = json.dumps([_COMPILERS, sys.version, sys.flags.optimize]).encode()
    place = user_cache.place("compiled", about + content)
    if is_plain:
        with suppress(OSError, ValueError, TypeError, EOFError):
            units, code = user_cache.load(place)
            return MarkedCode(units, marshal.loads(base64.b64decode(code)), _number(content))
    made = _compiled(path, content, loader)
    if is_plain:
        code = base64.b64encode(marshal.dumps(made._code)).decode()
        user_cache.save(place, [made.units, code])
    return made


def _compiled(path: str, content: bytes, loader: SourceFileLoader) -> MarkedCode:
    tree = ast.parse(content, path)
    functions = [*source_parts.functions(tree.body, leaves_out=function_marks.is_detail)]
    units, number = None, _number(content)
    if not function_marks.is_for_a_compiler(tree, content):
        units = [unit for unit, _ in functions]
        function_marks.mark(functions, _RAN, [number + b"%d" % n for n in range(len(units))])
    code = loader.source_to_code(tree, path)  # type: ignore[arg-type]
    return MarkedCode(units, code, number)


def _number(content: bytes) -> bytes:
    """What stands for numbers of marks in a module's code; no constant of its own begins so."""
    return blake3.blake3(content).digest()


_COMPILERS = user_cache.version_of(
    *("observed/function_marks.py", "observed/marked_code.py", "trace/source_parts.py"),
    folder=Path(__file__).parents[1],
)
