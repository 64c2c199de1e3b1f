"""Jobs that outlive their driver, with the smallest engine there is: processes of this machine.

What holds here holds for every engine, as they share all of it but the client.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from forked_workers import Job
from job_steps import always_fails, count_to, counted, lines
from places import REPOSITORY, SUPPORT
from waiting import HANGS_SECONDS, held, hold, let_go, wait_until

from pipeline import Step, Store
from pipeline.dag.resources import NOTHING, Resources
from pipeline.launchers.config import RayConfig, SlurmConfig
from pipeline.launchers.jobs import EngineError, JobLauncher, JobRecord
from pipeline.launchers.placement import Placement
from pipeline.launchers.slurm import Slurm
from pipeline.plan.resolver import Resolver
from pipeline.running.attempts import Executor, StepFailed
from pipeline.store.catalog import Catalog
from pipeline.store.lease import Lease, Leases
from pipeline.store.manifest import Manifest
from pipeline.wire import presence
from pipeline.wire.launcher import REFUSED, Ended, Task

NOWHERE = Path(os.devnull)


@dataclass
class Processes:
    """An engine whose jobs are processes, each known by a name."""

    folder: Path
    kind: str = "processes"
    config: SlurmConfig = field(default_factory=lambda: SlurmConfig(poll_seconds=0.2))
    jobs: dict[str, Job] = field(default_factory=dict)
    answers: bool = True
    asked: int = 0

    def shortage(self, resources: Resources) -> str | None:
        return None

    def submit(self, task: Task) -> str:
        self.jobs[task.name] = start_worker(task.spec_url, self.folder / f"{task.name}.log")
        return task.name

    def find(self, name: str) -> str | None:
        self.asked += 1
        if not self.answers:
            raise EngineError("no answer")
        return name if name in self.jobs else None

    def state(self, job: str) -> Ended | str:
        status = self.jobs[job].poll()
        return "RUNNING" if status is None else Ended(status, f"process {self.jobs[job].pid}")

    def output(self, name: str, job: str, start: int) -> bytes:
        return (self.folder / f"{name}.log").read_bytes()[start:]

    def cancel(self, job: str) -> None:
        self.jobs[job].kill()


def start_worker(spec_url: str, log: Path, environment: Mapping[str, str] | None = None) -> Job:
    paths = os.pathsep.join([str(SUPPORT), *sys.path])
    usual = {**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as printed:
        return Job(spec_url, {**usual, **(environment or {})}, printed)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Processes]:
    engine = Processes(tmp_path)
    yield engine
    for job in engine.jobs.values():
        job.kill()
        job.wait()


def drive(
    store: Store, engine: Processes, step: Step, ttl: float = 10.0, asked: Resources = NOTHING
) -> Manifest:
    """Make a step as a driver of its own does."""
    store.prepare()
    launcher = JobLauncher(engine, store, "a run")
    placement = Placement([launcher], {step.fingerprint: asked})
    leases = Leases(store.objects, store.root, "a run", ttl=ttl, beat=min(2.5, ttl / 8))
    return Executor(Resolver(Catalog(store), live=True), placement, leases, {}).execute(step)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def leave_a_record(store: Store, step: Step, job: str) -> Task:
    """What a driver has written that dies in the moment in which it submits a job."""
    store.prepare()

    class Died(Exception):
        pass

    @dataclass
    class Dying(Processes):
        def submit(self, task: Task) -> str:
            tasks.append(task)
            raise Died

    tasks: list[Task] = []
    with pytest.raises(Died):
        drive(store, Dying(Path(job)), step)
    return tasks[0]


def test_a_driver_that_lost_its_lease_leaves_the_job_to_the_one_that_took_over(
    store: Store, engine: Processes, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, made, leases = count_to(6, journal, heed=False), list[Manifest](), list[Lease]()
    watch = Lease.__init__

    def note(self: Lease, *args: object) -> None:
        watch(self, *args)  # type: ignore[arg-type]
        leases.append(self)

    monkeypatch.setattr(Lease, "__init__", note)
    with held(journal, 3):
        first = in_thread(lambda: made.append(drive(store, engine, step)))
        wait_until(lambda: len(counted(journal)) > 2)
        leases[0]._lose()
        second = in_thread(lambda: made.append(drive(store, engine, step, ttl=0.8)))
        wait_until(lambda: len(leases) > 1, "the second takes over")
    for thread in (first, second):
        thread.join(HANGS_SECONDS)
    assert len({manifest.attempt for manifest in made}) == 1
    assert len(made) == 2
    assert len(lines(journal)) == 7
    assert len(engine.jobs) == 1


def test_a_step_that_has_ended_as_its_lease_was_lost_is_not_made_again(
    store: Store, engine: Processes, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when a bucket fails for a few seconds after hours of training."""
    confirm, losses = Lease.confirm, list[Lease]()

    def confirm_late(lease: Lease) -> bool:
        if not losses:
            losses.append(lease)
            lease._lose()
        return confirm(lease)

    monkeypatch.setattr(Lease, "confirm", confirm_late)
    made = drive(store, engine, count_to(2, journal), ttl=0.8)
    assert losses
    assert list(engine.jobs) == [made.attempt]
    assert len(lines(journal)) == 3


def test_a_job_that_comes_late_does_not_begin(
    store: Store, engine: Processes, journal: str, tmp_path: Path
) -> None:
    step = count_to(5, journal, 0.01)
    late = leave_a_record(store, step, str(tmp_path))
    record = JobRecord.read(store, "count_to", late.key)
    assert record == JobRecord("processes", late.name, "a run")
    made = drive(store, engine, step)
    assert made.attempt != late.name
    for node in ("0", "1"):
        environment = {"TEMPER_NODE": node, "TEMPER_MASTER": "first:20001"}
        worker = start_worker(late.spec_url, log := tmp_path / "log", environment)
        assert worker.wait(HANGS_SECONDS) == REFUSED, log.read_text()
    assert len(lines(journal)) == 6
    assert JobRecord.read(store, "count_to", late.key) is None


def test_a_job_that_an_engine_starts_twice_runs_once(
    store: Store, engine: Processes, journal: str, tmp_path: Path
) -> None:
    task = leave_a_record(store, count_to(3, journal), str(tmp_path))
    with held(journal, 1):
        engine.submit(task)
        wait_until(lambda: counted(journal))
        second = start_worker(task.spec_url, NOWHERE)
        assert second.wait(HANGS_SECONDS) == REFUSED
    made = drive(store, engine, count_to(3, journal))
    assert made.attempt == task.name
    assert len(lines(journal)) == 4


@pytest.mark.parametrize("answers", [True, False])
def test_a_worker_that_lives_without_its_engine_is_not_doubled(
    store: Store, engine: Processes, journal: str, tmp_path: Path, answers: bool
) -> None:
    """Such as when the second driver asks another cluster, or the engine is down."""
    step, made = count_to(3, journal), list[Manifest]()
    task = leave_a_record(store, step, str(tmp_path))
    with held(journal, 1):
        worker = start_worker(task.spec_url, NOWHERE)
        wait_until(lambda: counted(journal))
        engine.answers = answers
        driver = in_thread(lambda: made.append(drive(store, engine, step)))
        wait_until(lambda: engine.asked, "the driver looks for the job")
    driver.join(HANGS_SECONDS)
    worker.wait(HANGS_SECONDS)
    assert [manifest.attempt for manifest in made] == [task.name]
    assert len(lines(journal)) == 4
    assert not engine.jobs


def lose_patience(engine: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a worker of which nothing is heard for dead at once; but not the next."""
    submit = engine.submit

    def submit_and_trust(task: Task) -> str:
        monkeypatch.setattr(presence, "SILENCE_SECONDS", HANGS_SECONDS)
        return submit(task)

    monkeypatch.setattr(engine, "submit", submit_and_trust)
    monkeypatch.setattr(presence, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(presence, "BEAT_SECONDS", 0.5)


def test_a_worker_that_dies_without_its_engine_is_followed_by_another(
    store: Store, engine: Processes, journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = count_to(6, journal, heed=False)
    task = leave_a_record(store, step, str(tmp_path))
    with held(journal, 3):
        worker = start_worker(task.spec_url, NOWHERE)
        wait_until(lambda: len(counted(journal)) > 2)
        worker.kill()
        worker.wait()
    lose_patience(engine, monkeypatch)
    assert drive(store, engine, step).attempt != task.name
    assert len(counted(journal)) == 6


def test_a_worker_of_which_nothing_is_heard_is_ended_and_followed_by_another(
    store: Store, engine: Processes, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, made = count_to(6, journal, heed=False), list[Manifest]()
    with held(journal, 3):
        driver = in_thread(lambda: made.append(drive(store, engine, step)))
        wait_until(lambda: len(counted(journal)) > 2)
        os.killpg(next(iter(engine.jobs.values())).pid, signal.SIGSTOP)
    lose_patience(engine, monkeypatch)
    driver.join(HANGS_SECONDS)
    assert made
    assert len(engine.jobs) == 2
    assert len(counted(journal)) == 6


def test_another_node_waits_for_the_first_and_helps_no_other_job(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.prepare()
    folder = f"{store.root}/attempts/a"
    monkeypatch.setattr(presence, "JOIN_SECONDS", 0.01)
    joined: list[bool] = []
    waiting = in_thread(lambda: joined.append(presence.join(store, folder, "first:1")))
    assert presence.begin(store, folder, "first:1")
    waiting.join(HANGS_SECONDS)
    assert joined == [True]
    assert not presence.join(store, folder, "second:1")
    store.objects.replace(f"{folder}/begun.json", b"{dam")  # no address: of whom is unknown
    assert not presence.join(store, folder, "first:1")
    assert time.time() - (presence.begun(store, folder) or {})["time"] < HANGS_SECONDS


@dataclass
class Absent(Processes):
    """An engine that does not answer at first: the request was lost, or only the answer."""

    arrives: bool = False
    submissions: int = 0

    def submit(self, task: Task) -> str:
        self.submissions += 1
        if self.submissions > 1:
            return super().submit(task)
        if self.arrives:
            super().submit(task)
        raise EngineError("no answer")


@pytest.mark.parametrize("arrives", [True, False])
def test_an_engine_that_does_not_answer_gets_no_job_twice(
    store: Store, journal: str, tmp_path: Path, arrives: bool
) -> None:
    engine = Absent(tmp_path, arrives=arrives)
    made = drive(store, engine, count_to(5, journal, 0.01))
    assert made.metrics == {"until": 5}
    assert len(lines(journal)) == 6
    assert engine.submissions == (1 if arrives else 2)
    logs = Path(store.root, "attempts/count_to").glob("*/*/log.txt")
    assert any("[processes: no answer]" in log.read_text() for log in logs)


@dataclass
class Requeueing(Processes):
    """An engine that starts a job anew behind everybody's back, and then speaks of that one."""

    again: Job | None = None

    def state(self, job: str) -> Ended | str:
        if self.again is None and counted(str(self.folder / "journal")):
            self.again = start_worker(self.spec_url, NOWHERE)
        if self.again is None:
            return "RUNNING"
        status = self.again.wait(HANGS_SECONDS)
        let_go(self.folder / "journal")
        return Ended(status, "requeued")

    def submit(self, task: Task) -> str:
        self.spec_url = task.spec_url
        return super().submit(task)


def test_a_job_that_its_engine_starts_anew_does_not_end_the_one_that_runs(
    store: Store, journal: str, tmp_path: Path
) -> None:
    engine = Requeueing(tmp_path)
    hold(journal, 1)
    drive(store, engine, count_to(3, journal))
    assert engine.again is not None
    assert engine.again.returncode == REFUSED
    assert len(engine.jobs) == 1
    assert len(lines(journal)) == 4


def test_a_failure_of_an_earlier_drivers_job_counts_as_the_first_try(
    store: Store, engine: Processes, tmp_path: Path
) -> None:
    task = leave_a_record(store, always_fails(), str(tmp_path))

    class Found(Processes):
        """The job begins when the next driver has found that it has no result, and so fails while
        that driver waits for it."""

        def find(self, name: str) -> str | None:
            if not self.jobs:
                self.submit(task)
            return super().find(name)

    found = Found(engine.folder, jobs=engine.jobs)
    with pytest.raises(StepFailed, match="this step always fails"):
        drive(store, found, always_fails(), asked=Resources(retries=1))
    tried = Path(store.root, "attempts", "always_fails", task.key)
    assert len(list(tried.iterdir())) == 2


def test_a_job_that_fails_before_its_worker_is_told_as_one(
    store: Store, engine: Processes, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shell(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", "exec /nonexistent/python"], stderr=subprocess.DEVNULL)

    monkeypatch.setattr(sys.modules[__name__], "start_worker", shell)
    with pytest.raises(StepFailed, match=r"status 127 \(no such program\).* job fail before it"):
        drive(store, engine, count_to(3, journal))


def test_what_a_worker_says_is_in_the_log(store: Store, engine: Processes) -> None:
    with pytest.raises(StepFailed) as failed:
        drive(store, engine, always_fails())
    log = Path(failed.value.log).read_text()
    assert log.startswith("[processes job ")
    assert "this step always fails" in log
    report = json.loads(Path(failed.value.log).with_name("report.json").read_text())
    assert report["error"] == "this step always fails"


@pytest.mark.parametrize("added", ["sys.path.insert(0, {!r})", "sys.path.append({!r})"])
def test_a_worker_has_the_driver_s_path_and_other_pythons_keep_theirs(
    tmp_path: Path, added: str
) -> None:
    driver = (
        f"import sys; {added.format(str(tmp_path))}\n"
        "from pipeline.launchers.environment import import_path; print(import_path(), *sys.path)"
    )
    imports, *own = _python(driver, str(REPOSITORY)).split()
    assert _python("import sys; print(*sys.path)", imports).split() == own
    is_first = own[0] == str(tmp_path)
    assert (sysconfig.get_path("stdlib") not in imports.split(os.pathsep)) is is_first


def _python(code: str, path: str) -> str:
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip


def as_program(folder: Path, name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{line}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_what_a_user_has_set_for_all_jobs_of_sbatch_holds_where_the_config_says_nothing(
    store: Store, journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCOUNT", "QOS", "PARTITION", "JOB_NAME"):
        monkeypatch.setenv(f"SBATCH_{name}", "everyday")
    monkeypatch.setenv("SBATCH_RESERVATION", "")
    as_program(tmp_path, "sbatch", 'echo "1$SBATCH_ACCOUNT$SBATCH_JOB_NAME"', monkeypatch)
    task = leave_a_record(store, count_to(2, journal), str(tmp_path))
    config = SlurmConfig(folder=str(tmp_path / "%j"), account="ours")
    assert Slurm(config).submit(task) == "1"
    script = (tmp_path / "%j" / f"{task.name}.sh").read_text()
    assert "--account=ours" in script
    assert "--reservation" not in script
    assert "--qos=everyday" in script
    assert "--partition=everyday" in script
    assert f"--output={tmp_path}/%%j/" in script  # %j would be the number of the job


def test_an_address_of_ray_that_takes_no_jobs_is_refused() -> None:
    for address in ("ray://head:10001", "head:8265", ""):
        with pytest.raises(ValueError, match="is not that of a dashboard, as in http://HEAD:8265"):
            RayConfig(address=address)
