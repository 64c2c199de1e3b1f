"""Which process runs an attempt that outlives its driver, and whether it is alive.

    attempts/<step>/<key>/<attempt>/begun.json   by whom it was begun, or given up
                                    beat         replaced while a worker lives

An attempt is begun at most once: the worker creates ``begun.json`` before it does anything else,
and a driver that no longer believes in a job creates it in the worker's place. So a job that an
engine starts late, or a second time, finds that its time is over and touches nothing. On several
nodes the first begins, and the others see that it was the first of the same job.
"""

import contextlib
import json
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

from pipeline.store.layout import Store
from pipeline.store.stored import is_seconds, parse_json

BEAT_SECONDS = 5.0
JOIN_SECONDS = 0.5
SILENCE_SECONDS = 60.0
"""After so long without a beat a worker is taken for dead, whatever the engine says."""


def begin(store: Store, attempt: str, master: str = "") -> bool:
    """Begin an attempt as its worker. False if it was begun or given up.

    Args:
        master: where the first of several nodes is reached, which no other job has the same.
    """
    who = {"host": platform.node(), "pid": os.getpid(), "master": master, "time": time.time()}
    return _claim(store, attempt, who)


def join(store: Store, attempt: str, master: str) -> bool:
    """Wait, on another node, until the first has begun. False if that was of another job, or the
    attempt was given up."""
    while (who := begun(store, attempt)) is None:
        time.sleep(JOIN_SECONDS)
    return who.get("master") == master


def give_up(store: Store, attempt: str) -> bool:
    """Take care that no worker begins an attempt. False if one has."""
    return _claim(store, attempt, {"given_up": True, "time": time.time()})


def begun(store: Store, attempt: str) -> dict[str, Any] | None:
    """By whom an attempt was begun, and when; ``None`` if it was not. Of a damaged note it is only
    known that there is one."""
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
    """Show that a worker is alive while the block runs."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(BEAT_SECONDS):
            count += 1
            with contextlib.suppress(OSError):  # a store that fails for a while
                store.objects.replace(f"{attempt}/beat", str(count).encode())

    threading.Thread(target=beat, name="beat", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Watch:
    """A driver's view of a worker's beats, by its own clock."""

    def __init__(self, store: Store, attempt: str):
        self._store, self._attempt = store, attempt
        self._seen: tuple[bytes | None, bytes | None] = (None, None)
        self._since = time.monotonic()
        self._asked = -BEAT_SECONDS

    def is_silent(self) -> bool:
        """Whether a worker began and has not shown itself for long."""
        now = time.monotonic()
        if now - self._asked < BEAT_SECONDS:
            return False
        self._asked = now
        try:
            began = self._store.objects.read(f"{self._attempt}/begun.json")
            seen = (began, self._store.objects.read(f"{self._attempt}/beat"))
        except OSError:  # nothing is known of the worker while the store fails
            self._since = now
            return False
        if seen != self._seen or seen[0] is None:
            self._seen, self._since = seen, now
        return now - self._since > SILENCE_SECONDS


def _claim(store: Store, attempt: str, who: dict[str, Any]) -> bool:
    data = json.dumps({**who, "nonce": secrets.token_hex(8)}).encode()
    path = f"{attempt}/begun.json"
    # had it been our content: a create whose answer was lost, sent again
    return store.objects.create(path, data) or store.objects.read(path) == data
