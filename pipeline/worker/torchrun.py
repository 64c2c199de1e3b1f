"""Runs a step on several devices: one process for each, started by ``torchrun`` on every node.

Every rank calls the step function. The function sets up the process group from the environment of
``torchrun`` (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``). The ranks
of a node share its output folder and scratch, and must coordinate their use. The artifact consists
of the files of the first node; other nodes' files are not part of it, unless the store is a folder
that all nodes share. Metrics and progress are those of rank 0.

Ranks take no lease, write no report and commit nothing: they belong to one worker, and end with it.
``torchrun`` ignores SIGTERM, which an engine may send to every process of a job or to only one; the
worker forwards the request as SIGUSR1, once.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.redaction import exact_record
from pipeline.dag.artifact import Artifact
from pipeline.dag.canonical import reference_to
from pipeline.dag.step import Metrics
from pipeline.observed.hook import unobserved
from pipeline.observed.observation import ENVIRONMENT as OBSERVED
from pipeline.wire.launcher import MASTER, NODE
from pipeline.wire.spec import StepSpec, handed_over
from pipeline.worker.failure import FailedElsewhere, Failure
from pipeline.worker.stopping import Stopping

POLL_SECONDS = 0.2
PAUSED = "paused"
"""The file with which a rank reports that the step has reached the point of its pause."""


@dataclass(frozen=True)
class Node:
    """One of the machines on which a step runs."""

    index: int
    master: str


ALONE = Node(0, "")

_OF_A_RANK = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE"),
)
"""What ``torchrun`` sets for a rank, and Kubernetes for the pods of a training job. Told to use an
agent's store, even a step that makes a group of its own would wait for that agent."""
_OF_A_TASK = (
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCAL", "MV2_COMM_WORLD_"),
)
"""How the names begin of what ``srun`` and ``mpirun`` set for each of their processes. JAX and MPI
look for them, also in a process that is none of these."""
_SETTINGS = "PMIX_MCA_"
"""How the names of PMIx's settings begin, which people set for the ``mpirun`` of a step."""
_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
"""How many tasks a step of ``srun`` has or, if it has one, an allocation: a step that calls
``srun`` itself starts so many."""


def forget_other_ranks() -> None:
    """Remove the variables of a rank that this worker may have from whoever started the driver: a
    step in one process would wait for the other ranks."""
    is_alone = os.environ.get("SLURM_STEP_NUM_TASKS", "1") == "1"
    for name in list(os.environ):
        is_of_task = name.startswith(_OF_A_TASK) and not name.startswith(_SETTINGS)
        if name in _OF_A_RANK or is_of_task or (name in _TASKS and not is_alone):
            del os.environ[name]


def this_node() -> Node:
    """The node of this process."""
    return Node(int(os.environ.get(NODE, "0")), os.environ.get(MASTER, ""))


@dataclass(frozen=True)
class RankCall:
    """The arguments of a node's ranks: the spec, and the paths that the worker has prepared."""

    spec: str
    content: str
    scratch: str
    inputs: tuple[dict[str, str], ...]
    answers: str
    worker: int
    observed: str


@dataclass(frozen=True)
class RankResult:
    """The result of rank 0; empty on a node without rank 0."""

    metrics: Metrics = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, Any] = field(default_factory=dict)


def run_ranks(
    spec: StepSpec,
    node: Node,
    content: Path,
    scratch: Path,
    inputs: Sequence[Artifact],
    stopping: Stopping,
) -> RankResult:
    """Call the step function in every rank of this node. Raise `FailedElsewhere`, which names the
    first rank that failed and its reason."""
    with tempfile.TemporaryDirectory(prefix="temper-ranks-") as folder:
        redacted, secrets = spec.without_secrets()
        call = RankCall(
            spec=redacted.to_json().decode(),
            content=str(content.resolve()),
            scratch=str(scratch.resolve()),
            inputs=tuple(_portable(artifact) for artifact in inputs),
            answers=folder,
            worker=os.getpid(),
            observed=os.environ.get(OBSERVED, ""),
        )
        path = Path(folder) / "call.json"
        path.write_bytes(exact_record(asdict(call)))
        status = _torchrun(spec, node, path, stopping, handed_over(redacted.to_json(), secrets))
        if status != 0:
            stopping.paused = (Path(folder) / PAUSED).exists()
            first = node.index * spec.processes
            ranks = range(first, first + spec.processes)
            raise FailedElsewhere(_first_failure(Path(folder), ranks, status))
        if node.index > 0:
            return RankResult()
        return RankResult(**json.loads((Path(folder) / "result.json").read_text()))


_PYTHON = (sys.executable, "-P")
"""As in the worker: do not put the working folder into ``sys.path``. No variable says so, since a
Python that the step starts would find it."""


def _torchrun(
    spec: StepSpec, node: Node, call: Path, stopping: Stopping, secrets: Mapping[str, str]
) -> int:
    where = ["--standalone"]
    if spec.nodes > 1:
        host, _, port = node.master.rpartition(":")
        where = ["--nnodes", str(spec.nodes), "--node-rank", str(node.index)]
        where += ["--master-addr", host, "--master-port", port]
    command = [*_PYTHON, "-m", "torch.distributed.run", *where]
    command += ["--nproc-per-node", str(spec.processes), "--max-restarts", "0"]
    grace = str(int(spec.grace))
    command = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", *command]
    environment = {
        **os.environ,
        **secrets,
        OBSERVED: "",  # the ranks observe themselves
        # the signals that it forwards, and how long it waits then, for older and newer versions
        **dict.fromkeys(("TORCHELASTIC_SIGNALS_TO_HANDLE", "PET_SIGNALS_TO_HANDLE"), "SIGUSR1"),
        **dict.fromkeys(("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "PET_SHUTDOWN_TIMEOUT"), grace),
    }
    command += ["--no-python", *_PYTHON, "-u", "-m", "pipeline.worker.rank", str(call)]
    with unobserved():
        process = subprocess.Popen(command, env=environment, pass_fds=_devices())
    stopping.heeded = True  # the ranks poll; ranks that do not poll end at once
    over = threading.Event()

    def pass_on() -> None:
        while not over.wait(POLL_SECONDS):
            if stopping.is_asked:
                process.send_signal(signal.SIGUSR1)
                return

    threading.Thread(target=pass_on, name="ranks", daemon=True).start()
    try:
        return process.wait()
    finally:
        over.set()
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def _devices() -> tuple[int, ...]:
    """The open files that mark devices as taken; they stay open until the last rank has ended."""
    kept = []
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            if "/temper-devices/" in os.readlink(f"/proc/self/fd/{name}"):
                kept.append(int(name))
    return tuple(kept)


def _portable(artifact: Artifact) -> dict[str, str]:
    return {
        "kind": reference_to(type(artifact)),
        "path": str(artifact.path.resolve()),
        "step": artifact.step,
        "digest": artifact.digest,
    }


def _first_failure(answers: Path, ranks: Iterable[int], status: int) -> Failure:
    """The failure of the rank that failed first, since the others usually fail because of it."""
    names = [path.name for path in answers.iterdir()]
    silent = [r for r in ranks if not {f"error-{r}.json", f"left-{r}", f"done-{r}"} & {*names}]
    if silent:
        lost = f"rank {silent[0]} was killed, or did not start"
        return Failure(f"{lost} (torchrun: {status}); see the log")
    errors = [json.loads(path.read_text()) for path in answers.glob("error-*.json")]
    if not errors:
        return Failure(f"torchrun ended with status {status}; see the log")
    first = min(errors, key=lambda error: error["time"])
    return Failure(f"rank {first['rank']}: {first['error']}", tuple(first["excerpt"]))
