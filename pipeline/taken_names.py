"""A user's file that has the name of one of Temper's packages: one sentence instead of a broken
import.

``pipeline``, ``steps`` and ``experiments`` are names that a project may use for something of its
own. Python imports whichever it finds first, and then misses the modules of the other. When a
module below such a name is not found, this says which file or folder takes the name. It is asked
last, after everything that could find the module, so it costs nothing where nothing is wrong.

A file ``pipeline.py`` that a script or a notebook imports in our place, Python itself must name:
nothing of ours has run then. Where a worker would import it, or a script that we start,
:func:`require_ours` says so.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from pipeline.errors import TemperError

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CORE = "pipeline"
_OURS = (_CORE, "steps", "experiments")


class NameTaken(TemperError, ImportError):
    """A module is not found because another package has the name of its package."""


class TakenNames:
    """Asked for a module that nobody finds: finds none either, and says why if that is it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        """
        Raises:
            NameTaken: the module is missing because of the name of its package.
        """
        top, _, inner = name.partition(".")
        if top not in _OURS or not inner:
            return
        file = os.path.join(*name.split("."))
        ours = _found(file, [_HOME])
        taken = _place(sys.modules.get(top))
        if ours and taken and not _is_ours(taken):
            sys.excepthook = _one_line
            raise _taken(f"{name} is not in {taken}", taken, top)
        for theirs in [] if ours else _found(file, _folders()):
            folder = os.path.dirname(theirs)
            sys.excepthook = _one_line
            raise _taken(f"{theirs} cannot be imported as {name}", folder, top)


def install() -> None:
    """Ask last, in this process."""
    if not any(isinstance(finder, TakenNames) for finder in sys.meta_path):
        sys.meta_path.append(TakenNames())


def require_ours(folders: Sequence[str]) -> None:
    """Refuse folders in which another process, which looks through them in this order, finds
    another ``pipeline``.

    Raises:
        NameTaken: it does.
    """
    for folder in folders:
        if os.path.realpath(folder) == os.path.realpath(_HOME):
            return
        for place in (f"{folder}/pipeline/__init__.py", f"{folder}/pipeline.py"):
            if os.path.exists(place):
                place = place.removesuffix("/__init__.py")
                raise _taken(f"{place} would be imported for pipeline", place, _CORE)


def _taken(missing: str, place: str, top: str) -> NameTaken:
    return NameTaken(
        f"{missing}: Temper has a package {top}, too; rename {place}, as in my_{top}, and import "
        "it by that name"
    )


def _one_line(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Show the error of a name that is taken as one line, and any other as Python does."""
    if isinstance(error, NameTaken):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _place(module: Any) -> str:
    """The file or folder that a module was imported from."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
    return next(iter(getattr(module, "__path__", ())), "")


def _is_ours(place: str) -> bool:
    return os.path.dirname(os.path.abspath(place)) == _HOME


def _folders() -> Iterator[str]:
    """Where a person may have meant: where Python looks, and the present folder."""
    for folder in dict.fromkeys([*(entry or "." for entry in sys.path), "."]):
        if os.path.abspath(folder) != _HOME:
            yield folder


def _found(file: str, folders: Any) -> list[str]:
    """The modules of this name, as files or packages, in folders."""
    places = (os.path.abspath(os.path.join(folder, file)) for folder in folders)
    return [p for place in places for p in (f"{place}.py", place) if os.path.exists(p)]
