"""Which exceptions are messages for the person at the terminal, and what they say.

An exception is a message if somebody wrote its text for whoever reads it:

- a :class:`TemperError`;
- any exception that a ``raise`` statement in code of the project or of Temper has raised. So the
  libraries below ``steps/``, which know nothing of the core, say what is wrong by a ``ValueError``
  of their own, while the ``ValueError`` of ``int("x")`` in the same function is a bug. Which of the
  two it is, the traceback says: it ends at the instruction that raised;
- a machine that has no room left, or lacks a package that is one of our extras, whoever meets it.

Anything else is a bug, or something that nobody has foreseen.
"""

import dis
import errno
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

from pipeline.errors import TemperError
from pipeline.extras import how_to_install, is_extra

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("pipeline", "steps")
"""The packages of Temper, below :data:`ROOT`."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SAID_OF_NO_ROOM = ("No space left on device", "StorageFull", "Disk quota exceeded")
"""By libraries whose exceptions have no number."""
_PLAIN = (ValueError, OSError, NotImplementedError, FloatingPointError)
"""Exceptions of Python's whose names would add nothing to their messages."""


def message_of(
    error: BaseException,
    is_ours: Callable[[FrameType], bool] | None = None,
    places: Iterable[str] = (),
) -> str | None:
    """What to say of an exception, in one sentence, if it is a message.

    Args:
        is_ours: whether a ``raise`` in a frame counts; by default, one in Temper's own code.
        places: folders that are written to, to say which of them are full.
    """
    if isinstance(error, TemperError):
        return sentence(error)
    if any(map(_is_no_room, _chain(error))):
        return _no_room(error, places)
    if any(map(_is_no_memory, _chain(error))):
        return (
            f"there was not enough memory ({sentence(error)}); give the step a larger machine, or "
            "less to hold at a time, as with a lower tokens_per_forward"
        )
    if isinstance(error, ModuleNotFoundError) and is_extra(package := str(error.name)):
        return f"the package {package} is not installed here: {how_to_install(package)}"
    raised_by = _raising_frame(error)
    if raised_by is not None and (is_ours or is_shipped)(raised_by):
        return sentence(error)
    return None


def sentence(error: BaseException) -> str:
    """What an exception says, on one line, with its type where that says something."""
    text, name = " ".join(str(error).split()), type(error).__name__
    if not text:
        return name
    says_enough = isinstance(error, _PLAIN) or type(error).__module__ != "builtins"
    return text if says_enough else f"{name}: {text}"


def is_shipped(frame: FrameType) -> bool:
    """Whether the code of a frame is Temper's own."""
    file = Path(frame.f_code.co_filename)
    return any(file.is_relative_to(ROOT / package) for package in SHIPPED)


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that an exception has passed, outermost first, each with its line."""
    place = error.__traceback__
    while place is not None:
        yield place.tb_frame, place.tb_lineno
        place = place.tb_next


def _raising_frame(error: BaseException) -> FrameType | None:
    """The frame whose ``raise`` statement raised an exception; ``None`` if an expression did."""
    place = error.__traceback__
    if place is None or isinstance(error, AssertionError):  # `assert` raises by that instruction
        return None
    while place.tb_next is not None:
        place = place.tb_next
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return place.tb_frame if dis.opname[instruction] == "RAISE_VARARGS" else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and what it was raised from."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _is_no_room(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return not isinstance(error, TemperError) and any(s in str(error) for s in _SAID_OF_NO_ROOM)


def _is_no_memory(error: BaseException) -> bool:
    """Of the machine, or of a device: libraries that have devices have exceptions of this name."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _no_room(error: BaseException, places: Iterable[str]) -> str:
    free = []
    for place in dict.fromkeys([*places, tempfile.gettempdir()]):
        try:
            free.append(f"{place} has {shutil.disk_usage(place).free / 2**20:,.0f} MiB free")
        except OSError:
            continue
    return (
        f"no space is left on a disk ({sentence(error)}; {', '.join(free)}); make room there "
        "(temper gc shows what nobody needs), or name another with store=FOLDER or TMPDIR"
    )
