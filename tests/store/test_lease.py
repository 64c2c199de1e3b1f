"""Leases, with real processes that die, sleep and wake, on every kind of store.

Time passes for leases when a test says so, in all of its processes: so none can be too slow.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import fresh_processes
import pytest
from clocks import SharedClock
from waiting import HANGS_SECONDS, is_stopped, wait_until

import pipeline.store.lease
from pipeline.base import processes
from pipeline.base.errors import TemperError
from pipeline.store.lease import Holder, Lease, Leases
from pipeline.store.objects import LocalObjects, open_objects

TTL = HANGS_SECONDS
"""By the clock of the test; a request that takes so long in real time hangs."""
BEAT = 0.1
"""In real seconds."""
STEP, KEY = "train", "k" * 32


@pytest.fixture(autouse=True)
def clock(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> SharedClock:
    clock = SharedClock(tmp_path_factory.mktemp("clock") / "now")
    monkeypatch.setattr(pipeline.store.lease, "time", clock)
    return clock


def _leases(url: str, run: str = "run", ttl: float = TTL, beat: float = BEAT) -> Leases:
    return Leases(*open_objects(url), run, ttl=ttl, beat=beat)


def _taken(leases: Leases) -> Lease:
    lease = leases.acquire(STEP, KEY, done=lambda: False)
    assert lease is not None
    return lease


def _let_beat(leases: Leases, clock: SharedClock, seconds: float) -> None:
    """Time passes no faster than the holder beats."""
    chain = leases._chain(STEP, KEY)
    for _ in range(round(4 * seconds / TTL)):
        before = chain.look().number
        clock.advance(TTL / 4)
        wait_until(lambda: chain.look().number > before + 1, "the holder beats")  # noqa: B023


class Waiter:
    """A thread that wants the lease."""

    def __init__(self, leases: Leases):
        self.told: list[Holder] = []
        self.got: list[Lease | None] = []
        self._leases, self._looks = leases, 0
        self._thread = threading.Thread(target=self._acquire, daemon=True)
        self._thread.start()
        wait_until(lambda: self.told, "it finds who holds the lease")

    def is_waiting(self) -> bool:
        """Whether it has not got the lease, although it has looked again."""
        before = self._looks
        wait_until(lambda: self.got or self._looks > before + 1, "it looks again")
        return not self.got

    def lease(self) -> Lease:
        """What it gets."""
        self._thread.join(HANGS_SECONDS)
        assert self.got
        assert self.got[0] is not None
        return self.got[0]

    def _acquire(self) -> None:
        self.got.append(self._leases.acquire(STEP, KEY, self._look, self.told.append))

    def _look(self) -> bool:
        self._looks += 1
        return False


def _taken_over(leases: Leases, clock: SharedClock) -> Lease:
    """The lease, after its holder's time is over."""
    waiter = Waiter(leases)
    clock.advance(1.1 * TTL)
    return waiter.lease()


@dataclass
class Driver:
    """Another process, which holds the lease and reports what becomes of it."""

    process: BaseProcess
    reports: Any

    def hears(self) -> object:
        assert self.reports.poll(HANGS_SECONDS)
        return self.reports.recv()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(pid))

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _hold(url: str, clock: SharedClock, elsewhere: bool, beat: float, reports: Any) -> None:
    pipeline.store.lease.time = clock  # type: ignore[assignment]
    if elsewhere:
        pipeline.store.lease._machine = lambda: "another machine"
    lease = _taken(_leases(url, beat=beat))
    reports.send(lease.epoch)
    lease.lost.wait()
    reports.send("lost")
    reports.send(lease.confirm())
    lease.release()
    reports.send("released")
    threading.Event().wait()


@pytest.fixture
def start(clock: SharedClock) -> Iterator[Callable[..., Driver]]:
    """Start a process that acquires the lease of a store."""
    drivers: list[Driver] = []

    def begin(url: str, elsewhere: bool = False, beat: float = BEAT) -> Driver:
        reports, theirs = fresh_processes.CONTEXT.Pipe()
        process = fresh_processes.start(_hold, url, clock, elsewhere, beat, theirs)
        drivers.append(Driver(process, reports))
        assert drivers[-1].hears() == 0
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.kill()


# --- taking turns --------------------------------------------------------------------------------


def test_a_second_driver_waits_and_gets_the_lease_on_release(
    store_url: str, clock: SharedClock
) -> None:
    first, second = _leases(store_url, "first"), _leases(store_url, "second")
    lease = _taken(first)
    waiter = Waiter(second)
    _let_beat(first, clock, 2 * TTL)  # beats keep the lease for longer than it lives without
    assert waiter.is_waiting()
    assert lease.confirm()
    lease.release()
    got = waiter.lease()
    assert [holder.run for holder in waiter.told] == ["first"]
    assert waiter.told[0].pid == os.getpid()
    assert got.epoch == 0
    assert not lease.lost.is_set()
    assert not lease.confirm()
    assert got.confirm()
    got.release()


def test_waiting_ends_when_another_driver_has_made_it(tmp_path: Path) -> None:
    leases = _leases(str(tmp_path))
    made = threading.Event()
    with leases.held(STEP, KEY, made.is_set) as lease:
        assert lease is not None
        threading.Timer(0.5, made.set).start()
        with leases.held(STEP, KEY, made.is_set) as none:
            assert none is None
        assert lease.confirm()


def _take_turns(leases: Leases, root: str, turns: Any) -> None:
    for _ in range(3):
        with leases.held(STEP, KEY, lambda: False) as lease:
            assert lease is not None
            objects = leases._objects
            turns.put(objects.create(f"{root}/inside", b""))
            time.sleep(0.01)
            objects.remove(f"{root}/inside")


def _fork_into_turns(url: str, turns: Any) -> None:
    """Processes that have inherited what is open, as those which Luigi starts."""
    leases = _leases(url, ttl=10 * HANGS_SECONDS)
    arguments = (leases, open_objects(url)[1], turns)
    processes = [fresh_processes.FORK.Process(target=_take_turns, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


@pytest.mark.slow
def test_of_many_processes_one_at_a_time_holds_the_lease(store_url: str) -> None:
    turns = fresh_processes.CONTEXT.Queue()
    fresh_processes.call(_fork_into_turns, store_url, turns)
    assert [turns.get(timeout=HANGS_SECONDS) for _ in range(12)] == [True] * 12
    assert _leases(store_url).holders(STEP) == {}


# --- holders that die or sleep -------------------------------------------------------------------


def test_a_holder_that_died_on_this_machine_is_replaced_at_once(
    store_url: str, start: Callable[..., Driver]
) -> None:
    """No time passes here."""
    leases = _leases(store_url)
    driver = start(store_url)
    assert set(leases.holders(STEP)) == {KEY}
    driver.kill()
    assert leases.holders(STEP) == {}
    with leases.held(STEP, KEY, lambda: False) as lease:
        assert lease is not None
        assert lease.epoch == 0  # nobody is left to write into its scratch


def test_a_holder_that_died_elsewhere_is_replaced_when_its_time_is_over(
    tmp_path: Path, start: Callable[..., Driver], clock: SharedClock
) -> None:
    start(str(tmp_path), elsewhere=True).kill()
    waiter = Waiter(_leases(str(tmp_path)))
    clock.advance(0.9 * TTL)
    assert waiter.is_waiting()
    clock.advance(0.2 * TTL)
    lease = waiter.lease()
    assert lease.epoch == 1
    lease.release()
    lease = _taken(_leases(str(tmp_path)))
    assert lease.epoch == 1  # the first holder may still write into the scratch of epoch 0
    lease.release()


def test_a_holder_that_slept_too_long_knows_it_and_disturbs_nobody(
    store_url: str, start: Callable[..., Driver], clock: SharedClock
) -> None:
    leases = _leases(store_url, "second")
    driver = start(store_url)
    driver.stop()
    lease = _taken_over(leases, clock)
    assert lease.epoch == 1
    driver.signal(signal.SIGCONT)
    assert [driver.hears() for _ in range(3)] == ["lost", False, "released"]
    assert lease.confirm()
    assert leases.holders(STEP)[KEY].pid == os.getpid()
    lease.release()


def test_a_holder_that_slept_does_not_revive_a_lease_that_was_done_with(
    tmp_path: Path, start: Callable[..., Driver], clock: SharedClock
) -> None:
    driver = start(str(tmp_path), beat=1.0)
    driver.stop()
    clock.advance(1.5 * TTL)
    shutil.rmtree(tmp_path / "leases")
    driver.signal(signal.SIGCONT)
    assert [driver.hears() for _ in range(3)] == ["lost", False, "released"]
    assert open_objects(str(tmp_path))[0].sizes(str(tmp_path)) == {}


def test_a_machine_that_was_suspended_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.store.lease, "time", time)
    ttl = 10 * HANGS_SECONDS
    lease = _taken(_leases(str(tmp_path), ttl=ttl, beat=HANGS_SECONDS))
    monotonic, boot = lease._renewed
    shutil.rmtree(tmp_path / "leases")
    lease._renewed = monotonic, boot - ttl  # only the second clock counts a suspension
    assert not lease.confirm()
    assert lease.lost.is_set()
    assert open_objects(str(tmp_path))[0].sizes(str(tmp_path)) == {}


def test_of_many_that_find_a_lease_over_one_takes_it(
    store_url: str, start: Callable[..., Driver], clock: SharedClock
) -> None:
    start(store_url, elsewhere=True).kill()
    made, got, told = threading.Event(), list[Lease](), list[Holder]()

    def contend(number: int) -> None:
        leases = _leases(store_url, f"run {number}")
        lease = leases.acquire(STEP, KEY, made.is_set, told.append)
        if lease is not None:
            got.append(lease)
            time.sleep(2 * BEAT)
            assert lease.confirm()
            made.set()
            lease.release()

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(told) == len(threads), "all know who holds the lease")
    clock.advance(1.1 * TTL)
    for thread in threads:
        thread.join(HANGS_SECONDS)
    assert [lease.epoch for lease in got] == [1]
    assert not got[0].lost.is_set()


# --- stores that fail ----------------------------------------------------------------------------


class FaultyObjects(LocalObjects):
    """A store whose requests fail, hang, or are sent twice, when told to."""

    failing = False
    hanging = False
    answers_lost = False
    full = False

    def create(self, path: str, data: bytes) -> bool:
        self._suffer()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        created = super().create(path, data)
        return super().create(path, data) if self.answers_lost else created

    def read(self, path: str) -> bytes | None:
        self._suffer()
        return super().read(path)

    def _listing(self, folder: str, recursive: bool):
        self._suffer()
        return super()._listing(folder, recursive)

    def _suffer(self) -> None:
        while self.hanging:
            time.sleep(0.02)
        if self.failing:
            raise OSError("the store is away")


@pytest.fixture
def faulty(tmp_path) -> FaultyObjects:
    return FaultyObjects(open_objects(str(tmp_path))[0].fs)


def _leases_of(objects: LocalObjects, tmp_path) -> Leases:
    return Leases(objects, str(tmp_path), "run", ttl=TTL, beat=BEAT)


def test_a_store_that_is_away_for_a_moment_costs_no_lease(
    faulty: FaultyObjects, tmp_path: Path, clock: SharedClock
) -> None:
    leases = _leases_of(faulty, tmp_path)
    lease = _taken(leases)
    faulty.failing = True
    threading.Timer(2 * BEAT, lambda: setattr(faulty, "failing", False)).start()
    assert lease.confirm()  # waits until it is back
    assert not faulty.failing
    faulty.failing = True
    clock.advance(TTL / 2)
    time.sleep(2 * BEAT)
    faulty.failing = False
    wait_until(lease.confirm)
    _let_beat(leases, clock, TTL)
    assert lease.confirm()
    lease.release()


@pytest.mark.parametrize("fault", ["failing", "hanging"])
def test_a_store_that_is_away_for_long_costs_the_lease(
    fault: str, faulty: FaultyObjects, tmp_path: Path, clock: SharedClock
) -> None:
    lease = _taken(_leases_of(faulty, tmp_path))
    setattr(faulty, fault, True)
    clock.advance(0.9 * TTL)
    time.sleep(2 * BEAT)
    assert not lease.lost.is_set()
    clock.advance(0.2 * TTL)
    assert lease.lost.wait(HANGS_SECONDS)
    assert not lease.confirm()
    lease.release()
    setattr(faulty, fault, False)
    beats = f"lease {lease._chain.folder}"
    wait_until(lambda: all(thread.name != beats for thread in threading.enumerate()), "it gave up")
    other = _taken_over(_leases(str(tmp_path)), clock)
    assert other.epoch == 1
    other.release()


def test_who_waits_forgives_a_store_that_is_away_for_a_moment(
    faulty: FaultyObjects, tmp_path: Path, clock: SharedClock
) -> None:
    lease = _taken(_leases(str(tmp_path)))
    waiter = Waiter(_leases_of(faulty, tmp_path))
    faulty.failing = True
    time.sleep(2 * BEAT)
    faulty.failing = False
    lease.release()
    waiter.lease().release()


def test_a_request_that_was_sent_twice_does_not_lose_to_itself(
    faulty: FaultyObjects, tmp_path
) -> None:
    faulty.answers_lost = True
    leases = _leases_of(faulty, tmp_path)
    lease = leases.acquire(STEP, KEY, done=lambda: True)  # at once: it does not wait for itself
    assert lease is not None
    time.sleep(3 * BEAT)
    assert lease.confirm()
    lease.release()
    with leases.held(STEP, KEY, lambda: False) as again:
        assert again is not None
        assert again.epoch == 0


def test_a_number_created_again_after_its_removal_takes_nothing(store_url: str) -> None:
    objects, root = open_objects(store_url)
    leases = _leases(store_url)
    lease = _taken(leases)
    chain = leases._chain(STEP, KEY)
    seen = chain.look()
    assert lease.confirm()
    assert lease.confirm()
    assert not chain.extend(seen.number, b"from a process that slept since it looked")
    assert lease.confirm()
    assert leases.holders(STEP)[KEY].pid == os.getpid()
    lease.release()
    assert len(objects.sizes(f"{root}/leases")) == 1


# --- who holds what ------------------------------------------------------------------------------


class CountingObjects(LocalObjects):
    """Counts its requests."""

    requests = 0

    def read(self, path: str) -> bytes | None:
        self.requests += 1
        return super().read(path)

    def _listing(self, folder: str, recursive: bool):
        self.requests += 1
        return super()._listing(folder, recursive)


def test_released_leases_are_not_held_and_cost_no_request(tmp_path) -> None:
    leases = _leases(str(tmp_path))
    for number in range(20):
        with leases.held(STEP, f"old {number}", lambda: False):
            pass
    objects = CountingObjects(open_objects(str(tmp_path))[0].fs)
    assert _leases_of(objects, tmp_path).holders(STEP) == {}
    assert objects.requests == 1


@pytest.mark.parametrize(
    "content",
    [
        '{"not": "a lease of this version"}',
        json.dumps({**asdict(Holder("run", "", 1, "", "", "", "", beat=3, epoch=0)), "host": 5}),
    ],
)
def test_a_damaged_lease_is_named_with_advice(content: str, tmp_path) -> None:
    folder = tmp_path / "leases" / STEP / KEY
    folder.mkdir(parents=True)
    (folder / "00000003.json").write_text(content)
    leases = _leases(str(tmp_path))
    with pytest.raises(TemperError, match=r"00000003.json is damaged; delete it"):
        leases.acquire(STEP, KEY, lambda: False)
    assert leases.holders(STEP) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells states of processes")
def test_a_driver_that_was_killed_is_gone_though_nobody_has_waited_for_it() -> None:
    driver = subprocess.Popen(["sleep", "600"])
    assert processes.exists(driver.pid)
    driver.kill()
    os.waitid(os.P_PID, driver.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert not processes.exists(driver.pid)
    finally:
        driver.wait()
