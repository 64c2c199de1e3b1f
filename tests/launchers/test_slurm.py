"""Steps as jobs of a real Slurm cluster of two nodes, started here."""

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import start_driver
from job_steps import (
    add_ranks,
    at_most,
    call,
    count_to,
    counted,
    gang,
    let_go_once_logged,
    lines,
    listening,
    log_of,
    where,
)
from rich.console import Console
from waiting import hold, let_go, wait_until

from benchmarks.slurm_cluster import SlurmCluster, slurm_cluster, why_not
from pipeline import Store, TemperError, run
from pipeline.dag.step import Step
from pipeline.launchers.config import LauncherConfig, SlurmConfig
from pipeline.running.session import RunFailed
from pipeline.wire import presence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"no Slurm: {why_not()}"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with pytest.MonkeyPatch.context() as patch, slurm_cluster() as cluster:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(autouse=True)
def not_for_ever(cluster: SlurmCluster) -> Iterator[None]:
    with at_most(600, lambda: f"jobs: {jobs(cluster)}, nodes: {cluster.ask('sinfo', '-N')}"):
        yield


@pytest.fixture
def launcher(cluster: SlurmCluster, tmp_path: Path) -> LauncherConfig:
    slurm = SlurmConfig(folder=str(tmp_path / "slurm"), poll_seconds=1.0, grace_seconds=60.0)
    return LauncherConfig(use=["slurm"], slurm=slurm)


def jobs(cluster: SlurmCluster) -> list[str]:
    return cluster.ask("squeue", "--noheader", "--format=%i %j %T").splitlines()


def preempt(cluster: SlurmCluster, when: Callable[[], object]) -> None:
    """Take both nodes away for a moment."""
    wait_until(when)
    job = ["sbatch", "--partition=high", "--exclusive", "-N2", "--output=/dev/null", "--wrap"]
    cluster.ask(*job, "sleep 2")


SHARING = """
import sys
from pipeline import File, run
from pipeline.launchers.config import LauncherConfig, SlurmConfig
from toy_steps import Times, add, multiply, numbers
store, journal, folder, source, *factors = sys.argv[1:]
config = LauncherConfig(use=["slurm"], slurm=SlurmConfig(folder=folder, poll_seconds=1.0))
values = numbers(File(source), journal)["train"]
products = [multiply(values, Times(int(factor)), journal) for factor in factors]
run([add(products, journal)], store, jobs=4, launcher=config)
"""
DRIVER = """
import sys
from job_steps import count_to
from pipeline import run
from pipeline.launchers.config import LauncherConfig, SlurmConfig
store, journal, folder = sys.argv[1:]
config = LauncherConfig(use=["slurm"], slurm=SlurmConfig(folder=folder, poll_seconds=1.0))
run([count_to(6, journal, heed=False)], store, launcher=config)
"""


def test_steps_run_as_jobs_and_make_what_they_make_here(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, tmp_path: Path
) -> None:
    launcher.slurm.options = {"export": "NONE"}  # as some clusters have it
    roots: list[Step] = [
        count_to(3, journal, 0.01),
        where(journal).on(gpus=1, accelerator="toy", cpus=2),
        call("srun --ntasks=1 hostname"),
    ]
    counted, placed, _ = run(roots, store, jobs=3, console=console, launcher=launcher).values()
    assert re.match(r"\[slurm job \d+: submitted\]", log_of(store, counted.manifest))
    assert placed.metrics["devices"] in ("0", "1")
    assert placed.metrics["threads"] == "2"
    here = run(roots[:1], str(tmp_path / "other"), console=console)
    (other,) = here.values()
    assert (other.key, other.digest) == (counted.key, counted.digest)
    assert not list(Path(store.root, "jobs").rglob("*.json"))


def test_ranks_on_two_nodes_work_together(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    root = add_ranks(journal, [1.0, 2.0, 3.0]).on(nodes=2, processes=1)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    assert made.metrics == {"total": 6.0, "ranks": 2}
    assert sorted(lines(journal)) == ["rank 0 of 2 node 0", "rank 1 of 2 node 1"]


def test_a_rank_that_fails_on_another_node_fails_the_step_at_once(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    """Slurm tells the other node to leave, which is not to be taken for a preemption."""
    with pytest.raises(RunFailed):
        run([gang(journal, "raise 1").on(nodes=2)], store, console=console, launcher=launcher)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "node 1: rank 1: this rank has no data" in printed
    assert sum("pid" in line for line in lines(journal)) == 2


def test_ranks_on_two_nodes_that_are_preempted_all_save_and_go_on(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    other = threading.Thread(target=preempt, args=(cluster, lambda: len(listening(journal)) == 2))
    other.start()
    root = gang(journal, "leave").on(nodes=2)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    other.join()
    assert made.metrics == {"ranks": 2}
    assert sorted(line for line in lines(journal) if "left" in line) == [
        "rank 0 left",
        "rank 1 left",
    ]


def test_a_driver_that_is_started_again_waits_for_the_job_of_the_first(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    hold(journal, 3)
    driver = start_driver(DRIVER, store.root, journal, launcher.slurm.folder)
    wait_until(lambda: len(counted(journal)) == 3)
    driver.kill()
    driver.communicate()
    root = count_to(6, journal, heed=False)
    with let_go_once_logged(store, journal, "submitted by an earlier driver"):
        (made,) = run([root], store, console=console, launcher=launcher).values()
    assert lines(journal).count("from 0") == 1
    assert len(lines(journal)) == 7
    assert made.metrics == {"until": 6}


def test_a_job_that_ended_well_without_a_driver_is_committed_by_the_next(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    hold(journal, 3)
    driver = start_driver(DRIVER, store.root, journal, launcher.slurm.folder)
    wait_until(lambda: len(counted(journal)) == 3)
    driver.terminate()
    driver.communicate()
    let_go(journal)
    wait_until(lambda: not jobs(cluster))
    root = count_to(6, journal, heed=False)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    assert len(lines(journal)) == 7
    assert made.metrics == {"until": 6}


def test_a_job_that_waits_in_the_queue_is_found_too(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    blocker = cluster.ask(
        "sbatch", "--parsable", "--exclusive", "-N2", "--output=/dev/null", "--wrap", "sleep 600"
    ).strip()
    driver = start_driver(DRIVER, store.root, journal, launcher.slurm.folder)
    wait_until(lambda: any("PENDING" in job for job in jobs(cluster)))
    driver.kill()
    driver.communicate()
    threading.Timer(3, cluster.ask, ("scancel", blocker)).start()
    root = count_to(6, journal, heed=False)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    assert len(lines(journal)) == 7
    assert made.metrics == {"until": 6}


def test_experiments_that_share_steps_submit_each_once(
    store: Store, launcher: LauncherConfig, tmp_path: Path
) -> None:
    (tmp_path / "numbers.txt").write_text("1 2 3 4")
    shared = (store.root, tmp_path / "journal", launcher.slurm.folder, tmp_path / "numbers.txt")
    drivers = [start_driver(SHARING, *shared, "2", other) for other in ("3", "4")]
    for driver in drivers:
        out = driver.communicate()
        assert driver.returncode == 0, out
    ran = sorted(lines(tmp_path / "journal"))
    assert ran == ["add", "add", "multiply", "multiply", "multiply", "numbers"]
    assert len(list(Path(launcher.slurm.folder).glob("*.sh"))) == 6


def test_after_the_loss_of_a_node_the_step_goes_on_elsewhere(
    store: Store,
    launcher: LauncherConfig,
    journal: str,
    console: Console,
    cluster: SlurmCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "SILENCE_SECONDS", 8.0)
    hold(journal, 3)

    def lose() -> None:
        wait_until(lambda: len(counted(journal)) == 3)
        node = cluster.ask("squeue", "--noheader", "--format=%N").strip()  # it comes back by itself
        cluster.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        let_go(journal)

    loser = threading.Thread(target=lose)
    loser.start()
    root = count_to(6, journal, heed=False)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    loser.join()
    assert made.metrics == {"until": 6}
    assert len(set(counted(journal))) == 6


def test_what_is_cancelled_by_hand_fails_and_goes_on_when_it_is_run_again(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    hold(journal, 3)

    def cancel() -> None:
        wait_until(lambda: len(counted(journal)) == 3)
        cluster.ask("scancel", jobs(cluster)[0].split()[0])

    canceller = threading.Thread(target=cancel)
    canceller.start()
    root = count_to(6, journal)
    with pytest.raises(RunFailed):
        run([root], store, console=console, launcher=launcher)
    canceller.join()
    assert "was cancelled" in console.file.getvalue()  # type: ignore[attr-defined]
    wait_until(lambda: not jobs(cluster), "the job leaves the queue")
    let_go(journal)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    assert made.metrics == {"until": 6}
    (left,) = [line.split()[-1] for line in lines(journal) if line.startswith("left")]
    assert f"from {left}" in lines(journal)


def test_a_job_that_another_preempts_goes_on_from_its_scratch(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    hold(journal, 3)

    def preempt_and_let_go() -> None:
        preempt(cluster, lambda: len(counted(journal)) == 3)
        wait_until(lambda: any(line.startswith("left") for line in lines(journal)))
        let_go(journal)

    other = threading.Thread(target=preempt_and_let_go)
    other.start()
    (made,) = run([count_to(6, journal)], store, console=console, launcher=launcher).values()
    other.join()
    assert made.metrics == {"until": 6}
    (left,) = [line.split()[-1] for line in lines(journal) if line.startswith("left")]
    assert [line for line in lines(journal) if line.startswith("from")] == [
        "from 0",
        f"from {left}",
    ]
    assert len(counted(journal)) == 5


def test_a_worker_that_is_killed_is_a_failure_that_says_so(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    hold(journal, 3)

    def kill() -> None:
        wait_until(lambda: len(counted(journal)) == 3)
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if command.startswith(sys.executable.encode()) and store.root.encode() in command:
                    os.kill(int(process.name), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    root = count_to(6, journal, heed=False)
    with pytest.raises(RunFailed):
        run([root], store, console=console, launcher=launcher)
    killer.join()
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert re.search(r"slurm job \d+: FAILED", printed)
    let_go(journal)
    run([root], store, console=console, launcher=launcher)
    assert len(counted(journal)) == 6


def test_ctrl_c_ends_the_job_in_order_and_the_next_run_goes_on_at_once(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: SlurmCluster
) -> None:
    hold(journal, 3)
    driver = start_driver(DRIVER, store.root, journal, launcher.slurm.folder)
    wait_until(lambda: len(counted(journal)) == 3)
    driver.send_signal(signal.SIGINT)
    driver.communicate()
    let_go(journal)
    root = count_to(6, journal, heed=False)
    run([root], store, console=console, launcher=launcher)
    assert len(set(counted(journal))) == 6
    assert len(counted(journal)) <= 7  # the job may have gone on for a moment
    wait_until(lambda: not jobs(cluster), "the job leaves the queue")


def test_what_the_cluster_does_not_have_is_refused_before_anything_runs(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    offered = r"slurm has in partition low: nodes=2, cpus=4, memory=7GiB, gpus=2 Toy"
    too_much: list[dict[str, Any]] = [
        {"gpus": 3},
        {"nodes": 3},
        {"gpus": 1, "accelerator": "H100"},
        {"time": "9h"},
    ]
    for asked in too_much:
        with pytest.raises(TemperError, match=offered):
            run([where(journal).on(**asked)], store, console=console, launcher=launcher)
    launcher.slurm.partition = "gpu"
    with pytest.raises(TemperError, match=r"there is no partition gpu; .* names one of: low, high"):
        run([where(journal)], store, console=console, launcher=launcher)
    launcher.slurm.partition, launcher.slurm.options = None, {"qosx": "high"}
    with pytest.raises(RunFailed):
        run([where(journal)], store, console=console, launcher=launcher)
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "unrecognized option '--qosx=high'" in " ".join(told.split())
    assert not lines(journal)
