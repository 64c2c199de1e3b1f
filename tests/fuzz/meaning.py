"""What a source says to the interpreter: its bytecode, with the names of locals as numbers.

Two sources of different meaning may do different things, so they may not have one key. Two of the
same meaning do the same.
"""

import ast
import dis
import types
import warnings
from typing import Any

Meaning = tuple[Any, ...]


def compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(source, "", "exec")
        except (SyntaxError, ValueError, RecursionError):
            return False
    return True


def meaning(source: str) -> Meaning:
    """Two sources that differ in it may do different things."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        code = compile(source, "", "exec")
    return _code(code, {})


def meanings(source: str) -> tuple[Meaning, ...]:
    """Of each statement of a module."""
    return tuple(meaning(ast.unparse(node)) for node in ast.parse(source).body)


def _code(code: types.CodeType, outer: dict[str, int]) -> Meaning:
    names = {name: outer[name] for name in code.co_freevars if name in outer}
    own = dict.fromkeys((*code.co_varnames, *code.co_cellvars), -1)
    fresh = iter(range(10**9 * len(outer), 10**12))

    def number(name: str) -> Any:
        if name not in own:
            return names.get(name, name)
        if own[name] < 0:
            own[name] = next(fresh)
        return own[name]

    count = code.co_argcount + code.co_kwonlyargcount
    parameters = code.co_varnames[:count]
    for name in parameters:
        number(name)
    listed = [i for i in dis.get_instructions(code) if i.opname not in ("NOP", "CACHE")]
    places = {}
    position = 0
    for instruction in dis.get_instructions(code):
        places[instruction.offset] = position
        position += instruction.opname not in ("NOP", "CACHE")
    found: list[Any] = []
    closures: list[Any] = []
    for instruction in listed:
        if instruction.opname == "LOAD_CLOSURE":
            closures.append(number(str(instruction.argval)))
            continue
        if closures:
            found.append(("closures", tuple(sorted(map(str, closures)))))
            closures = []
        found.append((instruction.opname, _argument(instruction, number, places, {**names, **own})))
    handlers = tuple(
        (places.get(e.start), places.get(e.end), places.get(e.target), e.depth, e.lasti)
        for e in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    )
    return (
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        *(parameters, code.co_flags, tuple(found), handlers),
    )


def _argument(instruction: dis.Instruction, number: Any, places: Any, names: Any) -> Any:
    if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
        return places[instruction.argval]
    if instruction.opcode in dis.haslocal or instruction.opcode in dis.hasfree:
        return number(str(instruction.argval))
    if instruction.opcode in dis.hasconst:
        if instruction.opname == "KW_NAMES":
            return instruction.argval
        return _constant(instruction.argval, {k: number(k) for k in names})
    return str(instruction.argval)


def _constant(value: Any, names: dict[str, int]) -> Any:
    if isinstance(value, types.CodeType):
        return _code(value, names)
    if isinstance(value, tuple | frozenset):
        parts = [_constant(item, names) for item in value]
        return type(value).__name__, tuple(
            parts if isinstance(value, tuple) else sorted(map(str, parts))
        )
    if isinstance(value, str) and "<locals>" in value:
        return "a qualified name"
    return type(value).__name__, ascii(value)
