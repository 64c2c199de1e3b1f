"""Find the losses or checkers that the files of a folder define, by their names in a config.

Any file in the folder that defines a member of the family (a loss, a checker) registers it; nothing
else must be edited. A file that cannot be imported breaks only its own member: a stand-in takes
that member's name and settings, and raises an error with the reason if a config chooses it.
"""

import importlib
import importlib.util
import keyword
import pkgutil
import re
import sys
import traceback
from dataclasses import field, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Member = TypeVar("Member")

_MARK = "stands_in"
_NAME = re.compile(r"""^\s+name\b[^=\n]*=\s*["'](\w+)["']""", re.MULTILINE)
_SETTING = re.compile(r"^    (\w+)\s*:(?!\s*ClassVar)", re.MULTILINE)


def members_of(family: type[Member], folder: ModuleType) -> dict[str, type[Member]]:
    """The named subclasses of `family` in a package and its subpackages, sorted by name. Files with
    errors are represented by stand-ins."""
    broken: dict[str, Any] = {}
    for found in pkgutil.walk_packages(
        folder.__path__, f"{folder.__name__}.", onerror=lambda name: None
    ):
        try:
            importlib.import_module(found.name)
        except Exception as error:  # the author's code may raise anything
            broken |= _stand_in(found.name, error, family)
    named = {
        member.__dict__["name"]: member
        for member in _below(family)
        if "name" in vars(member) and not hasattr(member, _MARK)
        if member.__module__ in sys.modules  # not from a file whose import failed halfway
    }
    return dict(sorted({**broken, **named}.items()))


def _below(family: type[Member]) -> list[type[Member]]:
    children = family.__subclasses__()
    return [*children, *(member for child in children for member in _below(child))]


def _stand_in(module: str, error: Exception, family: type) -> dict[str, type]:
    """A stand-in for the member that a file with an error seems to define, judged by its text;
    nothing if the text mentions no class of the family."""
    spec = importlib.util.find_spec(module)
    file = Path((spec and spec.origin) or module)
    try:
        source = file.read_text("utf-8", errors="replace")
    except OSError:
        source = ""
    bases = "|".join(base.__name__ for base in (family, *_below(family)))
    if not re.search(rf"\b({bases})\b", source):
        return {}
    stated = _NAME.search(source)
    name = stated[1] if stated else file.stem
    settings = {s for s in _SETTING.findall(source) if not keyword.iskeyword(s)} - {"name"}
    said = f"{_place(file, error)}: {type(error).__name__}: {' '.join(str(error).split())}"

    def refuse(self: Any) -> None:
        raise ValueError(f"{said}; correct the file, or choose another")

    fields = [(setting, Any, field(default=None)) for setting in sorted(settings)]
    members = {"__post_init__": refuse, "name": name, _MARK: True}
    frozen = family.__dict__["__dataclass_params__"].frozen
    return {name: make_dataclass(name, fields, bases=(family,), namespace=members, frozen=frozen)}


def _place(file: Path, error: Exception) -> str:
    """The file, and the line of the error."""
    if isinstance(error, SyntaxError):
        return str(file)  # the error's text already has the line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)
