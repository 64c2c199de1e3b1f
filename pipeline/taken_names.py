"""Explains, in one sentence, a broken import due to a user's file with a name that is taken.

A project may use the names ``pipeline``, ``steps`` or ``experiments`` itself. Python imports the
package that it finds first, and then cannot find the modules of the other. If a module below such a
name is not found, this finder reports which file or folder has taken the name. It is the last
finder, so it costs nothing unless an import fails.

If a script or a notebook imports a user's file ``pipeline.py`` in place of our package, only Python
can report it, because none of our code has run. If a worker or a script that we start would import
that file, :func:`require_ours` raises an error.

A file may also have the name of a module of Python or of a library (``random.py``, ``torch.py``).
Python imports it in place of that module, and some library fails: :func:`hidden` says so. That may
be any module, so this one imports only what Python has loaded at its start.
"""

import os
import sys
from _frozen_importlib_external import PathFinder

from pipeline.errors import TemperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType, TracebackType

_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CORE = "pipeline"
OURS = (_CORE, "steps", "experiments")
"""The names of our packages."""


class NameTaken(TemperError, ImportError):
    """A module is not found because another package has the name of its package."""


class TakenNames:
    """The last finder: it finds nothing, and raises an error if a taken name is the reason."""

    def find_spec(self, name: str, path: "Sequence[str] | None", target: object = None) -> None:
        """
        Raises:
            NameTaken: the module is missing because of the name of its package.
        """
        top, _, inner = name.partition(".")
        if top not in OURS or not inner:
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
    if not any(isinstance(finder, TakenNames) for finder in sys.meta_path):
        sys.meta_path.append(TakenNames())


def require_ours(folders: "Sequence[str]") -> None:
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


def hidden(error: BaseException) -> str:
    """The sentence for an error that is due to a user's file with the name of another module: code
    outside the file's folder has imported it, or misses something in it; empty for other errors."""
    if not isinstance(error, ImportError | AttributeError):
        return ""
    frames = [f for f in _frames(error) if not f.f_code.co_filename.startswith("<frozen ")]
    named = str(error.name) if isinstance(error, ImportError) else ""  # else that of an attribute
    names = {named, *str(error).partition("module '")[2].split("'")[:1]}
    tops = {name.partition(".")[0] for name in names}
    met = [(frames[-1], _place(sys.modules.get(top)), top) for top in tops if frames]
    if isinstance(error, ImportError) and error.path and error.name and frames:
        met.append((frames[-1], error.path, error.name))
    for user, frame in zip(frames, frames[1:], strict=False):  # noqa: RUF007
        if frame.f_code.co_name != "<module>":
            continue  # what it runs later may fail for any reason
        met.append((user, frame.f_code.co_filename, str(frame.f_globals.get("__name__"))))
    for user, file, name in met:
        if not file or os.path.basename(file) not in (name, f"{name}.py"):
            continue
        folder = os.path.dirname(os.path.abspath(file))
        is_met_outside = not os.path.abspath(user.f_code.co_filename).startswith(folder + os.sep)
        if is_met_outside and (whose := _hidden_owner(name, folder)):
            told = f"{os.path.join(folder, os.path.basename(file))} is imported in place of {whose}"
            return f"{told} {name}; rename it, as in my_{name}, and import it by that name"
    return ""


def _frames(error: BaseException) -> "Iterator[FrameType]":
    place = error.__traceback__
    while place is not None:
        yield place.tb_frame
        place = place.tb_next


def _hidden_owner(name: str, folder: str) -> str:
    """Whose module of this name a file in a folder hides; empty if it hides none."""
    if name in sys.stdlib_module_names:
        return "" if folder == os.path.dirname(os.path.abspath(os.__file__)) else "Python's own"
    others = [f for f in sys.path if os.path.abspath(f or ".") != folder]
    return "the library" if PathFinder.find_spec(name, others) else ""


def _taken(missing: str, place: str, top: str) -> NameTaken:
    return NameTaken(
        f"{missing}: Temper has a package {top}, too; rename {place}, as in my_{top}, and import "
        "it by that name"
    )


def _one_line(
    kind: type[BaseException], error: BaseException, traceback: "TracebackType | None"
) -> None:
    """Print the error of a taken name as one line; any other error as Python does."""
    if isinstance(error, NameTaken):
        print(f"error: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _place(module: object) -> str:
    """The file or folder from which a module was imported."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file
    return next(iter(getattr(module, "__path__", ())), "")


def _is_ours(place: str) -> bool:
    return os.path.dirname(os.path.abspath(place)) == _HOME


def _folders() -> "Iterator[str]":
    """The folders that the user may have meant: those in ``sys.path``, and the current folder."""
    for folder in dict.fromkeys([*(entry or "." for entry in sys.path), "."]):
        if os.path.abspath(folder) != _HOME:
            yield folder


def _found(file: str, folders: "Iterable[str]") -> list[str]:
    """The modules or packages with this file name, in folders."""
    places = (os.path.abspath(os.path.join(folder, file)) for folder in folders)
    return [p for place in places for p in (f"{place}.py", place) if os.path.exists(p)]
