"""Decides which exceptions are messages for the user at the terminal, and formats them.

An exception is a message if its text was written for the user:

- a :class:`TemperError`;
- any exception with a text that a ``raise`` statement of the project or of Temper raises. So the
  libraries below ``steps/``, which do not know the core, report problems with a ``ValueError``,
  while a ``ValueError`` of ``int("x")`` in the same function is a bug. The traceback distinguishes
  them: it ends at the instruction that raised;
- an error of the operating system that Temper's own code met, directly or through libraries;
- a full disk or memory, or a missing package of one of our extras, wherever it is raised.

A message keeps the words of its source. Any other exception is a bug, or nobody foresaw it.
"""

import dis
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from pipeline.base.errors import TemperError, text_of
from pipeline.base.extras import how_to_install, is_extra
from pipeline.base.installed import in_library
from pipeline.base.text import cut

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("pipeline", "steps")
"""The packages of Temper."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SAID_OF_NO_ROOM = (
    "No space left on device",
    "StorageFull",
    "Disk quota exceeded",
    "No usable temporary directory",
)
"""Texts of such errors in libraries whose exceptions have no error number."""
_LONGEST_CAUSE = 120
"""How much of a library's own words a message about a full disk or memory keeps."""
_PLAIN = (ValueError, OSError, NotImplementedError, FloatingPointError)
"""Python's exceptions whose names add nothing to their messages."""


def message_of(
    error: BaseException, is_ours: Callable[[FrameType], bool] | None = None
) -> str | None:
    """The message of an exception, as one sentence; ``None`` if it is no message.

    Args:
        is_ours: whether a ``raise`` in a frame counts; by default, one in Temper's own code.
    """
    if isinstance(error, TemperError):
        return sentence(error)
    for link in _chain(error):
        if _is_no_room(link):
            return (
                f"no space is left on a disk ({_in_short(link)}); make room there (temper gc shows "
                "what nobody needs), or name another with store=FOLDER or TMPDIR"
            )
        if _is_no_memory(link):
            return (
                f"there was not enough memory ({_in_short(link)}); give the step a larger machine, "
                "or less to hold at a time, as with a lower tokens_per_forward"
            )
    if isinstance(error, ModuleNotFoundError) and is_extra(package := str(error.name)):
        return f"the package {package} is not installed here: {how_to_install(package)}"
    if isinstance(error, OSError) and error.errno and _is_met_by_temper(error):
        if not isinstance(error.filename, str | bytes):  # none, or a descriptor
            return sentence(error)
        place = os.fsdecode(error.filename)
        return f"{place}: {error.strerror}"
    raised_by = _raising_frame(error)
    is_message = raised_by and text_of(error) and (is_ours or is_shipped)(raised_by)
    return sentence(error) if is_message else None


def sentence(error: BaseException) -> str:
    """The text of an exception on one line, with its type if that adds something."""
    text, name = " ".join(text_of(error).split()), type(error).__name__
    if isinstance(error, BaseExceptionGroup):  # its own text only counts them
        text = f"{error.message}: {'; '.join(map(sentence, error.exceptions))}"
    if not text:
        return name
    says_enough = isinstance(error, _PLAIN) or type(error).__module__ != "builtins"
    return text if says_enough else f"{name}: {text}"


def is_shipped(frame: FrameType) -> bool:
    """Whether the code of a frame is part of Temper."""
    file = Path(frame.f_code.co_filename)
    return any(file.is_relative_to(ROOT / package) for package in SHIPPED)


def frames_of(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """The frames that an exception has passed, outermost first, each with its line."""
    place = error.__traceback__
    while place is not None:
        yield place.tb_frame, place.tb_lineno
        place = place.tb_next


def _is_met_by_temper(error: BaseException) -> bool:
    """Whether Temper's own code called what raised an exception, directly or through libraries."""
    frames = [frame for frame, _ in frames_of(error)]
    return next(
        (is_shipped(f) for f in reversed(frames) if is_shipped(f) or not _is_library(f)), False
    )


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in sys.stdlib_module_names or in_library(frame.f_code.co_filename)


def _raising_frame(error: BaseException) -> FrameType | None:
    """The frame whose ``raise`` statement raised an exception; ``None`` if an expression raised
    it."""
    place = error.__traceback__
    if place is None or isinstance(error, AssertionError):  # `assert` uses the same instruction
        return None
    while place.tb_next is not None:
        place = place.tb_next
    instruction = place.tb_frame.f_code.co_code[place.tb_lasti]
    return place.tb_frame if dis.opname[instruction] == "RAISE_VARARGS" else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, followed by its causes and by what it groups."""
    ahead: list[BaseException | None] = [error]
    seen: set[int] = set()
    while ahead:
        link = ahead.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        ahead.append(link.__cause__)
        if isinstance(link, BaseExceptionGroup):
            ahead.extend(link.exceptions)


def _is_no_room(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    said = text_of(error)
    return not isinstance(error, TemperError) and any(s in said for s in _SAID_OF_NO_ROOM)


def _is_no_memory(error: BaseException) -> bool:
    """Whether memory of the machine or a device is full; device libraries use this name too."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _in_short(error: BaseException) -> str:
    """The beginning of what an exception says: some libraries nest a whole traceback in it."""
    return cut(sentence(error), _LONGEST_CAUSE)
