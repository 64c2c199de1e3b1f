"""Activity in a store: leases that are held, and all attempts.

Each function lists the whole store once; finding leases also costs one request for each held lease.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.base.errors import TemperError
from pipeline.store.layout import Store, name_by_time
from pipeline.store.lease import RELEASED_BYTES, Holder, Leases, chains, number_of
from pipeline.store.untrusted_input import is_attempt, is_key, is_step
from pipeline.uncaught.user_errors import NO_ROOM


@dataclass(frozen=True)
class Lease:
    """The lease of one key. ``holder`` is ``None`` if it was released."""

    step: str
    key: str
    holder: Holder | None

    @property
    def is_held(self) -> bool:
        """False only if certainly nobody holds it; a death on another machine is unknown."""
        return self.holder is not None and not self.holder.is_gone()

    @property
    def who(self) -> str:
        """The holder, in words."""
        if self.holder is None:
            return "nobody"
        return f"{self.holder.host} (pid {self.holder.pid}, run {self.holder.run})"


@dataclass(frozen=True)
class Attempt:
    """One attempt at making an artifact.

    Attributes:
        size: bytes of all its files.
        content: bytes of the artifact's files among them.
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
        if is_step(step) and is_key(key):  # other files were not made by Temper
            found.append(Lease(step, key, None if chain is None else chain.look().holder))
    return sorted(found, key=lambda lease: (lease.step, lease.key))


def holding_runs(found: Iterable[Lease]) -> frozenset[str]:
    """The names of the runs that hold one of these leases."""
    return frozenset(lease.holder.run for lease in found if lease.holder and lease.is_held)


def attempts(store: Store, step: str = "") -> list[Attempt]:
    """Every attempt, of one step or of all, oldest first."""
    prefix = f"{step}/" if step else ""
    sizes: Counter[tuple[str, str, str]] = Counter()
    contents: Counter[tuple[str, str, str]] = Counter()
    for path, size in store.objects.sizes(f"{store.root}/attempts/{step}".rstrip("/")).items():
        parts = f"{prefix}{path}".split("/")
        if len(parts) > 3 and is_step(parts[0]) and is_key(parts[1]) and is_attempt(parts[2]):
            place = (parts[0], parts[1], parts[2])
            sizes[place] += size
            contents[place] += size if parts[3] == "content" else 0
    found = [Attempt(*place, size, contents[place]) for place, size in sizes.items()]
    return sorted(found, key=lambda attempt: attempt.name)


@contextlib.contextmanager
def alone_with(store: Store, step: str, key: str, purpose: str) -> Iterator[bool]:
    """Hold the lease of a key, so that no driver begins with the key meanwhile.

    Args:
        purpose: shown to drivers that wait.

    Yields:
        False if another process holds the lease; then nothing must be changed.

    Raises:
        TemperError: the store cannot be written.
    """
    ours = Leases(store.objects, store.root, run=purpose)
    with ours.held(step, key, done=lambda: True) as lease:
        if lease is None:
            _require_writable(store)  # otherwise a wait for the lease would hide this error
        yield lease is not None


def forget_released(store: Store, step: str, key: str) -> bool:
    """Remove the objects of a released lease. Return false, and keep them, if it is not released.

    Only the objects that were listed with the release are removed. A process that takes the lease
    at the same moment adds an object after them, and would have removed them itself.
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
    """Remove an empty folder from a disk; object stores have none."""
    if store.is_local:
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def make_room(store: Store) -> bool:
    """Whether the disk of a store lacks the room for a lease. If so, the indexes of the catalog are
    deleted, since they only save time: what deletes more then has the room to begin.

    Raises:
        TemperError: the store cannot be written for another reason.
    """
    try:
        _require_writable(store)
    except TemperError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in NO_ROOM:
            raise
        store.objects.remove_tree(f"{store.root}/index")
        return True
    return False


def _require_writable(store: Store) -> None:
    """
    Raises:
        TemperError: the store cannot be written.
    """
    probe = f"{store.root}/leases/.{name_by_time(time.time())}"
    try:
        store.objects.replace(probe, b"can this be written?")
        store.objects.remove(probe)
    except OSError as error:
        raise unwritable(store, error) from error


def unwritable(store: Store, error: OSError) -> TemperError:
    """The error for the user whose store refuses a change."""
    remedy = "; make room on its disk" if error.errno in NO_ROOM else ""
    reason = error.strerror or error
    return TemperError(f"the store {store.url} cannot be written: {reason}{remedy}")
