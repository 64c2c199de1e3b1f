"""A real Ray cluster of two nodes on this machine, for tests and benchmarks.

The second node claims to be the first host of a TPU pod slice. The cluster has its own ports,
folders and client token.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.daemons import ending_with_us, free_port

START_SECONDS = 120.0
_TOKEN = secrets.token_hex(32)
"""The token of clients, for all clusters of this process, as Ray's client reads it only once."""


@dataclass
class RayCluster:
    """A running cluster.

    Attributes:
        address: the address of the dashboard, which accepts jobs.
        environment: the environment variables for clients.
    """

    folder: Path
    address: str
    gcs: str
    environment: Mapping[str, str]
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_node(self, cpus: int, resources: Mapping[str, float]) -> subprocess.Popen[bytes]:
        """Add a node in a separate process, which can be killed."""
        node = _start(
            self.folder, self.environment, f"node-{len(self.nodes)}",
            *("--address", self.gcs, "--num-cpus", str(cpus), "--num-gpus", "0"),
            *("--resources", json.dumps(resources)),
        )  # fmt: skip
        self.nodes.append(node)
        return node

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """Kill every process of a node at once, like a power failure."""
        doomed = [node.pid, *_below(node.pid)] if node.poll() is None else []
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def count(self) -> int:
        from ray.util.state import list_nodes  # pyright: ignore[reportMissingImports]

        found: list[Any] = list_nodes(self.address, raise_on_missing_output=False)
        return sum(node.state == "ALIVE" for node in found)


def why_not() -> str:
    """Why there can be no cluster here; empty if there can."""
    return "" if find_spec("ray") else "Ray is not installed (pip install 'temper-ml[ray]')"


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """A head node, and one that is the first host of a TPU pod slice; 2 CPUs each."""
    folder = Path(tempfile.mkdtemp(prefix="tr-"))  # short: Ray's sockets lie below
    port, dashboard = free_port(), free_port()
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": _TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(folder),
        "RAY_enable_worker_prestart": "0",  # a job needs one or two, not one a CPU
        "RAY_prestart_worker_first_driver": "0",
    }
    cluster = RayCluster(folder, f"http://127.0.0.1:{dashboard}", f"127.0.0.1:{port}", environment)
    heads: list[subprocess.Popen[bytes]] = []
    try:
        with _variables(environment):
            while not _is_up(cluster, heads):
                heads.append(_start_head(folder, environment, port, dashboard, len(heads)))
            cluster.add_node(2, {"TPU": 4, "TPU-v5p-8-head": 1})
            _wait(cluster, 2)
            yield cluster
    finally:
        for node in (*cluster.nodes, *heads):
            cluster.kill(node)
        shutil.rmtree(folder, ignore_errors=True)


def _is_up(cluster: RayCluster, heads: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Wait for the newest head. On a busy machine one of its processes may give up, and the head
    ends; then another is to be started.

    Raises:
        TimeoutError: the third head has ended too, or is not there in time.
    """
    if not heads:
        return False
    try:
        _wait(cluster, 1, heads[-1])
    except TimeoutError:
        if len(heads) == 3 or heads[-1].poll() is None:
            raise
        cluster.kill(heads[-1])
        return False
    return True


def _start_head(
    folder: Path, environment: Mapping[str, str], port: int, dashboard: int, number: int
) -> subprocess.Popen[bytes]:
    return _start(
        folder, environment, "head",
        *("--head", "--port", str(port), "--num-cpus", "2", "--num-gpus", "0"),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
        # the default is one fixed port, for all clusters of a machine
        *("--ray-client-server-port", str(free_port())),
        *("--no-monitor", "--temp-dir", str(folder / f"r{number}")),  # nothing adds nodes
    )  # fmt: skip


def _start(
    folder: Path, environment: Mapping[str, str], name: str, *options: str
) -> subprocess.Popen[bytes]:
    with open(folder / f"{name}.out", "wb") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        command += ["--node-ip-address", "127.0.0.1", "--include-log-monitor", "false"]
        # by default one fixed port: where another node has it, Ray starts without what takes jobs
        command += ["--dashboard-agent-listen-port", "0"]
        return subprocess.Popen(
            ending_with_us(command) if name == "head" else command,  # the nodes end with the head
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _below(pid: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *_below(int(child))]
    return found


def _wait(cluster: RayCluster, nodes: int, head: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and (head is None or head.poll() is None):
        with contextlib.suppress(Exception):  # not there yet, in many ways
            if cluster.count() >= nodes:
                return
        time.sleep(0.5)
    logs = "".join(p.read_text(errors="replace")[-2000:] for p in cluster.folder.glob("*.out"))
    raise TimeoutError(f"Ray did not start: {logs}")


@contextlib.contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
