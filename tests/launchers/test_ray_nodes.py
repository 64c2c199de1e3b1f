"""The entrypoint of a Ray job on several nodes, with a Ray whose actors are threads of this
process; `test_ray.py` has a real one."""

import importlib
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from pipeline.wire.launcher import PREEMPTED

ENTRYPOINT = "pipeline.launchers.ray_nodes"
SLICE = [
    {"CPU": 8.0, "TPU": 4.0, "TPU-v5p-16-head": 1.0, "mine": 1.0},
    {"CPU": 8.0, "TPU": 4.0, "mine": 1.0},
]


class ActorError(Exception):
    """Ray's error of an actor whose node is gone."""


@dataclass
class Cluster:
    """What Ray says of its nodes, and what it was asked to start on them."""

    nodes: Sequence[Mapping[str, float]] = ()
    has_room: bool = True
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    bundles: list[Mapping[str, float]] = field(default_factory=list)
    looked: int = 0
    on_look: Callable[[int], None] = lambda _: None
    is_lost: bool = False
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def look(self) -> list[dict[str, Any]]:
        self.looked += 1
        self.on_look(self.looked)
        dead = {"Alive": False, "Resources": SLICE[1]}
        return [dead, *({"Alive": True, "Resources": dict(node)} for node in self.nodes)]

    def place(self, bundles: list[Mapping[str, float]], strategy: str) -> SimpleNamespace:
        assert strategy == "STRICT_SPREAD"  # each worker has a machine of its own
        self.bundles = bundles
        return SimpleNamespace(ready=lambda: "room")

    def wait(self, things: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        if things == ["room"]:
            return (things, []) if self.has_room else ([], things)
        done, left = wait(things, timeout / 25, FIRST_COMPLETED)
        return list(done), list(left)

    def get(self, things: Any) -> Any:
        if self.is_lost:
            raise ActorError("the node is gone")
        if isinstance(things, Future):
            return things.result()
        return [future.result() for future in things]

    def actor(self, kind: type) -> SimpleNamespace:
        def options(**asked: Any) -> SimpleNamespace:
            self.asked.append(asked)
            return SimpleNamespace(remote=start)

        def start() -> SimpleNamespace:
            host = kind()
            return SimpleNamespace(**{
                name: SimpleNamespace(remote=lambda *a, name=name: self.threads.submit(
                    getattr(host, name), *a
                ))
                for name in ("address", "run", "stop")
            })  # fmt: skip

        return SimpleNamespace(options=options)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster()
    modules = {
        "ray": {
            "init": lambda **_: None, "wait": cluster.wait, "get": cluster.get,
            "remote": cluster.actor, "nodes": cluster.look,
            "available_resources": dict,
            "util": SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1"),
        },
        "ray.exceptions": {"RayActorError": ActorError},
        "ray.util.placement_group": {"placement_group": cluster.place},
        "ray.util.scheduling_strategies": {
            "PlacementGroupSchedulingStrategy": lambda *_, **where: where
        },
    }  # fmt: skip
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, ENTRYPOINT, raising=False)
    heeded = signal.getsignal(signal.SIGTERM)
    yield cluster
    signal.signal(signal.SIGTERM, heeded)
    cluster.threads.shutdown()
    sys.modules.pop(ENTRYPOINT, None)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What every node starts in place of a worker: ``NODE.sh``, a few lines of shell."""
    started = tmp_path / "python"
    started.write_text(
        f"#!/bin/sh\ncd {tmp_path}\necho $TEMPER_MASTER $@ > $TEMPER_NODE\n. ./$TEMPER_NODE.sh\n"
    )
    started.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(started))
    return tmp_path


WAITS = "trap 'exit {}' TERM; touch waits-$TEMPER_NODE; while :; do sleep 0.05; done\n"


def workers(folder: Path, *lines: str) -> None:
    for node, line in enumerate(lines):
        (folder / f"{node}.sh").write_text(line)


def begin(nodes: int, tpu: str = "") -> int:
    module = importlib.import_module(ENTRYPOINT)
    return module.main("file:///spec.json", nodes, tpu, {"CPU": 2.0})


def stop_once(seen: Callable[[], bool]) -> threading.Thread:
    """Ask the entrypoint to stop, as Ray does."""

    def stop() -> None:
        wait_until(seen)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    return thread


def test_a_worker_begins_on_every_node_and_knows_the_first(
    ray: Cluster, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers(worker, "exit 0", "exit 0")
    command = [ENTRYPOINT, "file:///spec.json", "2", "", "CPU=2.0", "GPU=1.0", "memory=1024.0"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(ENTRYPOINT, run_name="__main__")
    assert ended.value.code == 0
    assert ray.bundles == [{"CPU": 2.0, "GPU": 1.0, "memory": 1024.0}] * 2
    assert [(a["num_cpus"], a["num_gpus"], a["memory"]) for a in ray.asked] == [(2, 1, 1024)] * 2
    assert [a["scheduling_strategy"]["placement_group_bundle_index"] for a in ray.asked] == [0, 1]
    master, *first = (worker / "0").read_text().split()
    assert master.startswith("10.0.0.1:")
    assert first == ["-P", "-m", "pipeline.worker.attempt", "file:///spec.json"]
    assert (worker / "1").read_text().split() == [master, *first]


@pytest.mark.parametrize(("end", "status"), [("exit 3", 3), ("kill -9 $$", 128 + 9)])
def test_when_one_worker_fails_the_others_are_stopped_and_its_status_is_that_of_the_job(
    ray: Cluster, worker: Path, end: str, status: int
) -> None:
    workers(worker, WAITS.format(75), f"until [ -e waits-0 ]; do sleep 0.01; done; {end}")
    assert begin(2) == status
    assert not ray.threads.submit(int).exception()  # no thread waits for a worker any more


@pytest.mark.parametrize(("statuses", "end"), [((75, 75), PREEMPTED), ((0, 0), 0)])
def test_a_job_that_is_stopped_lets_its_workers_save(
    ray: Cluster, worker: Path, statuses: tuple[int, int], end: int
) -> None:
    workers(worker, *(WAITS.format(status) for status in statuses))
    stopping = stop_once(lambda: all((worker / f"waits-{i}").exists() for i in range(2)))
    assert begin(2) == end
    stopping.join()


def test_a_job_waits_for_a_slice_with_all_its_hosts_and_takes_that(
    ray: Cluster, worker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module(ENTRYPOINT), "POLL_SECONDS", 0.01)
    workers(worker, "exit 0", "exit 0")
    ray.nodes = SLICE[:1]

    def complete(looked: int) -> None:
        ray.nodes = SLICE if looked > 2 else SLICE[:1]

    ray.on_look = complete
    assert begin(2, "v5p-16") == 0
    assert ray.looked == 3
    assert ray.bundles == [
        {"CPU": 2.0, "TPU": 4.0, "mine": 1.0, "TPU-v5p-16-head": 1.0},
        {"CPU": 2.0, "TPU": 4.0, "mine": 1.0},
    ]
