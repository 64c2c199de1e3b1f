"""Reads logs of attempts: the end of a log, or a log as it grows.

A worker on this machine, or on one that shares the store's file system, writes its log directly
into the attempt. The log of another worker reaches the store when its attempt is over.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from pipeline.store.layout import Store

TAIL_LINES = 20
TAIL_BYTES = 64 * 2**10
"""At most so many bytes are read from the end of a log."""
POLL_SECONDS = 0.3


def tail(store: Store, path: str, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log."""
    return _end(store, path).decode(errors="replace").splitlines()[-lines:]


class GrowingLog:
    """A log that a worker is still writing."""

    def __init__(self, store: Store, path: str):
        self.store, self.path = store, path
        self._read = 0
        self._partial = b""

    def new_lines(self) -> list[str]:
        """The complete lines that were written since the last call."""
        *lines, self._partial = (self._partial + self._new_bytes()).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """The remaining lines of a log that has ended, including an incomplete last line."""
        lines = self.new_lines()
        last, self._partial = self._partial, b""
        return [*lines, last.decode(errors="replace")] if last else lines

    def _new_bytes(self) -> bytes:
        if not self.store.is_local:
            data = (self.store.read(self.path) or b"")[self._read :]
        else:
            data = b""
            with contextlib.suppress(OSError), open(self.path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        self._read += len(data)
        return data


def follow(log: GrowingLog, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield every line of a log, from its beginning until ``is_over`` returns true."""
    while not is_over():
        yield from log.new_lines()
        time.sleep(POLL_SECONDS)
    yield from log.rest()


def newest_log(store: Store, step: str, key: str, since: str = "") -> str | None:
    """The path of the log of the newest attempt at a key, if there is one and it has not ended
    before the stamp ``since``."""
    folder = f"{store.root}/attempts/{step}/{key}"
    with contextlib.suppress(OSError):
        if names := sorted(store.objects.folders(folder)):
            newest = f"{folder}/{names[-1]}"
            if names[-1] >= since or store.read(f"{newest}/report.json") is None:
                return f"{newest}/log.txt"
    return None


def _end(store: Store, path: str) -> bytes:
    """The last bytes of a file, or all of it if its file system cannot read ranges."""
    try:
        return store.objects.fs.cat_file(path, start=-TAIL_BYTES)
    except Exception:  # a server without ranges; each file system has its own errors
        return store.read(path) or b""
