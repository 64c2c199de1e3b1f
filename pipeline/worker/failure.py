"""Describes a step's exception for the report: one sentence, and the location of a bug.

The log has the whole traceback. The user at the terminal sees the report: an error message for
users (:mod:`pipeline.uncaught.user_errors`) stands alone; for any other exception, the report adds
the frames of project code that led to it, without frames of the core and of libraries.
"""

import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from pipeline.base.installed import in_library
from pipeline.base.redaction import shown
from pipeline.base.text import cut
from pipeline.trace.modules import is_core
from pipeline.uncaught.user_errors import ROOT, SHIPPED, frames_of, is_shipped, message_of, sentence

_CORE = f"{ROOT / SHIPPED[0]}{os.sep}"
"""Identifies frames of the core that run as ``__main__``, whose module name does not."""
MOST_FRAMES = 4
LONGEST_SOURCE = 120


@dataclass(frozen=True)
class Failure:
    """An exception as it is reported. The ``excerpt`` shows where a bug is; an error message for
    users has none."""

    message: str
    excerpt: tuple[str, ...] = ()

    def show(self, was_asked: bool) -> None:
        """Print the traceback of the exception that is being handled, without secrets; if the step
        was asked to end and this is no bug, the message alone."""
        if was_asked and not self.excerpt:
            print(self.message, flush=True)
        else:
            print(shown(traceback.format_exc()), end="", file=sys.stderr, flush=True)


class FailedElsewhere(Exception):
    """Another process has failed and reported its failure."""

    def __init__(self, failure: Failure):
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: Exception, home: str) -> Failure:
    """The description of an exception.

    Args:
        home: the module of the step function; its package is project code wherever it lies.
    """
    if isinstance(error, FailedElsewhere):
        return error.failure

    def is_ours(frame: FrameType) -> bool:
        return is_shipped(frame) or _is_project(frame, home)

    message = message_of(error, is_ours)
    if message is not None:
        return Failure(message)
    text, name = sentence(error), type(error).__name__
    text = text if text.startswith(name) else f"{name}: {text}"
    return Failure(text, tuple(_excerpt(error, home)))


def _excerpt(error: Exception, home: str) -> Iterator[str]:
    """The last frames of project code, in the form of a traceback."""
    frames = {
        (frame.f_code.co_filename, line): frame  # a comprehension has a frame on the same line
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
    """A path, relative to the working folder if it lies below."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
