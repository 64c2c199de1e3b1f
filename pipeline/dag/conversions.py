"""Which fields a dataclass converts as it is constructed, so that they no longer hold what their
annotations tell: those are of what the constructor is given.

What sets a field is read off the compiled code: an attribute that is stored, or a field that is
named where `setattr` is called or in the call of the function that does. Where nothing names one,
any field may be meant.
"""

import dataclasses
import dis
import functools
import types
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from pipeline.base.installed import in_library
from pipeline.dag.value_types import GENERATED, is_stored

_RUN_BY_CONSTRUCTION = ("__new__", "__init__", "__post_init__", "__setattr__")
_SETTERS = frozenset({"setattr", "__setattr__", "__dict__", "vars"})
_CONTAINERS, _SOME = (tuple, list, set, frozenset, dict), 1000
_ALL_FIELDS = frozenset({"fields", "__dataclass_fields__", "__annotations__"})


@functools.cache
def converted_fields(cls: type) -> frozenset[str]:
    """Fields that the constructor may set to something other than it was given, as in
    ``self.sizes = self.sizes.split(",")``; their annotations tell what it is given."""
    names = frozenset(field.name for field in dataclasses.fields(cls))
    found = {name for name in names if not is_stored(cls, name)}
    begun = (function for name in _RUN_BY_CONSTRUCTION for function in _methods(cls, name))
    waiting = [(f.__code__, f.__globals__, names) for f in begun]
    seen: set[Any] = set()
    while waiting:  # code, each with the fields that its caller may mean
        code, scope, meant = waiting.pop()
        if (code, meant) in seen or code.co_filename == GENERATED or in_library(code.co_filename):
            continue
        seen.add((code, meant))
        instructions = [*dis.get_instructions(code)]
        found |= {i.argval for i in instructions if i.opname == "STORE_ATTR"}
        held = [scope.get(name) for name in code.co_names]
        modules = [vars(one) for one in held if isinstance(one, types.ModuleType)]
        named = names.intersection(_texts((*code.co_consts, *held)))
        if not _ALL_FIELDS.isdisjoint(code.co_names):
            named = names
        if not _SETTERS.isdisjoint(code.co_names):
            found |= named or meant
        inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
        waiting += [(one, scope, named or meant) for one in inner]
        for name in code.co_names:
            passed = names.intersection(_passed(instructions, name)) or named or meant
            known = [variables.get(name) for variables in (scope, *modules)]
            called = [*chain.from_iterable(map(_functions, known)), *_methods(cls, name)]
            waiting += [(f.__code__, f.__globals__, passed) for f in called]
    return names & found


def _texts(values: Iterable[Any], depth: int = 2) -> Iterator[str]:
    """Texts, and those in containers of no more than some; of a mapping, its keys."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif depth and isinstance(value, _CONTAINERS) and len(value) < _SOME:
            yield from _texts(value, depth - 1)


def _passed(instructions: Sequence[dis.Instruction], name: str) -> Iterator[str]:
    """Texts that are written among the arguments of calls of a function of this name."""
    is_called = False
    for instruction in instructions:
        if instruction.argval == name and instruction.opname != "LOAD_CONST":
            is_called = True
        elif instruction.opname.startswith("CALL"):
            is_called = False
        elif is_called and instruction.opname == "LOAD_CONST":
            yield from _texts([instruction.argval])


def _methods(cls: type, name: str) -> Iterator[types.FunctionType]:
    """The functions of a class and its bases that have this name."""
    return chain.from_iterable(_functions(vars(base).get(name)) for base in cls.__mro__)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The function that a value is or, as a property or a decorated function, has."""
    while value is not None:
        if isinstance(value, types.FunctionType):
            yield value
        inner = (getattr(value, name, None) for name in ("__wrapped__", "__func__", "fget"))
        is_one = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
        value = next(filter(None, inner), None) if is_one else None
