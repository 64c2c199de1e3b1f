"""Leases, with real processes that die, sleep and wake, on every kind of store."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

import pipeline.lease
from pipeline.errors import TemperError
from pipeline.lease import Holder, Lease, Leases
from pipeline.objects import LocalObjects, open_objects

FORK = multiprocessing.get_context("fork")  # as Luigi starts its workers
TTL = 1.0
BEAT = 0.2
STEP, KEY = "train", "k" * 32


def _leases(url: str, run: str = "run", ttl: float = TTL) -> Leases:
    return Leases(*open_objects(url), run, ttl=ttl, beat=BEAT)


def _taken(leases: Leases) -> Lease:
    lease = leases.acquire(STEP, KEY, done=lambda: False)
    assert lease is not None
    return lease


def _eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@dataclass
class Driver:
    """Another process, which holds the lease and reports what becomes of it."""

    process: BaseProcess
    reports: Any

    def hears(self) -> object:
        assert self.reports.poll(10)
        return self.reports.recv()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _hold(leases: Leases, elsewhere: bool, reports: Any) -> None:
    if elsewhere:
        pipeline.lease._machine = lambda: "another machine"
    lease = _taken(leases)
    reports.send(lease.epoch)
    lease.lost.wait()
    reports.send("lost")
    reports.send(lease.confirm())
    lease.release()
    reports.send("released")
    time.sleep(60)


@pytest.fixture
def start() -> Iterator[Callable[..., Driver]]:
    """Start a process that acquires the lease of objects opened here, before the fork."""
    drivers: list[Driver] = []

    def begin(leases: Leases, elsewhere: bool = False) -> Driver:
        reports, theirs = FORK.Pipe()
        process = FORK.Process(target=_hold, args=(leases, elsewhere, theirs))
        process.start()
        drivers.append(Driver(process, reports))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.process.kill()
        driver.process.join()


# --- taking turns --------------------------------------------------------------------------------


def test_a_second_driver_waits_and_gets_the_lease_on_release(store_url: str) -> None:
    first, second = _leases(store_url, "first"), _leases(store_url, "second")
    lease = _taken(first)
    told: list[Holder] = []
    got: list[Lease | None] = []
    thread = threading.Thread(
        target=lambda: got.append(second.acquire(STEP, KEY, lambda: False, told.append))
    )
    thread.start()
    thread.join(1.5 * TTL)  # beats keep the lease for longer than it lives without
    assert thread.is_alive()
    assert lease.confirm()
    lease.release()
    thread.join(10)
    assert [holder.run for holder in told] == ["first"]
    assert told[0].pid == os.getpid()
    assert got[0] is not None
    assert got[0].epoch == 0
    assert not lease.lost.is_set()
    assert not lease.confirm()
    assert got[0].confirm()
    got[0].release()


def test_waiting_ends_when_another_driver_has_made_it(tmp_path) -> None:
    leases = _leases(str(tmp_path))
    made = threading.Event()
    with leases.held(STEP, KEY, made.is_set) as lease:
        assert lease is not None
        threading.Timer(0.5, made.set).start()
        with leases.held(STEP, KEY, made.is_set) as none:
            assert none is None
        assert lease.confirm()


def _take_turns(leases: Leases, root: str, turns) -> None:
    for _ in range(3):
        with leases.held(STEP, KEY, lambda: False) as lease:
            assert lease is not None
            objects = leases._objects
            turns.put(objects.create(f"{root}/inside", b""))
            time.sleep(0.01)
            objects.remove(f"{root}/inside")


def test_of_many_processes_one_at_a_time_holds_the_lease(store_url: str) -> None:
    leases, turns = _leases(store_url, ttl=30), FORK.Queue()
    root = open_objects(store_url)[1]
    processes = [FORK.Process(target=_take_turns, args=(leases, root, turns)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [turns.get(timeout=30) for _ in range(12)] == [True] * 12
    for process in processes:
        process.join()
    assert leases.holders(STEP) == {}


def test_leases_of_different_artifacts_do_not_meet(tmp_path) -> None:
    leases = _leases(str(tmp_path))
    _taken(leases).release()
    with leases.held(STEP, KEY, lambda: False), leases.held(STEP, "other", lambda: True) as other:
        assert other is not None


# --- holders that die or sleep -------------------------------------------------------------------


def test_a_holder_that_died_on_this_machine_is_replaced_at_once(store_url: str, start) -> None:
    leases = _leases(store_url, ttl=60)
    driver = start(leases)
    assert driver.hears() == 0
    assert set(leases.holders(STEP)) == {KEY}
    driver.signal(signal.SIGKILL)
    assert _eventually(lambda: leases.holders(STEP) == {})
    before = time.monotonic()
    with leases.held(STEP, KEY, lambda: False) as lease:
        assert lease is not None
        assert lease.epoch == 0  # nobody is left to write into its scratch
    assert time.monotonic() - before < 5


def test_a_holder_that_died_elsewhere_is_replaced_when_its_time_is_over(tmp_path, start) -> None:
    leases = _leases(str(tmp_path))
    driver = start(leases, elsewhere=True)
    assert driver.hears() == 0
    driver.signal(signal.SIGKILL)
    before = time.monotonic()
    lease = _taken(leases)
    assert TTL - BEAT < time.monotonic() - before < 3 * TTL
    assert lease.epoch == 1
    lease.release()
    lease = _taken(leases)
    assert lease.epoch == 1  # the first holder may still write into the scratch of epoch 0
    lease.release()


def test_a_holder_that_slept_too_long_knows_it_and_disturbs_nobody(store_url: str, start) -> None:
    leases = _leases(store_url, "second")
    driver = start(leases)
    assert driver.hears() == 0
    driver.signal(signal.SIGSTOP)
    lease = _taken(leases)
    assert lease.epoch == 1
    driver.signal(signal.SIGCONT)
    assert [driver.hears() for _ in range(3)] == ["lost", False, "released"]
    assert lease.confirm()
    assert leases.holders(STEP)[KEY].pid == os.getpid()
    lease.release()


def test_a_holder_that_slept_does_not_revive_a_lease_that_was_done_with(tmp_path, start) -> None:
    leases = _leases(str(tmp_path))
    driver = start(leases)
    driver.hears()
    driver.signal(signal.SIGSTOP)
    time.sleep(1.5 * TTL)
    shutil.rmtree(tmp_path / "leases")
    driver.signal(signal.SIGCONT)
    assert [driver.hears() for _ in range(3)] == ["lost", False, "released"]
    assert open_objects(str(tmp_path))[0].sizes(str(tmp_path)) == {}


def test_a_machine_that_was_suspended_asks_nobody(tmp_path) -> None:
    leases = _leases(str(tmp_path))
    lease = _taken(leases)
    monotonic, boot = lease._renewed
    shutil.rmtree(tmp_path / "leases")
    lease._renewed = monotonic, boot - TTL  # only the second clock counts a suspension
    assert not lease.confirm()
    assert lease.lost.is_set()
    assert open_objects(str(tmp_path))[0].sizes(str(tmp_path)) == {}


def test_of_many_that_find_a_lease_over_one_takes_it(store_url: str, start) -> None:
    driver = start(_leases(store_url), elsewhere=True)
    driver.hears()
    driver.signal(signal.SIGKILL)
    made, got = threading.Event(), []

    def contend(number: int) -> None:
        lease = _leases(store_url, f"run {number}").acquire(STEP, KEY, made.is_set)
        if lease is not None:
            got.append(lease)
            time.sleep(2 * BEAT)
            assert lease.confirm()
            made.set()
            lease.release()

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [lease.epoch for lease in got] == [1]
    assert not got[0].lost.is_set()


def _be_interrupted(leases: Leases, reports: Any) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        leases.acquire(STEP, KEY, lambda: False, lambda _: reports.send("waiting"))
    except KeyboardInterrupt:
        reports.send("interrupted")


def test_who_waits_can_be_interrupted(store_url: str) -> None:
    leases = _leases(store_url)
    lease = _taken(leases)
    reports, theirs = FORK.Pipe()
    driver = Driver(FORK.Process(target=_be_interrupted, args=(leases, theirs)), reports)
    driver.process.start()
    assert driver.hears() == "waiting"
    driver.signal(signal.SIGINT)
    assert driver.hears() == "interrupted"
    driver.process.join(10)
    assert driver.process.exitcode == 0
    assert lease.confirm()
    lease.release()


# --- stores that fail ----------------------------------------------------------------------------


class FaultyObjects(LocalObjects):
    """A store whose requests fail, hang, or are sent twice, when told to."""

    failing = False
    hanging = False
    answers_lost = False

    def create(self, path: str, data: bytes) -> bool:
        self._suffer()
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


def test_a_store_that_is_away_for_a_moment_costs_no_lease(faulty: FaultyObjects, tmp_path) -> None:
    lease = _taken(_leases_of(faulty, tmp_path))
    faulty.failing = True
    threading.Timer(TTL / 2, lambda: setattr(faulty, "failing", False)).start()
    assert lease.confirm()  # waits until it is back
    assert not faulty.failing
    faulty.failing = True
    time.sleep(TTL / 2)
    faulty.failing = False
    time.sleep(TTL)
    assert lease.confirm()
    lease.release()


@pytest.mark.parametrize("fault", ["failing", "hanging"])
def test_a_store_that_is_away_for_long_costs_the_lease(
    fault: str, faulty: FaultyObjects, tmp_path
) -> None:
    lease = _taken(_leases_of(faulty, tmp_path))
    setattr(faulty, fault, True)
    before = time.monotonic()
    assert lease.lost.wait(5 * TTL)
    assert TTL - 2 * BEAT < time.monotonic() - before < 2 * TTL
    assert not lease.confirm()
    lease.release()
    setattr(faulty, fault, False)
    other = _taken(_leases(str(tmp_path)))
    assert other.epoch == 1
    other.release()


def test_who_waits_forgives_a_store_that_is_away_for_a_moment(
    faulty: FaultyObjects, tmp_path
) -> None:
    lease = _taken(_leases(str(tmp_path)))
    got = []

    def wait() -> None:
        with _leases_of(faulty, tmp_path).held(STEP, KEY, lambda: False) as second:
            got.append(second)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(2 * BEAT)
    faulty.failing = True
    time.sleep(TTL / 2)
    faulty.failing = False
    lease.release()
    thread.join(10)
    assert got[0] is not None


def test_a_store_that_was_never_there_is_an_error_at_once(faulty: FaultyObjects, tmp_path) -> None:
    faulty.failing = True
    with pytest.raises(OSError, match="the store is away"):
        _leases_of(faulty, tmp_path).acquire(STEP, KEY, lambda: False)


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


def test_holders_are_named_for_people(store_url: str) -> None:
    run = "20261101T000000-abcdef"
    leases = Leases(*open_objects(store_url), run, ttl=240.0, beat=60.0)  # no beat meanwhile
    assert leases.holders(STEP) == {}
    with leases.held(STEP, KEY, lambda: False), leases.held("prepare", "other", lambda: False):
        holder = leases.holders(STEP)[KEY]
        assert (holder.run, holder.pid) == ("20261101T000000-abcdef", os.getpid())
        assert holder.since.endswith("+00:00")
        assert set(leases.holders("prepare")) == {"other"}
    assert leases.holders(STEP) == {}
    objects, root = open_objects(store_url)
    left = ["prepare/other/00000002.json", f"{STEP}/{KEY}/00000002.json"]
    assert list(objects.sizes(f"{root}/leases")) == left


def test_a_beat_costs_one_listing_on_local_disk(tmp_path) -> None:
    objects = CountingObjects(open_objects(str(tmp_path))[0].fs)
    with Leases(objects, str(tmp_path), "run").held(STEP, KEY, lambda: False) as lease:
        assert lease is not None
        before = objects.requests
        assert lease.confirm()
        assert objects.requests == before + 1


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


def test_a_folder_where_a_lease_keeps_its_state_is_named_with_advice(tmp_path) -> None:
    folder = tmp_path / "leases" / STEP / KEY / "00000001.json"
    folder.mkdir(parents=True)
    with pytest.raises(TemperError, match=rf"{folder} is a folder where .* delete it"):
        _leases(str(tmp_path)).acquire(STEP, KEY, lambda: False)
