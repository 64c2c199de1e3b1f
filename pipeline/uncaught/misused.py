"""Explains errors of Python for wrong uses of Temper's own classes and functions.

Python refuses common mistakes itself, with a text that does not say what to write: a name that a
class or module lacks; a call with arguments that the class or function does not take; a dataclass
over one of Temper's classes whose options or defaults do not fit; a step in the place of what it
will make; a file of a package that is started as a script.
"""

import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from pipeline.annotations import annotations_of, misfit
from pipeline.errors import text_of
from pipeline.text import cut, hint

SHIPPED = ("pipeline", "steps")
"""The packages of Temper."""


def explained(error: BaseException, frames: Sequence[FrameType]) -> str:
    """What is wrong and what to write; empty for any other error.

    Args:
        frames: those that the error has passed, outermost first.
    """
    if not frames or not isinstance(error, _KINDS):
        return ""
    said = text_of(error)
    if dataclass := _of_dataclass(said, frames):
        return dataclass
    if isinstance(error, FrozenInstanceError):
        return _of_frozen(frames[-1])
    if setting := _of_setting(error, frames):
        return setting
    callers = [frame for frame in frames if not _is_of(frame, "replace")]
    if not callers or _is_of_temper(callers[-1]):
        return ""  # a wrong call in Temper itself is a bug
    if isinstance(error, ImportError) and said.startswith("attempted relative import with no"):
        return _of_relative(frames[-1].f_globals)
    if isinstance(error, AttributeError | ImportError):
        return _of_name(error)
    if isinstance(error, TypeError) and (value := _of_value(said, frames)):
        return value
    if said == "'module' object is not callable":
        return _of_module(frames[-1])
    return _of_call(said, frames)


_KINDS = (TypeError, ValueError, AttributeError, ImportError)


def undecorated(kind: type, name: str) -> str:
    """The error for a class that annotates a field, and lacks the decorator of its base class."""
    return (
        f"{kind.__name__}.{name} is no setting: put @dataclass above the class, as it stands above "
        "its base class"
    )


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
_INSTEAD = {
    "Step": _STEP,
    "Input": _STEP,
    "Artifact": "{name} is a folder of files, and its path is .path",
}
"""What a value of one of our classes is, where Python can do nothing with it."""
_VALUE = re.compile(r"'(\w+)'|\b(?:not|type) (\w+)\b")


def _of_value(said: str, frames: Sequence[FrameType]) -> str:
    """A value of one of our classes in the place of another."""
    for name in map("".join, _VALUE.findall(said)):
        for base in filter(_is_ours, getattr(_called(name, frames), "__mro__", ())):
            if base.__name__ in _INSTEAD:
                return _INSTEAD[base.__name__].replace("{name}", name)
    return ""


def _of_setting(error: BaseException, frames: Sequence[FrameType]) -> str:
    """A value of another type than its setting, which the check of a config cannot compare. A check
    of the user's own says itself what is wrong."""
    made = next(
        (f.f_locals.get("self") for f in frames if f.f_code.co_name == "__post_init__"), None
    )
    if not is_dataclass(made) or not any(map(_is_ours, type(made).__mro__)):
        return ""
    if not isinstance(error, TypeError) and not _is_of_temper(frames[-1]):
        return ""
    hints = annotations_of(type(made))
    for field in fields(made):
        value, annotation = getattr(made, field.name, None), hints.get(field.name, Any)
        if wrong := misfit(value, annotation, field.default):
            return f"{type(made).__name__}.{field.name} {wrong}"
    return ""


def _of_frozen(frame: FrameType) -> str:
    kind, name = type(frame.f_locals.get("self")), frame.f_locals.get("name")
    if not any(map(_is_ours, kind.__mro__)):
        return ""
    way = ".named and .on make" if kind.__name__ == "Step" else "dataclasses.replace makes"
    return f"{kind.__name__}.{name} cannot be changed; {way} another"


def _of_name(error: AttributeError | ImportError) -> str:
    """A name that a class or module of Temper lacks."""
    if isinstance(error, AttributeError):
        owner, name = error.obj, error.name
        kind = owner if isinstance(owner, type) else type(owner)
        if not isinstance(owner, ModuleType):
            if not any(map(_is_ours, kind.__mro__)):
                return ""
            known = [name for name in dir(owner) if not name.startswith("_")]
            advice = f"{kind.__name__} has no {name}; {hint(str(name), known)}"
            return _STEP if kind.__name__ == "Input" else advice
        home = owner.__name__
    elif found := _IMPORT.match(str(error)):
        home, name = found["home"], found["name"]
    else:
        home, _, name = str(error.name).rpartition(".")
    if _package(home) not in SHIPPED or home not in sys.modules:
        return ""
    module = sys.modules[home]
    inner = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", ()))]
    known = [n for n in {**vars(module), **dict.fromkeys(inner)} if not n.startswith("_")]
    return f"{home} has no {name}; {hint(str(name), known)}"


_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<home>[\w.]+)'")


def _of_relative(module: Mapping[str, Any]) -> str:
    """What to do about relative imports in a file that was started as a script."""
    if module.get("__name__") != "__main__" or not (file := module.get("__file__")):
        return ""
    path = Path(file).resolve()
    folders = list(itertools.takewhile(lambda f: (f / "__init__.py").is_file(), path.parents))
    folders = folders or [path.parent]
    name = ".".join([*(folder.name for folder in reversed(folders)), path.stem])
    return (
        f"{file} imports from its own package, as in `from .part import …`, so it is started as a "
        f"part of it: python -m {name}, in {folders[-1].parent}"
    )


def _of_module(frame: FrameType) -> str:
    """A module that is called in place of the step function in it."""
    for name in frame.f_code.co_names:
        module = frame.f_globals.get(name)
        if isinstance(module, ModuleType) and _package(home := module.__name__) in SHIPPED:
            step = home.rpartition(".")[2]
            return f"{home} is a module: write from {home} import {step}"
    return ""


def _of_call(said: str, frames: Sequence[FrameType]) -> str:
    if not (found := _WRONG_CALL.match(said)):
        return ""
    name, argument = found["name"].removesuffix(".__init__"), found["argument"] or ""
    if "'out'" in (found["missing"] or ""):
        return f"{name} takes out, as a step function does: put @step above its def"
    if (called := _called(name, frames)) is None:
        return ""
    takes = [name for name in inspect.signature(called).parameters if name != "self"]
    if not argument:
        return f"{name} needs {found['missing']}; it takes {', '.join(takes)}"
    for below in getattr(called, "__subclasses__", list)():
        if argument in vars(below).get("__annotations__", {}):
            return undecorated(below, argument)
    *outer, last = argument.split(".")
    for field in _fields_of(called):
        inner = _default(field)
        if outer in ([], [field.name]) and last in (f.name for f in _fields_of(inner)):
            return (
                f"{name} takes no {argument}, which is a setting of {field.name}: write "
                f"{field.name}={type(inner).__name__}({last}=…)"
            )
    return f"{name} takes no {argument}; {cut(hint(argument, takes), 300)}"


def _fields_of(value: Any) -> Sequence[Field[Any]]:
    return fields(value) if is_dataclass(value) else ()


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


_WRONG_CALL = re.compile(
    r"(?P<name>[\w.]+)\(\) (got an unexpected keyword argument '(?P<argument>[\w.]+)'"
    r"|missing \d+ required [\w-]+ arguments?: (?P<missing>.+))"
)


def _called(name: str, frames: Sequence[FrameType]) -> Callable[..., Any] | None:
    """The class or function of Temper, or over a class of Temper, that has this name, unless the
    code that failed means another one by it."""
    there = [names.get(name) for f in reversed(frames) for names in (f.f_locals, f.f_globals)]
    ours = [vars(m).get(name) for key, m in [*sys.modules.items()] if _package(key) in SHIPPED]
    meant = next(filter(callable, there), None)
    for found in ours if meant is None else [meant]:
        if callable(found) and any(map(_is_ours, getattr(found, "__mro__", [found]))):
            return found
    return None


def _is_ours(definition: Any) -> bool:
    return _package(getattr(definition, "__module__", "")) in SHIPPED


def _package(module: object) -> str:
    return str(module).partition(".")[0]


def _is_of_temper(frame: FrameType) -> bool:
    return _package(frame.f_globals.get("__name__")) in SHIPPED


def _is_of(frame: FrameType, function: str) -> bool:
    return frame.f_globals.get("__name__") == "dataclasses" and frame.f_code.co_name == function
