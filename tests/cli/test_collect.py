"""What garbage collection frees and what it leaves, also while drivers are at work."""

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from manifests import manifest
from numbers_lab import Lab, end, start_driver, start_held_driver, wait_for
from places import GOLDEN
from rich.console import Console
from toy_steps import Times, add, fail, journal_lines, parity, slow_count
from typer.testing import CliRunner
from waiting import wait_until

from pipeline import Step, Store, TemperError, run
from pipeline.cli import app
from pipeline.cli.maintenance.collect import delete
from pipeline.cli.maintenance.garbage import Kind, Policy, find_garbage
from pipeline.dag.canonical import hash_json
from pipeline.launchers.jobs import JobRecord
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.layout import DataLoss, name_by_time
from pipeline.store.lease import Leases
from pipeline.store.manifest import Manifest
from pipeline.store.objects import LocalObjects
from pipeline.store.runs import forget_run, names_of_runs, read_runs

pytestmark = pytest.mark.usefixtures("workers_here")


NOW = Policy(grace=0)
LAST = Policy(last=1, grace=0)
KEY = hash_json({})
OLD = "20200101T000000-000aaaaaa"


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """One whose steps are told relative paths, so that they have the same keys in every test."""
    monkeypatch.chdir(tmp_path)
    return Lab(Path(), store, console)


@pytest.mark.parametrize("record", ["the record of a run", "the outcome of a step"])
def test_what_a_run_used_is_kept_while_its_record_is_listed_and_not_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    lab.run(product=lab.product())
    (name,) = names_of_runs(lab.store)
    hidden = f"/runs/{name}.json"
    if record == "the outcome of a step":  # as of a run that was killed
        run = json.loads(lab.store.read(f"{lab.store.root}/runs/{name}.json") or b"")
        path, hidden = f"{lab.store.root}/runs/{name}.json", f"/runs/{name}/0.json"
        lab.store.objects.replace(path, json.dumps({**run, "outcome": "running"}).encode())
        lab.store.objects.replace(f"{lab.store.root}{hidden}", b"{}")
    read = LocalObjects.read
    monkeypatch.setattr(
        LocalObjects, "read", lambda self, path: None if hidden in path else read(self, path)
    )
    with pytest.raises(TemperError, match=f"{hidden} is listed, and yet the store says"):
        find_garbage(lab.store, NOW)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Stores after a run, and after another with another factor."""
    folder = tmp_path_factory.mktemp("runs")
    kept = [folder / "one", folder / "two"]
    with contextlib.chdir(folder):
        lab = Lab(Path(), Store(str(folder / "store")), Console(file=io.StringIO()))
        for factor, copy in zip((2, 3), kept, strict=True):
            lab.run(product=lab.product(Times(factor)))
            shutil.copytree(lab.store.root, copy)
    return kept


@pytest.fixture
def one_run(lab: Lab, stores: list[Path]) -> None:
    """A product was made."""
    shutil.copytree(stores[0], lab.store.root)


@pytest.fixture
def two_runs(lab: Lab, stores: list[Path]) -> None:
    """A product was made, and then one by 3."""
    shutil.copytree(stores[1], lab.store.root)


def kinds(store: Store, policy: Policy) -> set[Kind]:
    return {garbage.kind for garbage in find_garbage(store, policy).garbage}


def collect(store: Store, policy: Policy) -> int:
    return delete(store, find_garbage(store, policy))


def steps_of(store: Store, kind: Kind, policy: Policy) -> set[str]:
    return {g.step for g in find_garbage(store, policy).garbage if g.kind is kind}


def files(store: Store) -> set[str]:
    root = Path(store.root)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def newest(lab: Lab, step: str) -> Manifest:
    return Catalog(lab.store).history(step)[-1]


def content(lab: Lab, manifest: Manifest) -> Path:
    return Path(lab.store.content_path(manifest))


# --- artifacts -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_runs")
def test_what_a_run_on_record_used_stays(lab: Lab) -> None:
    collect(lab.store, NOW)
    assert lab.run(one=lab.product(), two=lab.product(Times(3))) == []


def test_keeping_the_last_run_frees_what_only_earlier_ones_used(lab: Lab) -> None:
    def roots(factor: int) -> dict[str, Step]:
        return {"sum": add([lab.product(Times(factor))], lab.journal)}

    lab.run(**roots(2))
    old = [newest(lab, "multiply"), newest(lab, "add")]
    lab.run(**roots(3))
    assert steps_of(lab.store, Kind.ARTIFACT, LAST) == {"multiply", "add"}
    assert collect(lab.store, LAST) >= sum(manifest.size for manifest in old)
    assert not any(Path(lab.store.attempt_path(manifest)).exists() for manifest in old)
    assert lab.run(**roots(3)) == []
    assert lab.run(**roots(2)) == ["multiply", "add"], "numbers are the same in both"
    assert lab.run(**roots(2)) == []


@pytest.mark.usefixtures("one_run")
def test_nothing_is_left_of_a_key_that_goes(lab: Lab) -> None:
    key = newest(lab, "multiply").key
    lab.store.evict(newest(lab, "multiply"))
    lab.run(product=lab.product())  # a second generation
    lab.run(product=lab.product(Times(3)))
    collect(lab.store, LAST)
    assert not [name for name in files(lab.store) if key in name and "runs/" not in name]
    assert key not in (Path(lab.store.root) / "index" / "multiply.json").read_text()


def test_on_a_full_disk_room_can_be_made(
    lab: Lab, stores: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a full disk name these commands, and a lease needs room itself."""
    for way in (["gc", "--keep-last", "1", "--grace", "0"], ["evict", "multiply"]):
        shutil.rmtree(lab.store.root, ignore_errors=True)
        shutil.copytree(stores[1], lab.store.root)
        full = len(files(lab.store))

        def refuse_if_full(write: Any, most: int) -> Any:
            def attempt(self: LocalObjects, path: str, data: bytes) -> Any:
                if len(files(lab.store)) >= most:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(self, path, data)

            return attempt

        with monkeypatch.context() as patch:
            for name in ("create", "replace"):
                write = getattr(LocalObjects, name)
                patch.setattr(LocalObjects, name, refuse_if_full(write, full))
            done = CliRunner().invoke(app, [*way, "--yes", "--store", lab.store.root])
        assert done.exception is None
        assert "freed" in done.output
        assert len(files(lab.store)) < full


@pytest.mark.usefixtures("one_run")
def test_of_a_key_that_stays_an_earlier_generation_loses_its_data_only(lab: Lab) -> None:
    first = newest(lab, "multiply")
    run({"product": lab.product()}, lab.store, console=lab.console, force=["multiply"])
    assert Kind.DATA not in kinds(lab.store, NOW), "the first run used it"
    assert steps_of(lab.store, Kind.DATA, LAST) == {"multiply"}
    lab.store.mark(first, DataLoss.DAMAGED)
    assert steps_of(lab.store, Kind.DATA, NOW) == {"multiply"}
    collect(lab.store, LAST)
    assert not content(lab, first).exists()
    assert lab.store.manifest("multiply", first.key) == first
    assert content(lab, newest(lab, "multiply")).exists()
    assert lab.run(product=lab.product()) == []
    lab.store.mark(newest(lab, "multiply"), DataLoss.DAMAGED)
    assert Kind.DATA not in kinds(lab.store, NOW), "what is left of it may be of use"


def test_the_last_generation_stays_whatever_the_clocks_of_its_machine_said(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}/store")
    for generation, attempt in enumerate(("20210101T000000-000aaaaaa", OLD)):
        made = replace(manifest(attempt), generation=generation)
        store.objects.replace(f"{store.content_path(made)}/model.bin", b"123")
        store.commit(made)
    used = {"step": "train", "key": KEY, "state": "cached"}
    store.record_run({"run": "20220101T000000-uses", "outcome": "done", "steps": [used]})
    (data,) = find_garbage(store, NOW).garbage
    assert (data.kind, data.manifests[0].generation, data.size) == (Kind.DATA, 0, 3)


@pytest.mark.usefixtures("two_runs")
def test_young_runs_are_kept(lab: Lab) -> None:
    assert Kind.ARTIFACT not in kinds(lab.store, Policy(days=1, grace=0))
    assert Kind.ARTIFACT in kinds(lab.store, Policy(days=0, grace=0))


@pytest.mark.usefixtures("one_run")
def test_what_no_record_mentions_goes_after_the_grace(lab: Lab) -> None:
    (Path(lab.store.root) / "runs" / f"{names_of_runs(lab.store)[0]}.json").unlink()
    assert Kind.ARTIFACT not in kinds(lab.store, Policy(grace=3600))
    assert steps_of(lab.store, Kind.ARTIFACT, NOW) == {"numbers", "multiply"}


@pytest.mark.usefixtures("two_runs")
def test_a_forgotten_run_keeps_nothing(lab: Lab) -> None:
    forget_run(lab.store, names_of_runs(lab.store)[0])
    assert steps_of(lab.store, Kind.ARTIFACT, NOW) == {"multiply"}


@pytest.mark.usefixtures("one_run")
def test_a_damaged_record_stops_the_collection(lab: Lab) -> None:
    """It may be what keeps an artifact."""
    (name,) = names_of_runs(lab.store)
    (Path(lab.store.root) / "runs" / f"{name}.json").write_text('{"run": ')
    with pytest.raises(TemperError, match=f"damaged.*temper runs --forget {name}"):
        find_garbage(lab.store, NOW)


@pytest.mark.usefixtures("one_run")
def test_an_artifact_with_a_damaged_manifest_is_left_alone(lab: Lab) -> None:
    made = newest(lab, "multiply")
    Path(lab.store.manifest_path("multiply", made.key)).write_text("{")
    shutil.rmtree(Path(lab.store.root) / "index")
    findings = find_garbage(lab.store, NOW)
    assert "a manifest of it cannot be read" in " ".join(findings.notes)
    delete(lab.store, findings)
    assert content(lab, made).exists()


def test_records_of_the_first_layout_keep_what_was_made_up_to_them(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "store", tmp_path / "store")
    (record,) = (tmp_path / "store" / "runs").iterdir()
    without_keys = json.loads(record.read_text())
    for entry in without_keys["steps"]:
        del entry["key"]
    record.write_text(json.dumps(without_keys))
    store = Store(str(tmp_path / "store"))
    findings = find_garbage(store, NOW)
    assert findings.garbage == []
    assert "did not record what they used" in findings.notes[0]
    forget_run(store, names_of_runs(store)[0])
    assert steps_of(store, Kind.ARTIFACT, NOW) == {"numbers", "multiply", "parity", "add"}


def test_an_eviction_that_was_stopped_halfway_is_finished(lab: Lab) -> None:
    lab.run(sum=add([lab.product()], lab.journal))
    made = newest(lab, "multiply")
    shutil.copytree(content(lab, made), lab.source.parent / "copy")
    lab.store.evict(made)
    shutil.copytree(lab.source.parent / "copy", content(lab, made))
    assert collect(lab.store, NOW) >= made.size
    assert not content(lab, made).exists()


# --- leftovers -----------------------------------------------------------------------------------


def test_a_failed_attempt_stays_for_the_grace_and_goes_after_it(lab: Lab) -> None:
    with pytest.raises(RunFailed):
        lab.run(broken=fail(lab.numbers(), lab.journal))
    attempts = Path(lab.store.root) / "attempts" / "fail"
    collect(lab.store, Policy())
    assert list(attempts.rglob("log.txt"))
    assert steps_of(lab.store, Kind.ATTEMPT, NOW) == {"fail"}
    collect(lab.store, NOW)
    assert not list(attempts.iterdir())


def killed_while_counting(lab: Lab) -> None:
    end(lab, start_held_driver(lab), signal.SIGKILL)


def test_what_a_killed_run_left_goes_but_not_the_scratch_it_would_go_on_with(lab: Lab) -> None:
    killed_while_counting(lab)
    assert kinds(lab.store, NOW) == {Kind.ATTEMPT, Kind.PROGRESS}
    collect(lab.store, NOW)
    lines = lab.run(count=slow_count(6, lab.journal))
    assert lines[1] == "count 5", "it did not go on from where it was"


def test_an_attempt_whose_job_may_run_without_a_driver_stays(lab: Lab) -> None:
    """Until its key is made, or no kept run would go on with it."""
    killed_while_counting(lab)
    (attempt,) = Path(lab.store.root, "attempts", "slow_count").glob("*/*")
    key = attempt.parent.name
    record = JobRecord("slurm", attempt.name, "a run")
    lab.store.objects.replace(
        lab.store.job_path("slow_count", key), json.dumps(asdict(record)).encode()
    )
    collect(lab.store, NOW)
    assert attempt.exists()
    assert JobRecord.read(lab.store, "slow_count", key) == record
    lab.store.objects.replace(lab.store.job_path("slow_count", key), b"half")
    collect(lab.store, NOW)
    assert attempt.exists(), "a record that cannot be read may be of this attempt"
    lab.run(product=lab.product())
    collect(lab.store, LAST)
    assert not [name for name in files(lab.store) if "slow_count" in name]


@pytest.mark.usefixtures("one_run")
def test_what_a_write_that_was_killed_left_goes_after_the_grace(lab: Lab) -> None:
    root = Path(lab.store.root)
    [manifest] = (root / "manifests/multiply").glob("*.json")
    [content] = (root / "attempts/multiply").glob("*/*/content")
    content.chmod(0o755)
    left = [root / ".temper.json.01234567", manifest.with_name(f".{manifest.name}.89abcdef")]
    copy = root / "scratch/multiply/.copy-abcd_123/scratch"
    copy.mkdir(parents=True)
    for path in (*left, copy / "checkpoint"):
        path.write_text("half")
    others = [
        content / f".{manifest.name}.01234567",
        root / "manifests/multiply/.notes.20260101",
        root / ".env.20260101",
        root / ".git.20260101/config",
        root / "scratch/multiply/.copy-of_my_files/notes",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not written by Temper")
    assert Kind.WRITE not in kinds(lab.store, Policy())
    assert Kind.WRITE not in kinds(lab.store, NOW), "it may be under way"
    for path in (*left, copy / "checkpoint", copy, copy.parent, *others):
        os.utime(path, (0, 0))
    assert collect(lab.store, NOW) >= 12
    assert not any(path.exists() for path in (*left, copy.parent))
    assert all(path.exists() for path in (*others, manifest))


def store_with_all_that_a_step_leaves(url: str, attempt: str) -> Store:
    """A step has failed, and left all that it can leave of one key."""
    store = Store(url)
    run = {"run": "20200101T000000-fails", "outcome": "failed", "seconds": 1.0}
    store.record_run({**run, "steps": [{"step": "fit", "key": KEY, "state": "failed"}]})
    for path, data in {
        f"attempts/fit/{KEY}/{attempt}/log.txt": b"CUDA out of memory",
        f"scratch/fit/{KEY}/0/0/00000001.json": b"{}",
        f"progress/fit/{KEY}.json": b"{}",
        f"leases/fit/{KEY}/00000002.json": b"0",
        f"jobs/fit/{KEY}.json": json.dumps(asdict(JobRecord("slurm", attempt, "a run"))).encode(),
    }.items():
        store.objects.replace(f"{store.root}/{path}", data)
    if store.is_local:  # that of whoever took the lease over
        store.objects.replace(f"{store.root}/scratch/fit/{KEY}-1/state", b"")
    return store


@pytest.mark.parametrize(
    ("url", "scratch"), [("memory:/{}/store", Kind.STAGED), ("{}/store", Kind.SCRATCH)]
)
def test_scratch_goes_with_the_last_run_that_would_go_on_with_it(
    tmp_path: Path, url: str, scratch: Kind
) -> None:
    store = store_with_all_that_a_step_leaves(url.format(tmp_path), OLD)
    left = {Kind.ATTEMPT, scratch, Kind.PROGRESS, Kind.LEASE, Kind.JOB}
    none = Policy(last=0, grace=0)
    assert kinds(store, NOW) == {Kind.PROGRESS}
    assert kinds(store, none) == left
    assert kinds(store, Policy(last=0, grace=time.time())) == set(), "it was a moment ago"
    with Leases(store.objects, store.root, "other").held("fit", KEY, lambda: False):
        assert kinds(store, none) == set(), "somebody goes on with it"
    store.commit(replace(manifest(name_by_time(time.time())), step="fit"))
    assert kinds(store, NOW) == left, "it is made"
    collect(store, NOW)
    rooms = {path.partition("/")[0] for path in store.objects.sizes(store.root)}
    assert rooms == {"manifests", "runs"}


# --- beside drivers ------------------------------------------------------------------------------


COUNT_AND_ADD = """
import sys
from toy_steps import Times, add, multiply, numbers, slow_count
from pipeline import File, run
store, journal, source = sys.argv[1:]
product = multiply(numbers(File(source), journal)["train"], Times(), journal)
run({"sum": add([product, slow_count(30, journal)], journal)}, store)
"""


def test_a_driver_at_work_loses_nothing(lab: Lab) -> None:
    """It is collected beside it all the time, and kept is nothing else."""

    def collected_at_last() -> bool:
        collect(lab.store, Policy(last=0, grace=0))
        return "count 28" in journal_lines(lab.journal)

    lab.run(product=lab.product())
    driver = start_driver(lab, COUNT_AND_ADD, str(lab.source))
    try:
        wait_for(lab, "count 1")
        wait_until(collected_at_last, "the step counts to its end", every=0.02)
        assert driver.wait() == 0
    finally:
        driver.kill()
    ran = [line for line in journal_lines(lab.journal) if "count " not in line]
    assert ran == ["numbers", "multiply", "slow_count", "add"]
    assert newest(lab, "add").metrics == {"total": 2 * (1 + 3) + 30}


@pytest.mark.usefixtures("one_run")
def test_a_run_in_progress_keeps_what_it_planned_with(lab: Lab) -> None:
    lab.run(other=parity(lab.numbers()["train"], lab.journal))
    first, last = read_runs(lab.store)
    record = json.loads(lab.store.read(f"{lab.store.root}/runs/{first.name}.json") or b"")
    assert Kind.ARTIFACT in kinds(lab.store, LAST)
    lab.store.record_run({**record, "outcome": "running"})  # by this process, which is alive
    assert Kind.ARTIFACT not in kinds(lab.store, LAST)
    with pytest.raises(TemperError, match="is in progress"):
        forget_run(lab.store, first.name)
    done = subprocess.Popen(["true"])
    done.wait()
    lab.store.record_run({**record, "outcome": "running", "pid": done.pid})
    assert Kind.ARTIFACT in kinds(lab.store, LAST)
    assert first.name < last.name


@pytest.mark.parametrize("known", [True, False])
def test_what_a_run_in_progress_waits_for_stays(lab: Lab, known: bool) -> None:
    """Another driver has made it, and is done."""
    lab.run(product=lab.product())
    lab.run(other=parity(lab.numbers()["train"], lab.journal))
    (record,) = (run for run in read_runs(lab.store) if run.count("done") == 2)
    waiting = {"step": "multiply", "state": "blocked", "attempt": None}
    waiting["key"] = newest(lab, "multiply").key if known else None
    step = {"run": "20990101T000000-waits", "outcome": "running", "steps": [waiting]}
    assert steps_of(lab.store, Kind.ARTIFACT, LAST) == {"multiply"}
    lab.store.record_run({**step, "host": record.host, "pid": os.getpid()})
    assert steps_of(lab.store, Kind.ARTIFACT, LAST) == {"numbers", "parity"}


@pytest.mark.usefixtures("two_runs")
def test_what_came_into_use_since_it_was_found_stays(lab: Lab) -> None:
    findings = find_garbage(lab.store, LAST)
    lab.run(product=lab.product())  # the old one again
    delete(lab.store, findings)
    assert lab.run(product=lab.product()) == []


@pytest.mark.usefixtures("one_run")
def test_a_key_whose_lease_is_held_is_passed_over(lab: Lab) -> None:
    made = newest(lab, "multiply")
    lab.run(product=lab.product(Times(3)))
    findings = find_garbage(lab.store, LAST)
    with Leases(lab.store.objects, lab.store.root, "other").held(
        "multiply", made.key, lambda: False
    ):
        assert steps_of(lab.store, Kind.ARTIFACT, LAST) == set()
        delete(lab.store, findings)
        assert content(lab, made).exists()
    collect(lab.store, LAST)
    assert not content(lab, made).exists()


@pytest.mark.usefixtures("one_run")
def test_a_lease_that_is_taken_at_the_same_moment_is_left_alone(lab: Lab) -> None:
    key = newest(lab, "multiply").key
    findings = find_garbage(lab.store, NOW)
    assert Kind.LEASE in {garbage.kind for garbage in findings.garbage}
    leases = Leases(lab.store.objects, lab.store.root, "other")
    with leases.held("multiply", key, lambda: False) as lease:
        delete(lab.store, findings)
        assert leases.holders("multiply")[key].run == "other"
        assert lease is not None
        assert lease.confirm()


def test_a_holder_on_another_machine_counts_as_alive(lab: Lab) -> None:
    killed_while_counting(lab)
    (path,) = (Path(lab.store.root) / "leases" / "slow_count").rglob("*.json")
    record = json.loads(path.read_text())
    assert record["host"] == socket.gethostname()
    path.write_text(json.dumps({**record, "machine": "another", "host": "another"}))
    assert find_garbage(lab.store, replace(LAST, last=0)).garbage == []


def test_objects_of_others_in_a_bucket_are_left_alone(tmp_path: Path) -> None:
    store = Store(f"memory://{tmp_path.name}/store")
    store.prepare()
    folders = ("scratch", "leases", "attempts", "manifests", "jobs", "progress", "runs", "index")
    theirs = [f"{store.root}/{folder}/{name}" for folder in folders for name in ("a", "b/c")]
    for path in theirs:
        store.objects.replace(path, b"theirs")
    collect(store, LAST)
    assert all(store.read(path) == b"theirs" for path in theirs)


@pytest.mark.parametrize(
    "store_url", ["gcs", pytest.param("s3", marks=pytest.mark.attack)], indirect=True
)
def test_collecting_works_on_every_kind_of_store(
    store_url: str, tmp_path: Path, console: Console
) -> None:
    lab = Lab(tmp_path, Store(store_url), console)
    lab.run(product=lab.product())
    lab.run(product=lab.product(Times(3)))
    with pytest.raises(RunFailed):
        lab.run(broken=fail(lab.numbers(), lab.journal), product=lab.product(Times(3)))
    assert {Kind.ARTIFACT, Kind.ATTEMPT, Kind.LEASE} <= kinds(lab.store, LAST)
    collect(lab.store, LAST)
    assert find_garbage(lab.store, LAST).garbage == []
    assert lab.run(product=lab.product(Times(3))) == []
    assert lab.run(product=lab.product()) == ["multiply"]
