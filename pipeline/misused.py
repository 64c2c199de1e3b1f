"""Explains errors of Python for wrong uses of Temper's own classes and functions.

Python refuses common mistakes itself, with a text that does not say what to write: a call with
arguments that the class or function does not take; a dataclass over one of Temper's classes whose
options or defaults do not fit; a step in the place of what it will make, or an artifact in that of
its path.
"""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from pipeline.text import hint

SHIPPED = ("pipeline", "steps")
"""The packages of Temper."""


def explained(error: BaseException, frames: Sequence[FrameType]) -> str:
    """What is wrong and what to write; empty for any other error.

    Args:
        frames: those that the error has passed, outermost first.
    """
    if not frames or not isinstance(error, TypeError | ValueError):
        return ""
    said = str(error)
    if dataclass := _of_dataclass(said, frames):
        return dataclass
    if not _is_users([frame for frame in frames if not _is_of(frame, "replace")]):
        return ""  # a wrong call in Temper itself is a bug
    if re.search(r"'Step'|not Step$", said):
        return _STEP
    if (path := _PATH.search(said)) and _called(path["name"], frames) is not None:
        return f"{path['name'].removeprefix('Worker')} is no path, and its .path is one"
    return _of_call(said, frames)


def _of_dataclass(said: str, frames: Sequence[FrameType]) -> str:
    made = next((f.f_locals.get("cls") for f in frames if _is_of(f, "_process_class")), None)
    advice = next((text for mark, text in _ADVICE.items() if mark in said), "")
    if not isinstance(made, type) or not advice:
        return ""
    named = re.search(r"(?:argument|for field) '?(\w+)", said)
    for base in filter(_is_ours, made.__mro__[1:]):
        given = {"field": named[1] if named else "", "base": base.__name__}
        return f"the class {made.__name__}: {advice.format(**given)}"
    return ""


_ADVICE = {
    "inherit non-frozen": "write @dataclass(frozen=True) above it, because {base} is frozen",
    "inherit frozen": "write @dataclass above it, without frozen, because {base} is not frozen",
    "non-default argument": "give {field} a default, because fields of {base} have one",
    "mutable default": "write {field} with field(default_factory=lambda: DEFAULT), because its "
    "instances would share the default",
}
"""What to write, by a part of the error's text."""


_STEP = (
    "a step stands for what it will make, and has no content; run({'NAME': STEP})['NAME'] is what "
    "it made, with .path and .load()"
)


_PATH = re.compile(r"(?:PathLike object, not |for /: ')(?P<name>\w+)")


def _of_call(said: str, frames: Sequence[FrameType]) -> str:
    if not (found := _WRONG_CALL.match(said)):
        return ""
    name, argument = found["name"].removesuffix(".__init__"), found["argument"] or ""
    if (called := _called(name, frames)) is None:
        return ""
    takes = [name for name in inspect.signature(called).parameters if name != "self"]
    if not argument:
        return f"{name} needs {found['missing']}; it takes {', '.join(takes)}"
    for below in getattr(called, "__subclasses__", list)():
        if argument in vars(below).get("__annotations__", {}):
            return (
                f"{below.__name__}.{argument} is no setting: put @dataclass above the class, as "
                f"it stands above {name}"
            )
    return f"{name} takes no {argument}; {hint(argument, takes)}"


_WRONG_CALL = re.compile(
    r"(?P<name>[\w.]+)\(\) (got an unexpected keyword argument '(?P<argument>\w+)'"
    r"|missing \d+ required [\w-]+ arguments?: (?P<missing>.+))"
)


def _called(name: str, frames: Sequence[FrameType]) -> Callable[..., Any] | None:
    """The class or function of Temper, or over a class of Temper, that has this name."""
    ours = [vars(module) for key, module in [*sys.modules.items()] if _package(key) in SHIPPED]
    for names in (*(frame.f_globals for frame in reversed(frames)), *ours):
        found = names.get(name)
        if callable(found) and any(map(_is_ours, getattr(found, "__mro__", [found]))):
            return found
    return None


def _is_ours(definition: Any) -> bool:
    return _package(getattr(definition, "__module__", "")) in SHIPPED


def _is_users(callers: Sequence[FrameType]) -> bool:
    return bool(callers) and _package(callers[-1].f_globals.get("__name__")) not in SHIPPED


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _is_of(frame: FrameType, function: str) -> bool:
    return frame.f_globals.get("__name__") == "dataclasses" and frame.f_code.co_name == function
