"""What a worker reports of a step's exception: one sentence, and where a bug lies.

The log has the whole traceback. The person at the terminal reads the report: a message
(:mod:`pipeline.foreseen`) stands alone; of any other exception the report shows the frames of
project code that led to it, without those of the core and of libraries.
"""

import linecache
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from pipeline.code.modules import in_library, is_core
from pipeline.foreseen import ROOT, SHIPPED, frames_of, is_shipped, message_of, sentence
from pipeline.text import cut

_CORE = f"{ROOT / SHIPPED[0]}{os.sep}"
"""Also of the module that runs as ``__main__``, which has no name of its own."""
MOST_FRAMES = 4
LONGEST_SOURCE = 120


@dataclass(frozen=True)
class Failure:
    """An exception as it is reported.

    Attributes:
        excerpt: lines that show where a bug lies; none for a message.
    """

    message: str
    excerpt: tuple[str, ...] = ()


class FailedElsewhere(Exception):
    """Another process has met a failure, and has said what there is to say of it."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: Exception, home: str, places: Sequence[str] = ()) -> Failure:
    """What to report of an exception.

    Args:
        home: the module of the step function, whose package is project code wherever it lies.
        places: folders that the step writes to.
    """
    if isinstance(error, FailedElsewhere):
        return error.failure

    def is_ours(frame: FrameType) -> bool:
        return is_shipped(frame) or _is_project(frame, home)

    message = message_of(error, is_ours, places)
    if message is not None:
        return Failure(message)
    return Failure(_named(error), tuple(_excerpt(error, home)))


def _named(error: Exception) -> str:
    """An exception that was not written for people, with its type."""
    text, name = sentence(error), type(error).__name__
    return text if text.startswith(name) else f"{name}: {text}"


def _excerpt(error: Exception, home: str) -> Iterator[str]:
    """The last frames of project code, as a traceback would show them."""
    frames = {
        (frame.f_code.co_filename, line): frame  # a comprehension has its own, on the same line
        for frame, line in reversed([*frames_of(error)])
        if _is_project(frame, home)
    }
    for (_, line), frame in reversed([*frames.items()][:MOST_FRAMES]):
        code = frame.f_code
        yield f"{_short(code.co_filename)}, line {line}, in {code.co_name}"
        if source := linecache.getline(code.co_filename, line, frame.f_globals).strip():
            yield f"    {cut(source, LONGEST_SOURCE)}"


def _is_project(frame: FrameType, home: str) -> bool:
    module, file = str(frame.f_globals.get("__name__")), frame.f_code.co_filename
    if is_core(module) or file.startswith((_CORE, "<frozen ")):
        return False
    return module.partition(".")[0] == home.partition(".")[0] or not in_library(file)


def _short(file: str) -> str:
    """A path as seen from here, where it lies below."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
