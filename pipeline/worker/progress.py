"""Writes the progress of a step, and while the step reports none, its current activity.

A step reports progress through ``out.progress``. Before its first report, and when it has been
silent for a while, a thread looks at the stack of the main thread and tells whether it imports a
library or works. Progress is one small file in scratch, only for display: an error in writing it
does not fail the step.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from pipeline.base.installed import folder_of_packages, in_library
from pipeline.base.redaction import record
from pipeline.base.repeating import repeating
from pipeline.dag.step import Metrics
from pipeline.observed.hook import unobserved
from pipeline.store.layout import Store
from pipeline.wire.spec import StepSpec

PROGRESS_SECONDS, REMOTE_PROGRESS_SECONDS = 0.3, 5.0
SILENCE_SECONDS = 2.0
"""After so long without progress, what the step does is written."""
_CORE = __name__.partition(".")[0]


class ProgressWriter:
    """Writes the progress of a step with a given key.

    Args:
        is_writing: false for a rank that writes nothing.
    """

    def __init__(self, store: Store, spec: StepSpec, is_writing: bool = True):
        self._store = store
        self._path = store.progress_path(spec.step, spec.key)
        self._interval = PROGRESS_SECONDS if store.is_local else REMOTE_PROGRESS_SECONDS
        self._is_writing = is_writing
        self._progress: dict[str, Any] = {"done": 0.0, "total": None, "metrics": {}}
        self._last = 0.0
        self._doing = ""
        self._lock = threading.Lock()

    def progress(self, done: float, total: float | None, metrics: Metrics | None = None) -> None:
        """Write the progress; cheap enough to call for every batch."""
        now = time.monotonic()
        if not self._is_writing or (now - self._last < self._interval and done != total):
            return
        self._last = now
        with contextlib.suppress(OSError, TypeError, ValueError), self._lock:
            of = None if total is None else float(total)
            self._progress = {"done": float(done), "total": of, "metrics": dict(metrics or {})}
            self._write(self._progress)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside the block, write what this thread does while the step reports no progress."""
        if not self._is_writing:
            yield
            return
        watched = threading.get_ident()
        with contextlib.suppress(OSError, ValueError, TypeError):  # progress of an earlier attempt
            earlier = json.loads(self._store.read(self._path) or b"{}")
            self._progress |= {name: earlier[name] for name in self._progress if name in earlier}

        def watch() -> None:
            self._write_place(sys._current_frames().get(watched))

        with repeating(self._interval, watch, "progress"):
            yield

    def _write_place(self, frame: FrameType | None) -> None:
        if time.monotonic() - self._last < SILENCE_SECONDS:
            self._doing = ""
            return
        with unobserved():  # it may read the files of libraries
            doing = place_of(frame)
        if doing and doing != self._doing:
            with contextlib.suppress(OSError, TypeError, ValueError), self._lock:
                self._doing = doing
                self._write({**self._progress, "doing": doing})

    def _write(self, progress: Mapping[str, Any]) -> None:
        self._store.objects.replace(self._path, record(progress))


def place_of(frame: FrameType | None) -> str:
    """The activity of a thread in words: ``importing torch``, ``working``; empty if no project code
    is on its stack."""
    library = ""
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__", ""))
        if code.co_filename.startswith("<frozen importlib") and library:
            return f"importing {library}"
        if in_library(code.co_filename):
            library = _package(code.co_filename) or library
        elif not code.co_filename.startswith("<") and module.partition(".")[0] != _CORE:
            return f"importing {module}" if code.co_name == "<module>" else "working"
        frame = frame.f_back
    return ""


def _package(file: str) -> str:
    """The installed package that a file belongs to; empty for the standard library."""
    folder = folder_of_packages(file)
    return file.removeprefix(folder).partition("/")[0].removesuffix(".py") if folder else ""
