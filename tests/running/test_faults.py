"""What the store holds when things go wrong: never a wrong result, and never a dead end.

The file system fails, drivers are killed, stopped and woken. Stores are real, and so are drivers
and workers wherever a process matters.
"""

import contextlib
import errno
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import Event
from typing import IO, Any

import blake3
import drivers
import fsspec
import pytest
from clocks import SharedClock
from contract_driver import COUNTED, TTL, WatchedLeases, roots
from numbers_lab import workers
from places import TESTS
from rich.console import Console
from toy_steps import Times, add, journal_lines, multiply, numbers, parity
from waiting import HANGS_SECONDS, held, hold, is_stopped, let_go, wait_until
from workers_here import InThisProcess

import pipeline.store.lease
from pipeline import File, Step, Store, TemperError, look_again, run
from pipeline.launchers.placement import Placement
from pipeline.plan.planning import make_plan, topological
from pipeline.plan.resolver import Resolver
from pipeline.running import attempts
from pipeline.running.attempts import Executor, InputLost
from pipeline.store.catalog import Catalog
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest
from pipeline.store.objects import Objects
from pipeline.wire.launcher import Ended, Task
from pipeline.wire.spec import Report
from pipeline.worker import attempt as worker

RICH_IN_FAULTS = (0, 11, 12, 16)
"""Seeds with which operations of every driver fail often."""
FAILING = ("read", "create", "replace", "remove", "remove_tree", "folders", "sizes", "list")
COPYING = ("upload", "download", "get", "put")


# --- a file system that fails --------------------------------------------------------------------


@dataclass
class Faults:
    """Decides by chance, from a seed, which operations fail, and how."""

    chance: random.Random
    rate: float = 0.03
    happened: int = 0

    def before(self) -> None:
        """A delay; or a failure, with nothing done.

        Raises:
            OSError: the operation is to fail.
        """
        if self.chance.random() < self.rate:
            time.sleep(self.chance.random() * 0.02)
        if self.chance.random() < self.rate:
            self.happened += 1
            raise OSError("the request failed")

    def after(self) -> None:
        """
        Raises:
            OSError: the operation is done, and its answer is lost.
        """
        if self.chance.random() < self.rate:
            self.happened += 1
            raise OSError("the answer got lost")


class FaultyObjects:
    """A file system with faults before and after its operations, and copies that stop half way."""

    def __init__(self, objects: Objects, faults: Faults):
        self._objects, self._faults = objects, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if name not in (*FAILING, *COPYING):
            return found

        def operation(*args: Any) -> Any:
            self._faults.before()
            if name == "upload" and self._faults.chance.random() < 4 * self._faults.rate:
                self._upload_half(*args)
            answer = found(*args)
            self._faults.after()
            return answer

        return operation

    def _upload_half(self, local: Path, folder: str) -> None:
        for path in sorted(p for p in local.rglob("*") if p.is_file())[:1]:
            data = path.read_bytes()
            self._objects.replace(f"{folder}/{path.relative_to(local)}", data[: len(data) // 2])
        raise OSError("the connection broke")


class SharedMemory(Objects):
    """Objects in the memory of this process: a remote store whose ``create`` one writer wins."""

    _turn = threading.Lock()

    def create(self, path: str, data: bytes) -> bool:
        with self._turn:
            return super().create(path, data)


def open_store(url: str, faults: Faults | None) -> Store:
    store = Store(url)
    if url.startswith("memory:"):
        store.objects = SharedMemory(store.objects.fs)
    if faults is not None:
        store.objects = FaultyObjects(store.objects, faults)  # type: ignore[assignment]
    return store


@dataclass
class InProcess(InThisProcess):
    """A launcher whose workers run in this process."""

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        try:
            return Ended(worker.main(task.spec_url))
        except OSError:
            return Ended(1)  # the report could not be written


@dataclass
class Held(InProcess):
    """One whose workers run as soon as they may, unless stopped."""

    started: Event = field(default_factory=Event)
    may_run: Event = field(default_factory=Event)

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        self.started.set()
        wait_until(lambda: self.may_run.is_set() or stop.is_set(), "the worker may run")
        return Ended(-signal.SIGTERM) if stop.is_set() else super().run(task, log, stop)


def short_leases(store: Store) -> Leases:
    """So short that what is left of a driver does not keep the others waiting."""
    return Leases(store.objects, store.root, "run", ttl=0.8, beat=0.1)


@dataclass
class Driver:
    """One driver, with its own view of the store, in a thread."""

    store: Store
    roots: dict[str, Step]
    launcher: InProcess = field(default_factory=InProcess)
    leases: Callable[[Store], Leases] = short_leases
    made: dict[str, Manifest] = field(default_factory=dict)
    error: BaseException | None = None

    def drive(self) -> None:
        try:
            self._drive()
        except BaseException as error:
            self.error = error

    def _drive(self) -> None:
        """As ``pipeline.run``, step after step."""
        self.store.prepare()
        leases = self.leases(self.store)
        for _ in range(5):
            catalog = Catalog(self.store)
            plan = make_plan(self.roots, self.store, catalog=catalog)
            resolver = Resolver(catalog, plan.unusable, live=True)
            executor = Executor(resolver, Placement([self.launcher]), leases, {})
            with contextlib.suppress(InputLost):
                for step in topological(self.roots.values()):
                    executor.execute(step)
                catalog.save()
                for name, step in self.roots.items():
                    manifest = resolver.artifact(step)
                    assert manifest is not None, "every step was made"
                    self.made[name] = manifest
                return


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedClock:
    """By which leases go."""
    clock = SharedClock(tmp_path / "now")
    monkeypatch.setattr(pipeline.store.lease, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def _own_import_system() -> Iterator[None]:
    """A worker changes how its process imports code; here it has none of its own."""
    get_code = SourceFileLoader.get_code
    yield
    SourceFileLoader.get_code = get_code


def begin(driver: Driver) -> threading.Thread:
    thread = threading.Thread(target=driver.drive, daemon=True)
    thread.start()
    return thread


def at_once(drivers: list[Driver]) -> None:
    threads = [begin(driver) for driver in drivers]
    for thread in threads:
        thread.join(HANGS_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a driver hangs"


class Lab:
    """A store, an input, a journal, and a DAG of which the results are known."""

    def __init__(self, folder: Path, url: str):
        self.url = url
        self.journal = str(folder / "journal.txt")
        self.source = folder / "numbers.txt"
        self.source.write_text("1 2 3 4")

    def roots(self) -> dict[str, Step]:
        values = numbers(File(str(self.source)), self.journal)
        products = [multiply(values["train"], Times(n), self.journal) for n in (2, 3)]
        return {
            "sum": add(products, self.journal),
            "parity": parity(products[1], self.journal),
        }

    def driver(self, faults: Faults | None = None) -> Driver:
        return Driver(open_store(self.url, faults), self.roots())

    @property
    def ran(self) -> list[str]:
        return journal_lines(self.journal)


RIGHT = {
    "numbers": {"train/values.json": [[1, 3]], "test/values.json": [[2, 4]]},
    "multiply": {"values.json": [[2, 6], [3, 9]]},
    "add": {"values.json": [[20]]},
    "parity": {"values.json": [[1, 1]]},
    "slow_count": {"values.json": [[COUNTED]]},
}
"""What each file of each step of the DAGs here may hold."""


def check_all(store: Store) -> list[Manifest]:
    """Every artifact in the store, each of them whole and right."""
    made = Catalog(store).everything()
    named = sum(len(store.objects.list(f"{store.root}/manifests/{s}")) for s in store.steps())
    assert len(made) == named, "a manifest cannot be read"
    for manifest in made:
        assert set(manifest.files) == set(RIGHT[manifest.step])
        for name, entry in manifest.files.items():
            data = store.objects.read(f"{store.content_path(manifest)}/{name}")
            assert data is not None, f"{manifest.name} lacks {name}"
            assert (len(data), blake3.blake3(data).hexdigest()) == (entry.size, entry.blake3)
            assert json.loads(data) in RIGHT[manifest.step][name]
    return made


@pytest.fixture(params=["local", "memory"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    look_again()
    yield Lab(tmp_path, str(tmp_path / "store") if request.param == "local" else "memory://faults")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed in RICH_IN_FAULTS else pytest.mark.attack)
        for seed in range(40)
    ],
)
def test_a_file_system_that_fails_spoils_nothing(
    lab: Lab, seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    workers = iter(range(10**6))

    given = list[Faults]()

    def faults(name: object) -> Faults:
        rate = chance.choice([0.002, 0.005, 0.01, 0.03])
        given.append(Faults(random.Random(f"{seed} {name}"), rate))
        return given[-1]

    monkeypatch.setattr(
        worker, "Store", lambda url, **_: open_store(url, faults(f"worker {next(workers)}"))
    )
    drivers = [lab.driver(faults(name)) for name in range(3)]
    at_once(drivers)
    for driver in drivers:
        assert driver.error is None or isinstance(driver.error, TemperError | OSError), driver.error
    assert seed not in RICH_IN_FAULTS or any(made.happened for made in given)
    store = open_store(lab.url, None)
    committed = check_all(store)
    assert len({(m.step, m.key) for m in committed}) == len(committed), "a key was made twice"

    monkeypatch.setattr(worker, "Store", lambda url, **_: open_store(url, None))
    before = len(lab.ran)
    last = lab.driver()
    last.drive()
    assert last.error is None
    everything = check_all(store)
    assert len(everything) == 5
    missing = [m.step for m in everything if m not in committed]
    assert sorted(lab.ran[before:]) == sorted(missing)
    assert last.made["sum"].metrics == {"total": 20}


# --- a lease that cannot be renewed ----------------------------------------------------------


class Outage(FaultyObjects):
    """No lease can be read or written while ``on`` is set."""

    def __init__(self, objects: Objects, on: Event, error: OSError | None = None):
        self._objects, self._on, self.between = objects, on, threading.RLock()
        self._error = error or OSError("no route to the store")
        self.met = Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if name not in FAILING:
            return found

        def operation(path: str, *args: Any) -> Any:
            with self.between:
                if self._on.is_set() and "/leases/" in path:
                    self.met.set()
                    raise self._error
                return found(path, *args)

        return operation


@pytest.mark.parametrize(("outage", "executions"), [(0.5, 1), (2.0, 2)])
def test_a_lease_outlives_an_outage_that_is_shorter_than_its_time(
    tmp_path: Path,
    clock: SharedClock,
    monkeypatch: pytest.MonkeyPatch,
    outage: float,
    executions: int,
) -> None:
    """After a longer one another driver has made the artifact, and the first one has stopped."""
    looks: list[int | None] = []
    look = pipeline.store.lease._Wait.look_for_epoch
    monkeypatch.setattr(
        pipeline.store.lease._Wait,
        "look_for_epoch",
        lambda wait, owner: looks.append(epoch := look(wait, owner)) or epoch,
    )
    lab = Lab(tmp_path, str(tmp_path / "store"))
    root = {"numbers": numbers(File(str(lab.source)), lab.journal)}
    on, waits = Event(), Event()

    def leases(store: Store) -> Leases:
        return WatchedLeases(store, "run", lambda holder: waits.set())

    launchers = Held(), Held()
    holder, other = (
        Driver(Store(lab.url), root, launcher, leases=leases) for launcher in launchers
    )
    outage_of = Outage(holder.store.objects, on)
    holder.store.objects = outage_of  # type: ignore[assignment]
    threads = [begin(holder)]
    wait_until(launchers[0].started.is_set, "the holder's worker starts")
    threads.append(begin(other))
    wait_until(waits.is_set, "the other waits")
    with outage_of.between:
        on.set()
    before = len(looks)  # the other counts its time from where it sees the last renewal
    wait_until(lambda: len(looks) > before + 1, "the other looks")
    clock.advance(outage * TTL)
    if executions == 2:
        wait_until(launchers[1].started.is_set, "the other's worker starts")
    on.clear()
    for launcher in launchers:
        launcher.may_run.set()
    for thread in threads:
        thread.join(HANGS_SECONDS)
    assert other.error is None
    (committed,) = check_all(other.store)
    assert other.made["numbers"].attempt == committed.attempt
    if executions == 1 or holder.error is None:
        assert holder.error is None
        assert holder.made["numbers"].attempt == committed.attempt
    else:
        assert isinstance(holder.error, OSError)  # it came back while the store was out of reach
    attempts = sorted(os.listdir(tmp_path / "store" / "attempts" / "numbers" / committed.key))
    assert len(attempts) == executions
    assert attempts[-1] == committed.attempt  # the last to start: the one that held the lease
    assert lab.ran == ["numbers"]


@dataclass
class FillsTheDisk(InProcess):
    """One whose worker leaves no room on the disk, until its lease is lost and its files go."""

    clock: SharedClock = field(kw_only=True)
    full: Event = field(default_factory=Event)
    met: Event = field(default_factory=Event)
    runs: int = 0

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        self.runs += 1
        self.full.set()
        wait_until(self.met.is_set, "the lease is renewed in vain")
        self.clock.advance(2 * TTL)
        wait_until(stop.is_set, "the lease is lost")
        self.full.clear()
        return Ended(1)


def test_a_step_that_fills_the_disk_is_not_begun_again_and_again(
    tmp_path: Path, clock: SharedClock
) -> None:
    lab = Lab(tmp_path, str(tmp_path / "store"))
    launcher = FillsTheDisk(clock=clock)
    root = {"numbers": numbers(File(str(lab.source)), lab.journal)}
    driver = Driver(Store(lab.url), root, launcher)
    outage = Outage(driver.store.objects, launcher.full, OSError(errno.ENOSPC, "No space left"))
    launcher.met, driver.store.objects = outage.met, outage  # type: ignore[assignment]
    thread = begin(driver)
    thread.join(HANGS_SECONDS)
    assert not thread.is_alive()
    assert launcher.runs == 1
    assert isinstance(driver.error, TemperError)
    assert lab.url in str(driver.error)
    assert "No space left" in str(driver.error)


@dataclass
class Overtaken(InProcess):
    """One whose worker fails, because another driver has taken over and is done."""

    overtake: Callable[[], None] = lambda: None

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        self.overtake()
        return Ended(1)


def test_a_worker_that_fails_after_another_driver_took_over_is_no_failure(
    tmp_path: Path, clock: SharedClock
) -> None:
    """Also before the threads that keep the lease have noticed."""
    lab = Lab(tmp_path, str(tmp_path / "store"))
    root = {"numbers": numbers(File(str(lab.source)), lab.journal)}
    waits = Event()

    def leases(store: Store) -> Leases:
        return WatchedLeases(store, "run", lambda holder: waits.set(), beat=HANGS_SECONDS)

    heir = Driver(Store(lab.url), root, leases=leases)

    def overtake() -> None:
        thread = begin(heir)
        wait_until(waits.is_set, "the other waits")
        clock.advance(1.1 * TTL)
        thread.join(HANGS_SECONDS)

    sleeper = Driver(Store(lab.url), root, Overtaken(overtake=overtake), leases)
    sleeper.drive()
    assert (heir.error, sleeper.error) == (None, None)
    assert sleeper.made == heir.made
    assert lab.ran == ["numbers"]


@dataclass
class EndsFirst(InProcess):
    """One whose first attempt ends like this, with these reports of its nodes; another is news."""

    ended: Ended = field(default_factory=lambda: Ended(1))
    reports: Sequence[Report | None] = ()
    is_again: bool = False

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        if self.is_again:
            raise TemperError("another attempt")
        self.is_again = True
        for name, report in zip(("report.json", "report-1.json"), self.reports, strict=False):
            if report is not None:
                Path(task.folder, name).write_bytes(report.to_json())
        return self.ended


BUG, OTHER_BUG = Report("no such column"), Report("peer is gone")
ASKED = Report("was asked to stop", preempted=True)
TAKEN, PERHAPS_TAKEN = Ended(None, preempted=True), Ended(1, preempted=True, confirmed=False)


@pytest.mark.parametrize(
    ("ended", "reports", "failure"),
    [
        (Ended(1), [BUG], "no such column"),
        (Ended(1), [BUG, None], "node 0: no such column"),
        (Ended(1), [None, BUG], "node 1: no such column"),
        (Ended(1), [OTHER_BUG, BUG], "node 0: peer is gone; node 1: no such column"),
        (Ended(1), [ASKED, BUG], "node 1: no such column"),
        (Ended(-9), [None], "the worker was killed by SIGKILL"),
        (Ended(137), [None], "the worker was killed by SIGKILL"),
        (Ended(-9), [ASKED, None], "the worker was killed by SIGKILL"),
        (Ended(1, cancelled=True), [ASKED], "the job was cancelled"),
        (Ended(1, cancelled=True, preempted=True), [BUG], "the job was cancelled"),
        (Ended(None), [None], "the worker left no report"),
        (Ended(0), [None], "the worker ended with status 0 and left no report"),
        (Ended(127), [None], "the worker ended with status 127 (no such program)"),
        (Ended(128), [None], "the worker ended with status 128 and"),
        (Ended(193), [None], "the worker ended with status 193 and"),
        (PERHAPS_TAKEN, [BUG], "no such column"),
        (PERHAPS_TAKEN, [None], ""),
        (PERHAPS_TAKEN, [ASKED, OTHER_BUG], ""),
        (TAKEN, [OTHER_BUG], ""),
        (TAKEN, [None, None], ""),
        (Ended(75), [ASKED], ""),
        (Ended(75), [ASKED, None], ""),
        (Ended(-9), [ASKED], ""),
    ],
)
def test_a_step_whose_machine_was_taken_goes_on_and_one_that_failed_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: Ended,
    reports: Sequence[Report | None],
    failure: str,
) -> None:
    monkeypatch.setattr(attempts, "FIRST_RETRY_SECONDS", 0.0)
    lab = Lab(tmp_path, str(tmp_path / "store"))
    launcher = EndsFirst(ended=ended, reports=reports)
    step = numbers(File(str(lab.source)), lab.journal).on(nodes=len(reports))
    driver = Driver(Store(lab.url), {"numbers": step}, launcher)
    driver.drive()
    assert str(driver.error).startswith(failure or "another attempt")


# --- drivers that are stopped, woken and killed --------------------------------------------------


@dataclass
class Process:
    """A driver as a process of its own; see ``contract_driver``."""

    process: drivers.Driver

    @classmethod
    def start(cls, mode: str, url: str, journal: str, *clock: Path) -> "Process":
        driver = TESTS / "contract" / "contract_driver.py"
        paths = os.pathsep.join([str(driver.parent), *sys.path])
        words = [str(driver), mode, url, journal, *map(str, clock)]
        return cls(drivers.Driver(words, Path.cwd(), {**os.environ, "PYTHONPATH": paths}))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> str:
        """What it printed.

        Raises:
            AssertionError: it failed.
        """
        printed = self.process.communicate()
        assert self.process.returncode == 0, printed
        return printed.strip()

    def is_stopped(self) -> bool:
        return is_stopped(self.process.pid)


@pytest.fixture
def place(tmp_path: Path, store_url: str) -> Lab:
    return Lab(tmp_path, store_url)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [pytest.param("its worker runs", marks=pytest.mark.attack), "it is about to commit"],
)
def test_a_driver_that_wakes_after_it_was_replaced_commits_nothing(
    tmp_path: Path, clock: SharedClock, moment: str
) -> None:
    lab = Lab(tmp_path, str(tmp_path / "store"))
    mode = "step" if moment == "its worker runs" else "stop"
    hold(lab.journal, 3)
    zombie = Process.start(mode, lab.url, lab.journal, clock.file)
    wait_until(lambda: "count 3" in lab.ran, "the step counts")
    if mode == "step":
        zombie.signal(signal.SIGSTOP)
        wait_until(zombie.is_stopped, "the driver is stopped")
    let_go(lab.journal)
    wait_until(zombie.is_stopped, "the driver is stopped")
    wait_until(lambda: not workers(Store(lab.url)), "its worker ends")
    heir = Process.start("step", lab.url, lab.journal, clock.file)
    wait_until(lambda: f"waits for {zombie.process.pid}" in lab.ran, "the other waits")
    clock.advance(1.1 * TTL)
    assert heir.wait() == str(heir.process.pid)
    zombie.signal(signal.SIGCONT)
    assert zombie.wait() == str(heir.process.pid)  # it gives what the other has made
    (committed,) = check_all(Store(lab.url))
    assert committed.provenance["run"] == str(heir.process.pid)
    assert lab.ran.count("slow_count") == 2


@pytest.mark.attack
@pytest.mark.parametrize("store_url", ["local"], indirect=True)  # in a bucket: the test below
def test_two_drivers_started_together_run_each_step_once(place: Lab) -> None:
    drivers = [Process.start("run", place.url, place.journal) for _ in range(2)]
    for driver in drivers:
        driver.wait()
    assert _without_counts(place.ran) == ["add", "multiply", "multiply", "numbers", "slow_count"]
    assert len(check_all(Store(place.url))) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "store_url", ["local", pytest.param("gcs", marks=pytest.mark.attack)], indirect=True
)
def test_after_a_kill_the_other_driver_finishes_and_nothing_left_over_blocks_a_third(
    place: Lab, console: Console
) -> None:
    with held(place.journal, 3):
        drivers = [Process.start("run", place.url, place.journal) for _ in range(2)]
        wait_until(lambda: "count 3" in place.ran, "the step counts")
        store = Store(place.url)
        (holder,) = Leases(store.objects, store.root, "").holders("slow_count").values()
        (killed,) = [driver for driver in drivers if driver.process.pid == holder.pid]
        (other,) = [driver for driver in drivers if driver is not killed]
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.process.communicate()
    other.wait()
    ran = _without_counts(place.ran)
    assert ran == ["add", "multiply", "multiply", "numbers", "slow_count", "slow_count"]
    assert len(check_all(store)) == 5

    run(roots(place.journal), place.url, console=console)
    assert _without_counts(place.ran) == ran


def _without_counts(lines: list[str]) -> list[str]:
    return sorted(line for line in lines if not line.startswith("count "))
