"""Leases record which driver makes an artifact now, so that other drivers wait for it.

    leases/<step>/<key>/<number>.json         the highest number is the state of the lease

A lease is a chain of numbered objects. It needs only one operation of a store: create-if-absent. A
process that has seen number n as the last and wants to change the state creates n + 1. Exactly one
contender succeeds, and removes the lower numbers. A holder does so every ``BEAT`` to renew its
lease. A process that has seen no change of a chain for ``TTL``, by its own clock, may take the
lease; clocks of two machines are never compared. A holder whose last successful renewal, counted
from before its request, is ``TTL`` ago knows that its lease is lost, before any other process can
have taken it. A number can be created again after its removal, by a process that slept meanwhile.
Therefore a writer checks after its write whether its number is the highest.

Correctness does not depend on leases: if two drivers both believe that they hold a lease, they do
the work twice, and the first commit wins. If a lease is taken from a holder that may only be slow,
its ``epoch`` grows, and the new holder works in a new scratch folder. (Leases with a time to live:
Gray and Cheriton, *Leases: An Efficient Fault-Tolerant Mechanism for Distributed File Cache
Consistency*, 1989.)
"""

import contextlib
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from pipeline.base import processes
from pipeline.base.errors import TemperError
from pipeline.base.redaction import record
from pipeline.store.objects import Objects
from pipeline.store.untrusted_input import is_count, parse_json

TTL = 10.0
"""Seconds without a renewal after which the holder has lost its lease and others may take it."""
BEAT = 2.5
"""Seconds between renewals."""
LOCAL_POLL = 0.2
REMOTE_POLL = 1.0
RELEASED_BYTES = 20
"""A released lease contains only the digits of its epoch, so a listing shows it by its size."""
MOST_EPOCHS = 999_999_999
MOST_PROCESSES = 2**31 - 1
_NAME = re.compile(r"([0-9]{8}|[1-9][0-9]{8,14})\.json")
_RELEASED = re.compile(rb"[0-9]{1,9}")
TRIES = 5


@dataclass(frozen=True)
class Holder:
    """The holder of a lease: the content of the last object of its chain.

    Args:
        owner: random for every acquisition; identifies one's own record.
        machine: boot and process namespace in which ``pid`` is valid; may be empty.
        process_start: identifies the process, together with ``pid``, even if the pid is reused.
        beat: the object's number.
        epoch: how often the lease was taken from a holder that may have been alive.
        since: when it was acquired, by the holder's clock; only for display.
    """

    run: str
    host: str
    pid: int
    since: str
    owner: str
    machine: str
    process_start: str
    beat: int
    epoch: int

    def to_json(self) -> bytes:
        return record(asdict(self))

    def is_gone(self) -> bool:
        """True if the holder was a process of this machine and has ended; False if unknown."""
        if not self.machine or self.machine != _machine():
            return False
        if not processes.exists(self.pid):
            return True
        start = _process_start(self.pid)
        return start is not None and start != self.process_start


@dataclass(frozen=True)
class State:
    """The state of a chain at one moment; number 0 means that there is no chain."""

    number: int = 0
    epoch: int = 0
    holder: Holder | None = None


class Leases:
    """Takes the leases of a store for one run.

    Args:
        root: the store's root path within ``objects``.
        run: the run's name, which waiting processes see.
        ttl, beat: seconds; they must be the same for all processes that share a store.
    """

    def __init__(self, objects: Objects, root: str, run: str, ttl: float = TTL, beat: float = BEAT):
        self._objects, self._folder = objects, f"{root}/leases"
        self._run = run
        self._ttl, self._beat = ttl, beat
        self._poll = min(LOCAL_POLL if objects.is_local else REMOTE_POLL, beat)

    def acquire(
        self,
        step: str,
        key: str,
        done: Callable[[], bool],
        waiting: Callable[[Holder], None] = lambda holder: None,
    ) -> "Lease | None":
        """Take the lease of an artifact as soon as nobody holds it.

        Args:
            done: called while waiting; if it returns true, the lease is no longer needed.
            waiting: called once for every holder that is waited for.

        Returns:
            The lease, or ``None`` if ``done`` returned true.

        Raises:
            OSError: the store cannot be read or written (its disk may be full); errors after a
                success are tolerated for ``ttl``.
            TemperError: the lease's record is damaged.
        """
        wait = _Wait(self._chain(step, key), self._ttl)
        mine = self._new_holder()
        announced = {mine.owner}
        while True:
            epoch = None
            with wait.failures_tolerated():
                epoch = wait.look_for_epoch(mine.owner)
            if wait.looks > 1 and done():  # call it after the look, which may have seen a release
                return None
            if epoch is not None:
                mine = replace(mine, epoch=epoch)
                with wait.failures_tolerated():
                    if lease := self._take(wait.chain, wait.state.number, mine):
                        return lease
                    wait.well = time.monotonic()
            holder = wait.state.holder
            if holder is not None and holder.owner not in announced:
                announced.add(holder.owner)
                waiting(holder)
            time.sleep(self._poll)

    @contextlib.contextmanager
    def held(
        self,
        step: str,
        key: str,
        done: Callable[[], bool],
        waiting: Callable[[Holder], None] = lambda holder: None,
    ) -> "Iterator[Lease | None]":
        """Like :meth:`acquire`, as a context manager that releases the lease at its end."""
        lease = self.acquire(step, key, done, waiting)
        try:
            yield lease
        finally:
            if lease is not None:
                lease.release()

    def holders(self, step: str) -> dict[str, Holder]:
        """The holders of all held leases of a step, by key.

        A holder that died on another machine is included, since only a waiting process finds that
        out. It costs one listing, and two requests for each held lease.
        """
        found = {}
        for key, chain in chains(self._objects, f"{self._folder}/{step}").items():
            with contextlib.suppress(TemperError):
                found[key] = None if chain is None else chain.look().holder
        return {key: holder for key, holder in found.items() if holder and not holder.is_gone()}

    def holder(self, step: str, key: str) -> Holder | None:
        """The holder of one lease, for a listing and two requests; ``None`` if nobody holds it.
        Raise `TemperError` if its record is damaged."""
        holder = self._chain(step, key).look().holder
        return None if holder is None or holder.is_gone() else holder

    def _chain(self, step: str, key: str) -> "Chain":
        return Chain(self._objects, f"{self._folder}/{step}/{key}")

    def _new_holder(self) -> Holder:
        return Holder(
            run=self._run,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            owner=secrets.token_hex(8),
            machine=_machine(),
            process_start=_process_start(os.getpid()) or "",
            beat=0,
            epoch=0,
        )

    def _take(self, chain: "Chain", number: int, holder: Holder) -> "Lease | None":
        asked, holder = _clocks(), replace(holder, beat=number + 1)
        won = chain.extend(number, holder.to_json())
        return Lease(chain, holder, asked, self._ttl, self._beat) if won else None


class Lease:
    """A lease that this process holds and renews in a thread of its own.

    Args:
        chain: the chain, whose last object is now ``holder``.
        asked: the clocks before the request that created that object.

    Attributes:
        epoch: grows whenever the lease is taken from a holder that may be alive.
        lost: set as soon as another process may hold the lease.
        failure: the error of the last renewal, if the store has failed since.
    """

    def __init__(
        self, chain: "Chain", holder: Holder, asked: tuple[float, float], ttl: float, beat: float
    ):
        self.epoch = holder.epoch
        self.lost = threading.Event()
        self.failure: OSError | None = None
        self._over = threading.Event()  # lost or released
        self._chain, self._holder, self._renewed = chain, holder, asked
        self._ttl, self._beat = ttl, beat
        self._lock = threading.Lock()
        for work in (self._keep, self._watch):
            threading.Thread(target=work, name=f"lease {chain.folder}", daemon=True).start()

    def confirm(self) -> bool:
        """Renew the lease now. False if it is lost or was released."""
        while not self._over.is_set() and not self._renew():
            self._over.wait(self._beat / 5)
        return not self._over.is_set()

    def release(self) -> None:
        """Release the lease. A lost lease is left alone, and errors of the store are ignored."""
        if self._over.is_set():
            return
        self._over.set()
        with self._turn() as in_time, contextlib.suppress(OSError):
            if in_time:
                self._chain.extend(self._holder.beat, str(self.epoch).encode())

    def _keep(self) -> None:
        pause = self._beat
        while not self._over.wait(pause):
            pause = self._beat if self._renew() else self._beat / 5

    def _watch(self) -> None:
        """Detect that the lease is lost, even while :meth:`_keep` hangs in a request."""
        while (left := self._left()) > 0:
            if self._over.wait(min(left, self._beat)):
                return
        self._lose()

    def _renew(self) -> bool:
        """Renew once. False after an error that may be temporary."""
        with self._turn() as in_time:
            if self._over.is_set():
                return True
            asked = _clocks()
            following = replace(self._holder, beat=self._holder.beat + 1)
            try:
                # A holder that wakes up too late must not extend the chain: another process may
                # have taken the lease, released and removed it, so the extension would succeed.
                won = in_time and self._chain.extend(self._holder.beat, following.to_json())
            except OSError as error:
                self.failure = error
                return False
            if in_time:
                self.failure = None
            if won and self._left() > 0:
                self._holder, self._renewed = following, asked
            else:
                self._lose()
        return True

    def _lose(self) -> None:
        self.lost.set()
        self._over.set()

    def _left(self) -> float:
        """Seconds until the lease is lost if no renewal succeeds."""
        passed = max(now - then for now, then in zip(_clocks(), self._renewed, strict=True))
        return self._ttl - passed

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Lock the chain within this process; yields ``False`` if the lease ran out before."""
        alone = self._lock.acquire(timeout=max(self._left(), 0))
        try:
            yield alone and self._left() > 0
        finally:
            if alone:
                self._lock.release()


@dataclass(frozen=True)
class Chain:
    """The numbered objects of one lease."""

    objects: Objects
    folder: str

    def look(self, known: State | None = None) -> State:
        """The present state; it costs only one listing if the state is `known`. Raise `TemperError`
        if the record is damaged."""
        for _ in range(TRIES):
            number = max(self._numbers(), default=0)
            if known is not None and number == known.number:
                return known
            if number == 0:
                return State()
            data = self.objects.read(self._path(number))
            if data is not None:  # otherwise the creator of the next object has removed it
                return self._parse(number, data)
        raise OSError(f"the lease {self.objects.url_of(self.folder)} does not hold still")

    def extend(self, number: int, data: bytes) -> bool:
        """Add an object after ``number``. False if another process has done so."""
        path = self._path(number + 1)
        if not self.objects.create(path, data):
            found = self.objects.read(path)
            if found is None:
                self._require_no_folder(path)
            if found != data:
                return False  # equal data means that a lost answer made the client send twice
        others = [other for other in self._numbers() if other != number + 1]
        won = max(others, default=0) <= number
        with contextlib.suppress(OSError):  # a later renewal removes leftovers
            for other in others if won else [number + 1]:
                self.objects.remove(self._path(other))
        return won

    def _numbers(self) -> list[int]:
        numbers = (number_of(entry.name) for entry in self.objects.list(self.folder))
        return [number for number in numbers if number is not None]

    def _require_no_folder(self, path: str) -> None:
        """Refuse a folder in the place of an object."""
        if path.rpartition("/")[2] in self.objects.folders(self.folder):
            url = self.objects.url_of(path)
            raise TemperError(f"{url} is a folder where a lease keeps its state; delete it")

    def _path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.json"

    def _parse(self, number: int, data: bytes) -> State:
        try:
            if len(data) <= RELEASED_BYTES:
                if not _RELEASED.fullmatch(data):
                    raise ValueError("its epoch is no number")
                return State(number, int(data))
            holder = Holder(**parse_json(data))
            for field in fields(holder):
                if type(getattr(holder, field.name)) is not field.type:
                    raise TypeError(f"{field.name} is of another type")
            if holder.pid <= 0 or not is_count(holder.pid, MOST_PROCESSES):
                raise ValueError("its process is none")
            if holder.beat != number or not is_count(holder.epoch, MOST_EPOCHS):
                raise ValueError("its beat or its epoch is none of this lease")
            return State(number, holder.epoch, holder)
        except (ValueError, TypeError) as error:
            path = self.objects.url_of(self._path(number))
            raise TemperError(f"the lease {path} is damaged; delete it and run again") from error


@dataclass
class _Wait:
    """A process that waits for a lease: the chain's last state, and since when it is unchanged.
    ``well`` is when the store last let it look, and take the lease if that was due (``is_due``)."""

    chain: Chain
    ttl: float
    state: State = State()
    unmoved_since: float = -math.inf
    well: float = -math.inf
    is_due: bool = False
    looks: int = 0

    def look_for_epoch(self, owner: str) -> int | None:
        """Look again; return the epoch in which ``owner`` may take the lease, or ``None``."""
        state = self.chain.look(self.state)
        now, self.looks = time.monotonic(), self.looks + 1
        if state is not self.state:
            self.state, self.unmoved_since = state, now
        holder = state.holder
        may_take, epoch = holder is None or holder.owner == owner or holder.is_gone(), state.epoch
        if not may_take and now - self.unmoved_since > self.ttl:
            may_take, epoch = True, epoch + 1
        if not may_take or not self.is_due:
            self.well = now
        self.is_due = may_take
        return epoch if may_take else None

    @contextlib.contextmanager
    def failures_tolerated(self) -> Iterator[None]:
        """Ignore errors of the store for ``ttl`` after the store was last well."""
        try:
            yield
        except OSError:
            if time.monotonic() - self.well > self.ttl:
                raise


def chains(objects: Objects, folder: str) -> dict[str, Chain | None]:
    """The chain of each lease below a folder, ``None`` once released; it costs one listing."""
    last: dict[str, tuple[int, int]] = {}
    for path, size in objects.sizes(folder).items():
        place, _, name = path.rpartition("/")
        if (number := number_of(name)) is not None:
            last[place] = max(last.get(place, (0, 0)), (number, size))
    return {
        place: Chain(objects, f"{folder}/{place}") if size > RELEASED_BYTES else None
        for place, (_, size) in last.items()
    }


def number_of(name: str) -> int | None:
    """The number of an object of a chain; ``None`` for any other name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def _clocks() -> tuple[float, float]:
    """Two clocks in seconds: the first stops while the machine is suspended."""
    monotonic = time.monotonic()
    if hasattr(time, "CLOCK_BOOTTIME"):
        return monotonic, time.clock_gettime(time.CLOCK_BOOTTIME)
    return monotonic, monotonic


def _machine() -> str:
    """Identifies the scope of process ids: this boot and namespace; only on Linux."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """The start of a process in ticks since boot; "" if it has ended, ``None`` if unknown."""
    if not (found := processes.status(pid)):
        return None
    return "" if processes.has_ended(found) else found[19]
