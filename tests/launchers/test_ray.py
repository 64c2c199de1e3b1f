"""Steps as jobs of a real Ray cluster of two nodes, started here."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers import start_driver
from job_steps import (
    at_most,
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

from benchmarks.ray_cluster import RayCluster, ray_cluster, why_not
from pipeline import Store, TemperError, run
from pipeline.launchers.config import LauncherConfig, RayConfig
from pipeline.running.session import RunFailed
from pipeline.wire import presence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"no Ray: {why_not()}"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def not_for_ever(cluster: RayCluster) -> Iterator[None]:
    def explain() -> str:
        return f"{cluster.count()} nodes, {[str(job) for job in client(cluster).list_jobs()]}"

    with at_most(600, explain):
        yield


@pytest.fixture
def launcher(cluster: RayCluster) -> LauncherConfig:
    ray = RayConfig(address=cluster.address, poll_seconds=1.0, grace_seconds=60.0)
    return LauncherConfig(use=["ray"], ray=ray)


def client(cluster: RayCluster) -> Any:
    from ray.job_submission import JobSubmissionClient  # pyright: ignore[reportMissingImports]

    return JobSubmissionClient(cluster.address)


def stop_job(cluster: RayCluster, when: Callable[[], object]) -> None:
    """Stop the job that runs."""
    wait_until(when)
    running = [job for job in client(cluster).list_jobs() if str(job.status) == "RUNNING"]
    newest = max(running, key=lambda job: job.start_time)  # an earlier test may have left one
    client(cluster).stop_job(newest.submission_id)


DRIVER = """
import sys
from job_steps import count_to
from pipeline import run
from pipeline.launchers.config import LauncherConfig, RayConfig
store, journal, address = sys.argv[1:]
config = LauncherConfig(use=["ray"], ray=RayConfig(address=address, poll_seconds=1.0))
run([count_to(6, journal, heed=False)], store, launcher=config)
"""


def test_steps_run_as_jobs_and_make_what_they_make_here(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, tmp_path: Path
) -> None:
    roots = [count_to(3, journal, 0.01), where(journal).on(cpus=2)]
    made, placed = run(roots, store, jobs=2, console=console, launcher=launcher).values()
    assert f"[ray job temper-{made.manifest.attempt}: submitted]" in log_of(store, made.manifest)
    assert placed.metrics["threads"] == "2"
    assert placed.metrics["folder"] == os.getcwd()  # relative paths mean the driver's files
    (other,) = run(roots[:1], str(tmp_path / "other"), console=console).values()
    assert (other.key, other.digest) == (made.key, made.digest)


def test_a_step_that_asks_for_a_tpu_slice_goes_to_its_first_host(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    run([where(journal).on(tpu="v5p-8")], store, console=console, launcher=launcher)
    assert len(lines(journal)) == 1
    with pytest.raises(TemperError, match=r"asks for tpu=v4-8, and ray has the TPU slices v5p-8"):
        run([where(journal, 1).on(tpu="v4-8")], store, console=console, launcher=launcher)
    with pytest.raises(TemperError, match=r"asks for gpus=1, and ray has 2 nodes: cpus=2"):
        run([where(journal, 1).on(gpus=1)], store, console=console, launcher=launcher)


@pytest.mark.attack  # the ranks below, on hosts that Ray has to find
def test_all_hosts_of_a_tpu_slice_begin_together_and_go_on_with_another_when_one_is_taken_away(
    store: Store,
    launcher: LauncherConfig,
    journal: str,
    console: Console,
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """The first slice keeps its first host, which is of no use without the second."""
    monkeypatch.setattr(presence, "SILENCE_SECONDS", 12.0)
    root = gang(journal, "leave").on(tpu="v5p-16")
    request.addfinalizer(lambda: only_the_first_nodes(cluster))
    add_slice(cluster, "first", hosts=1)
    with pytest.raises(TemperError, match=r"ray has v5p-16 with 1 of its hosts \(nodes=2\)"):
        run([root], store, console=console, launcher=launcher)
    doomed = cluster.add_node(2, {"TPU": 4, "first": 1})
    wait_until(lambda: cluster.count() == 4)

    def take_away() -> None:
        wait_until(lambda: len(listening(journal)) == 2)
        cluster.kill(doomed)
        wait_until(lambda: cluster.count() == 3)
        add_slice(cluster, "second", hosts=2)

    taking = threading.Thread(target=take_away)
    taking.start()
    (made,) = run([root], store, console=console, launcher=launcher).values()
    taking.join()
    assert made.metrics == {"ranks": 2}


def only_the_first_nodes(cluster: RayCluster) -> None:
    while len(cluster.nodes) > 1:
        cluster.kill(cluster.nodes.pop())
    wait_until(lambda: cluster.count() == 2)


def add_slice(cluster: RayCluster, name: str, hosts: int) -> None:
    """Add hosts one after the other: of two that start at once on one machine, Ray may lose one."""
    for host in range(hosts):
        present = cluster.count()
        cluster.add_node(2, {"TPU": 4, name: 1, **({} if host else {"TPU-v5p-16-head": 1})})
        wait_until(lambda present=present: cluster.count() > present)


def test_ranks_on_two_nodes_that_are_stopped_by_hand_all_save_and_go_on(
    store: Store, launcher: LauncherConfig, journal: str, console: Console, cluster: RayCluster
) -> None:
    stopper = threading.Thread(
        target=stop_job, args=(cluster, lambda: len(listening(journal)) == 2)
    )
    stopper.start()
    root = gang(journal, "leave").on(nodes=2)
    with pytest.raises(RunFailed):
        run([root], store, console=console, launcher=launcher)
    stopper.join()
    assert "was cancelled" in console.file.getvalue()  # type: ignore[attr-defined]
    assert sorted(line for line in lines(journal) if "left" in line) == [
        "rank 0 left",
        "rank 1 left",
    ]
    (made,) = run([root], store, console=console, launcher=launcher).values()
    assert made.metrics == {"ranks": 2}


@pytest.mark.attack  # a step of one node, below, is killed alike
def test_ranks_on_two_nodes_of_which_one_is_killed_go_on(
    store: Store,
    launcher: LauncherConfig,
    journal: str,
    console: Console,
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "SILENCE_SECONDS", 12.0)

    def kill() -> None:
        wait_until(lambda: len(listening(journal)) == 2)
        cluster.kill(cluster.nodes.pop(0))
        cluster.add_node(2, {"TPU": 4, "TPU-v5p-8-head": 1})

    killer = threading.Thread(target=kill)
    killer.start()
    root = gang(journal, "leave").on(nodes=2)
    (made,) = run([root], store, console=console, launcher=launcher).values()
    killer.join()
    assert made.metrics == {"ranks": 2}


def test_a_driver_that_is_started_again_waits_for_the_job_of_the_first(
    store: Store, launcher: LauncherConfig, journal: str, console: Console
) -> None:
    hold(journal, 3)
    driver = start_driver(DRIVER, store.root, journal, launcher.ray.address)
    wait_until(lambda: len(counted(journal)) == 3)
    driver.kill()
    driver.wait()
    root = count_to(6, journal, heed=False)
    with let_go_once_logged(store, journal, "submitted by an earlier driver"):
        run([root], store, console=console, launcher=launcher)
    assert len(lines(journal)) == 7


def test_after_the_kill_of_a_node_the_step_goes_on_elsewhere(
    store: Store,
    launcher: LauncherConfig,
    journal: str,
    console: Console,
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "SILENCE_SECONDS", 12.0)
    hold(journal, 3)

    def kill() -> None:
        wait_until(lambda: len(counted(journal)) == 3)
        cluster.kill(cluster.nodes.pop(0))
        let_go(journal)
        cluster.add_node(2, {"TPU": 4, "TPU-v5p-8-head": 1})

    killer = threading.Thread(target=kill)
    killer.start()
    root = count_to(6, journal, heed=False).on(tpu="v5p-8")
    (made,) = run([root], store, console=console, launcher=launcher).values()
    killer.join()
    assert made.metrics == {"until": 6}
    assert len([line for line in lines(journal) if line.startswith("from")]) == 2
    assert len(set(counted(journal))) == 6
