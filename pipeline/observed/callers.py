"""Finds the code behind an event: the frames that lead to the audit hook."""

import linecache
import os
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType

_HOOK = frozenset({__file__, os.path.join(os.path.dirname(__file__), "hook.py")})
"""The modules whose frames are none of the code behind an event."""


def may_ask_for_sizes() -> bool:
    """Whether the module that calls ``os.scandir`` uses ``stat``: an entry tells the size of its
    file without a further event. The snapshot has put the source of a project module there."""
    frame = next(frames(), None)
    entry = linecache.cache.get(frame.f_code.co_filename) if frame is not None else None
    return entry is not None and len(entry) > 1 and any(".stat(" in line for line in entry[2])


def callers(most: int = 24) -> Iterator[str]:
    """The files of the calling frames outside the hook, the nearest first."""
    return (frame.f_code.co_filename for frame in islice(frames(), most))


def frames() -> Iterator[FrameType]:
    """The calling frames outside the hook, the nearest first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename not in _HOOK:
            yield frame
        frame = frame.f_back


def readers_of_source(path: str) -> set[str]:
    """Which of ``inspect`` and ``linecache`` are among the callers, for a source file."""
    files = map(os.path.basename, callers()) if path.endswith(".py") else ()
    return {"inspect.py", "linecache.py"}.intersection(files)


def is_for_an_import() -> bool:
    """Whether the import system looks for a module, or for an installed package."""
    caller = next(callers(), "")
    return caller.startswith("<frozen importlib") or "/importlib/metadata/" in caller
