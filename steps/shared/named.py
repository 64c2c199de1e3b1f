"""What the files of a folder define, by the names that a config has for it.

Whatever file defines a member of a family (a loss, a checker), it is known: nothing is to be added
elsewhere. A file that cannot be imported breaks what it defines and nothing else: a stand-in has
its name and its settings, and says what is wrong when it is chosen.
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
    """The classes below `family` that the files of a package and of those in it define, in the
    order of their names; stand-ins for those of files with errors."""
    broken: dict[str, Any] = {}
    for found in pkgutil.walk_packages(
        folder.__path__, f"{folder.__name__}.", onerror=lambda name: None
    ):
        try:
            importlib.import_module(found.name)
        except Exception as error:  # whatever its author has done
            broken |= _stand_in(found.name, error, family)
    named = {
        member.__dict__["name"]: member
        for member in _below(family)
        if "name" in vars(member) and not hasattr(member, _MARK)
        if member.__module__ in sys.modules  # not half of a file
    }
    return dict(sorted({**broken, **named}.items()))


def _below(family: type[Member]) -> list[type[Member]]:
    children = family.__subclasses__()
    return [*children, *(member for child in children for member in _below(child))]


def _stand_in(module: str, error: Exception, family: type) -> dict[str, type]:
    """What is chosen by the name that a file with an error seems to define, if it is of a family:
    the text is all that there is of it."""
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
    """Where in a file it went wrong."""
    if isinstance(error, SyntaxError):
        return str(file)  # it says the line itself
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)
