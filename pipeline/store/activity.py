"""What goes on in a store: leases that are held, and every try at making an artifact.

Each is found by one listing of the whole store, and one request for each lease that is held.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.errors import TemperError
from pipeline.store.layout import Store, name_by_time
from pipeline.store.lease import RELEASED_BYTES, Holder, Leases, chains, number_of
from pipeline.store.stored import is_attempt, is_key, is_step


@dataclass(frozen=True)
class Lease:
    """The lease of one key. ``holder`` is ``None`` when it was released."""

    step: str
    key: str
    holder: Holder | None

    @property
    def is_held(self) -> bool:
        """False only if it is known that nobody holds it: of a process on another machine, only
        who waits for it finds out that it is gone."""
        return self.holder is not None and not self.holder.is_gone()

    @property
    def who(self) -> str:
        """Its holder, in words."""
        if self.holder is None:
            return "nobody"
        return f"{self.holder.host} (pid {self.holder.pid}, run {self.holder.run})"


@dataclass(frozen=True)
class Attempt:
    """One try at making an artifact.

    Attributes:
        size: bytes of all that it left.
        content: bytes of that which are the artifact's files.
    """

    step: str
    key: str
    name: str
    size: int
    content: int

    @property
    def folder(self) -> str:
        """Its path below the store's root."""
        return f"attempts/{self.step}/{self.key}/{self.name}"


def leases(store: Store) -> list[Lease]:
    """Every lease in the store, held or not.

    Raises:
        TemperError: a lease's record is damaged.
    """
    found = []
    for path, chain in chains(store.objects, f"{store.root}/leases").items():
        step, _, key = path.partition("/")
        if is_step(step) and is_key(key):  # else it is somebody else's
            found.append(Lease(step, key, None if chain is None else chain.look().holder))
    return sorted(found, key=lambda lease: (lease.step, lease.key))


def holding_runs(found: Iterable[Lease]) -> frozenset[str]:
    """The names of the runs that hold any of these leases."""
    return frozenset(lease.holder.run for lease in found if lease.holder and lease.is_held)


def attempts(store: Store, step: str = "") -> list[Attempt]:
    """Every attempt, of one step or of all, oldest first."""
    prefix = f"{step}/" if step else ""
    sizes: dict[tuple[str, str, str], int] = {}
    contents: dict[tuple[str, str, str], int] = {}
    for path, size in store.objects.sizes(f"{store.root}/attempts/{step}".rstrip("/")).items():
        parts = f"{prefix}{path}".split("/")
        if len(parts) > 3 and _is_place(*parts[:3]):
            place = (parts[0], parts[1], parts[2])
            sizes[place] = sizes.get(place, 0) + size
            contents[place] = contents.get(place, 0) + (size if parts[3] == "content" else 0)
    found = [Attempt(*place, size, contents[place]) for place, size in sizes.items()]
    return sorted(found, key=lambda attempt: attempt.name)


def _is_place(step: str, key: str, attempt: str) -> bool:
    return is_step(step) and is_key(key) and is_attempt(attempt)


@contextlib.contextmanager
def alone_with(store: Store, step: str, key: str, purpose: str) -> Iterator[bool]:
    """Hold the lease of a key, so that no driver begins with it meanwhile.

    Args:
        purpose: what drivers that wait are told.

    Yields:
        False if another process holds it: then hands off.

    Raises:
        TemperError: the store cannot be written.
    """
    ours = Leases(store.objects, store.root, run=purpose)
    with ours.held(step, key, done=lambda: True) as lease:
        if lease is None:
            _require_writable(store)  # who waits for a lease takes a failure for one that passes
        yield lease is not None


def forget_released(store: Store, step: str, key: str) -> bool:
    """Remove what a released lease left behind. False if it is not released, and stays.

    Only the objects that were listed with the release are removed: a process that takes the lease
    at the same moment goes on after them, as it would have removed them itself.
    """
    folder = f"{store.root}/leases/{step}/{key}"
    entries = [e for e in store.objects.list(folder) if number_of(e.name) is not None]
    if entries and entries[-1].size > RELEASED_BYTES:
        return False
    for entry in entries:
        store.objects.remove(f"{folder}/{entry.name}")
    remove_if_empty(store, folder)
    return True


def remove_if_empty(store: Store, folder: str) -> None:
    """An object store has no empty folders; a disk does."""
    if store.is_local:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def _require_writable(store: Store) -> None:
    probe = f"{store.root}/leases/.{name_by_time(time.time())}"
    try:
        store.objects.replace(probe, b"can this be written?")
        store.objects.remove(probe)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TemperError(f"the store {store.url} cannot be written: {reason}") from error
