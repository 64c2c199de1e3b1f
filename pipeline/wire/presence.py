"""Records which process runs an attempt that outlives its driver, and whether it is alive.

    attempts/<step>/<key>/<attempt>/begun.json   the process that began it, or that it was given up
                                    beat         replaced while a worker lives

An attempt is begun at most once. The worker creates ``begun.json`` before it does anything else. A
driver that gives up on a job creates the file in the worker's place. So a job that an engine starts
late, or twice, finds the file and changes nothing. With several nodes, the first one begins, and
the others check that it belongs to the same job.
"""

import contextlib
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from pipeline.base.redaction import record
from pipeline.store.layout import Store
from pipeline.store.untrusted_input import is_seconds, parse_json

BEAT_SECONDS = 5.0
JOIN_SECONDS = 0.5
SILENCE_SECONDS = 60.0
"""After so long without a beat, a worker counts as dead, whatever the engine says."""


def begin(store: Store, attempt: str, master: str = "") -> bool:
    """Begin an attempt as its worker. False if it has been begun or given up. Only this job has
    this address of the first of its nodes, ``master``."""
    who = {"host": platform.node(), "pid": os.getpid(), "master": master, "time": time.time()}
    return _claim(store, attempt, who)


def join(store: Store, attempt: str, master: str) -> bool:
    """On another node: wait until the first node has begun. False if that was another job's node,
    or the attempt was given up."""
    while (who := begun(store, attempt)) is None:
        time.sleep(JOIN_SECONDS)
    return who.get("master") == master


def give_up(store: Store, attempt: str) -> bool:
    """Prevent workers from beginning an attempt. False if one has begun."""
    return _claim(store, attempt, {"given_up": True, "time": time.time()})


def begun(store: Store, attempt: str) -> dict[str, Any] | None:
    """The process that began an attempt, and the time; ``None`` if it has not begun. A damaged file
    gives only the present time."""
    data = store.read(f"{attempt}/begun.json")
    if data is None:
        return None
    with contextlib.suppress(ValueError, TypeError, KeyError):
        found = parse_json(data)
        if is_seconds(found["time"]):
            return found
    return {"time": time.time()}


@contextlib.contextmanager
def beating(store: Store, attempt: str) -> Iterator[None]:
    """Show that a worker is alive inside the block."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(BEAT_SECONDS):
            count += 1
            with contextlib.suppress(OSError):  # the store may fail for a while
                store.objects.replace(f"{attempt}/beat", str(count).encode())

    threading.Thread(target=beat, name="beat", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Watch:
    """A driver's view of a worker's beats, timed by the driver's clock."""

    def __init__(self, store: Store, attempt: str):
        self._store, self._attempt = store, attempt
        self._seen: tuple[bytes | None, bytes | None] = (None, None)
        self._since = time.monotonic()
        self._asked = -BEAT_SECONDS

    def is_silent(self) -> bool:
        """Whether a worker has begun, and then shown no beat for ``SILENCE_SECONDS``."""
        now = time.monotonic()
        if now - self._asked < BEAT_SECONDS:
            return False
        self._asked = now
        try:
            began = self._store.objects.read(f"{self._attempt}/begun.json")
            seen = (began, self._store.objects.read(f"{self._attempt}/beat"))
        except OSError:  # while the store fails, the worker's state is unknown
            self._since = now
            return False
        if seen != self._seen or seen[0] is None:
            self._seen, self._since = seen, now
        return now - self._since > SILENCE_SECONDS


def _claim(store: Store, attempt: str, who: dict[str, Any]) -> bool:
    data = record({**who, "nonce": secrets.token_hex(8)})
    path = f"{attempt}/begun.json"
    # equal content means that a lost answer made the client create the file twice
    return store.objects.create(path, data) or store.objects.read(path) == data
