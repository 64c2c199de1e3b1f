"""Explains, in one sentence, a broken import due to a user's package with the name of one of ours.

A project may use the names ``pipeline``, ``steps`` or ``experiments`` itself. Python imports the
package that it finds first, and then cannot find the modules of the other.

If a script imports a user's ``pipeline`` in place of our package, only Python can report it, unless
it imports anything of ``steps``. If a worker or a script that we start would import that package,
:func:`require_ours` raises an error.
"""

import os
import sys

from pipeline.base.errors import TemperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HOME = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
OURS = ("pipeline", "steps", "experiments")
"""The names of our packages."""


def require_ours(folders: "Sequence[str]") -> None:
    """Refuse folders in which another process, which looks through them in this order, finds
    another ``pipeline``.

    Raises:
        TemperError: it does.
    """
    for folder in folders:
        if os.path.realpath(folder) == os.path.realpath(_HOME):
            return
        for place in (f"{folder}/pipeline/__init__.py", f"{folder}/pipeline.py"):
            if os.path.exists(place):
                place = place.removesuffix("/__init__.py")
                raise TemperError(f"{place} would be imported for pipeline: {_advice(place)}")


def taken(error: ImportError) -> str:
    """What is wrong if a name is missing in a package with the name of one of ours, and another one
    is meant: Python's own words, and which to rename; empty for other errors."""
    name = error.name or ""
    top = name.partition(".")[0]
    if top not in OURS or top not in sys.modules:
        return ""
    inner = os.path.join(*name.split("."))
    place = next(iter(getattr(sys.modules[top], "__path__", [])), "") or str(
        getattr(sys.modules[top], "__file__", "")
    )
    if os.path.dirname(os.path.abspath(place)) != _HOME:
        return f"{error}: {_advice(place)}"
    for folder in dict.fromkeys(os.path.abspath(entry) for entry in (*sys.path, ".")):
        theirs = os.path.join(folder, inner)
        if folder != _HOME and (os.path.exists(theirs) or os.path.exists(f"{theirs}.py")):
            return f"{error}: {_advice(os.path.join(folder, top))}"
    return ""


def _advice(place: str) -> str:
    name = os.path.basename(place).removesuffix(".py")
    return (
        f"Temper has a package {name}, too; rename {place}, as in my_{name}, and import it by that "
        "name"
    )
