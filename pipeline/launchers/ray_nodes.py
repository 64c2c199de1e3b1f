"""The entrypoint of a Ray job on several nodes: it starts a worker on each node.

``python -m pipeline.launchers.ray_nodes SPEC NODES TPU NAME=AMOUNT…``. Each worker runs in a Ray
actor; a placement group has one bundle for each node. The first host of a TPU slice is found by its
own resource, the others by the slice's name. If a slice is taken away, the job ends; the next job
waits for a complete slice.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray.exceptions import RayActorError  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import placement_group  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

from pipeline.launchers.ray_jobs import LOST, slices_of
from pipeline.wire.launcher import MASTER, NODE, PREEMPTED
from pipeline.wire.lifeline import ENVIRONMENT, Lifeline

POLL_SECONDS = 0.5


def main(spec: str, nodes: int, tpu: str, asked: dict[str, float]) -> int:
    """Run the workers; return the first status that is not 0, or 0."""
    ray.init(address="auto", log_to_driver=True)
    asked_to_stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.set())  # replaces Ray's own handler
    while not (bundles := _bundles(nodes, tpu, asked)):
        if asked_to_stop.wait(POLL_SECONDS):
            return LOST  # there is no worker yet that could write a report
    group = placement_group(bundles, strategy="STRICT_SPREAD")
    ready = group.ready()
    while not ray.wait([ready], timeout=POLL_SECONDS)[0]:
        if asked_to_stop.is_set() or not _are_there(bundles):
            return LOST
    hosts = [_on(group, bundles, i, _Host) for i in range(nodes)]
    try:
        return _run(hosts, spec, asked_to_stop)
    except RayActorError as error:
        print(f"a node was lost: {error}", flush=True)
        return LOST


def _run(hosts: list[Any], spec: str, asked_to_stop: threading.Event) -> int:
    """
    Raises:
        RayActorError: a host was lost; the other workers end with this process.
    """
    master = ray.get(hosts[0].address.remote())
    running = [host.run.remote(spec, i, master) for i, host in enumerate(hosts)]
    left = list(running)
    while left:
        done, left = ray.wait(left, timeout=POLL_SECONDS)
        for answer in done:
            if (status := ray.get(answer)) != 0:  # stop the others, which would wait for it
                _stop(hosts, running)
                return status
        if asked_to_stop.is_set():
            return PREEMPTED if any(_stop(hosts, running)) else 0
    return 0


def _stop(hosts: list[Any], running: list[Any]) -> list[int]:
    """Ask all workers to stop, within their own grace period; return their statuses."""
    ray.get([host.stop.remote() for host in hosts])
    return ray.get(running)


class _Host:
    """One node's worker, started in an actor; it ends with the actor, however that ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._starting = threading.Lock()  # Ray calls `stop` in another thread than `run`
        self._lifeline = Lifeline()

    def address(self) -> str:
        with socket.create_server(("", 0)) as free:
            return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def run(self, spec: str, node: int, master: str) -> int:
        """Run the worker; return its status in the convention of a shell."""
        command = [sys.executable, "-P", "-m", "pipeline.worker.attempt", spec]
        lifeline = self._lifeline.read_end
        environment = {**os.environ, NODE: str(node), MASTER: master, ENVIRONMENT: str(lifeline)}
        with self._starting:
            if self._is_stopping:
                return 128 + signal.SIGTERM
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=(lifeline,), start_new_session=True
            )
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def stop(self) -> None:
        with self._starting:
            self._is_stopping = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


def _bundles(nodes: int, tpu: str, asked: dict[str, float]) -> list[dict[str, float]]:
    """The resources that each node must have; empty while no slice has all its hosts."""
    if not tpu:
        return [dict(asked) for _ in range(nodes)]
    slices = slices_of(tpu, _alive())
    whole = {name: hosts for name, hosts in slices.items() if len(hosts) >= nodes}
    if not whole:
        return []
    free = ray.available_resources()
    name = max(whole, key=lambda name: free.get(name, 0.0))
    every = {**asked, "TPU": whole[name][0]["TPU"], **({name: 1.0} if name else {})}
    return [{**every, f"TPU-{tpu}-head": 1.0}, *(dict(every) for _ in range(nodes - 1))]


def _are_there(bundles: list[dict[str, float]]) -> bool:
    """Whether as many nodes as bundles still have the resources of the TPU slice."""
    names = [name for name in bundles[-1] if name not in ("CPU", "GPU", "memory")]
    having = [node for node in _alive() if all(name in node for name in names)]
    return "TPU" not in names or len(having) >= len(bundles)


def _alive() -> list[dict[str, float]]:
    """The resources of every node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _on(group: Any, bundles: list[dict[str, float]], index: int, kind: type) -> Any:
    others = dict(bundles[index])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    options = {
        "num_cpus": others.pop("CPU", 0),
        "num_gpus": others.pop("GPU", 0),
        "memory": others.pop("memory", None),
        "resources": others or None,
        "scheduling_strategy": strategy,
        "max_concurrency": 3,  # so that `stop` can be called while `run` is running
        "max_restarts": 0,
    }
    return ray.remote(kind).options(**options).remote()


if __name__ == "__main__":
    spec, nodes, tpu, *amounts = sys.argv[1:]
    pairs = (amount.split("=") for amount in amounts)
    sys.exit(main(spec, int(nodes), tpu, {name: float(amount) for name, amount in pairs}))
