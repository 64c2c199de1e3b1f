"""What a driver makes of the answers of Slurm's commands and of Ray's client, and what it asks them
for; real clusters are in `test_slurm.py` and `test_ray.py`."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pipeline.base import processes
from pipeline.dag.resources import NOTHING, Resources
from pipeline.launchers import ray_jobs
from pipeline.launchers.config import RayConfig, SlurmConfig
from pipeline.launchers.jobs import EngineError
from pipeline.launchers.ray_jobs import LOST, Ray
from pipeline.launchers.slurm import Slurm
from pipeline.wire.launcher import Ended, Task

# --- Slurm -------------------------------------------------------------------------------------


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return Slurm(SlurmConfig(folder=str(tmp_path)))


def answers(slurm: Slurm, command: str, text: str, error: str = "") -> None:
    """Let a command of Slurm print this, and fail if there is an error; it notes its arguments."""
    program = Path(slurm.config.folder, command)
    said = [f'echo "$@" >> {command}.asked', f"printf %s {shlex.quote(text)}"]
    said += [f"echo {shlex.quote(error)} >&2", "exit 1"] if error else []
    program.write_text("\n".join(["#!/bin/sh", f"cd {slurm.config.folder}", *said]) + "\n")
    program.chmod(0o755)


def task(asked: Resources = NOTHING) -> Task:
    return Task("a-name", "train", "key", "attempts/a", "file:///s/spec.json", resources=asked)


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        ("JobState=PENDING Reason=Priority ExitCode=0:0", "PENDING, Priority"),
        ("JobState=RUNNING Reason=None ExitCode=0:0", "RUNNING"),
        ("JobState=COMPLETED Reason=None ExitCode=0:0", Ended(0, "COMPLETED")),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0",
         Ended(3, "FAILED, NonZeroExitCode")),
        ("JobState=FAILED Reason=None ExitCode=0:9", Ended(-9, "FAILED")),
        ("JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125",
         Ended(-signal.SIGKILL, "OUT_OF_MEMORY, OutOfMemory")),
        ("JobState=CANCELLED Reason=None ExitCode=0:15", Ended(None, "CANCELLED", cancelled=True)),
        ("JobState=PREEMPTED Reason=None ExitCode=0:15", Ended(None, "PREEMPTED", preempted=True)),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15",
         Ended(None, "TIMEOUT, TimeLimit", preempted=True)),
        ("JobState=NODE_FAIL Reason=NodeDown ExitCode=1:0",
         Ended(None, "NODE_FAIL, NodeDown", preempted=True, confirmed=False)),
    ],
)  # fmt: skip
def test_the_state_of_a_job_of_slurm_is_a_word_while_it_lives_and_then_its_end(
    slurm: Slurm, answer: str, end: Ended | str
) -> None:
    answers(slurm, "scontrol", f"JobId=7 JobName=a-name {answer}")
    found = slurm.state("7")
    if isinstance(end, Ended):
        assert isinstance(found, Ended)
        assert found.reason == f"slurm job 7: {end.reason}"
        assert found == Ended(end.status, found.reason, end.preempted, end.cancelled, end.confirmed)
    else:
        assert found == end


def test_a_job_of_slurm_gets_the_environment_of_the_driver_s_start_and_that_of_the_config(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STARTED_WITH", {**os.environ, "MODE": "of a shell"})
    for name, value in {"MODE": "changed", "HF_TOKEN": "new", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    slurm.config.env = {"SEED_OF": "config"}
    answers(slurm, "sbatch", "7")
    program = Path(slurm.config.folder, "sbatch")
    program.write_text(program.read_text() + "export > exported\n")
    assert slurm.submit(task()) == "7"
    passed = Path(slurm.config.folder, "exported").read_text()
    assert "MODE='of a shell'" in passed
    assert "HF_TOKEN='new'" in passed
    assert "SEED_OF='config'" in passed
    assert "SLURM_JOB_ID" not in passed


def test_a_job_that_slurm_has_forgotten_may_still_run_and_a_busy_controller_says_nothing(
    slurm: Slurm,
) -> None:
    answers(slurm, "scontrol", "", "slurm_load_jobs error: Invalid job id specified")
    lost = Ended(None, "slurm job 7: forgotten", preempted=True, confirmed=False)
    assert slurm.state("7") == lost
    answers(slurm, "scontrol", "", "slurm_load_jobs error: Socket timed out on send/recv operation")
    with pytest.raises(EngineError, match="scontrol: slurm_load_jobs error: Socket timed out"):
        slurm.state("7")


def test_the_job_of_an_attempt_is_found_by_its_name(slurm: Slurm) -> None:
    answers(slurm, "squeue", "12\n")
    assert slurm.find("a-name") == "12"
    assert "--name=a-name" in Path(slurm.config.folder, "squeue.asked").read_text()
    answers(slurm, "squeue", "")
    assert slurm.find("a-name") is None


NODES = """2|8|16000+|gpu:H100:4(S:0-1)|1-12:00:00|main*
1|64|512000|(null)|infinite|big
1|4|8000|gpu:2|30:00|old
"""


@pytest.mark.parametrize(
    ("partition", "asked", "offered"),
    [
        (None, Resources(nodes=2, gpus=4, accelerator="h100", time="36h"), None),
        (None, Resources(nodes=3),
         "in partition main: nodes=2, cpus=8, memory=15GiB, gpus=4 H100, time=129600s"),
        (None, Resources(gpus=1, accelerator="A100"), "in partition main: nodes=2, .*gpus=4 H100"),
        (None, Resources(time="37h"), "in partition main: .*time=129600s"),
        ("big", Resources(cpus=64, memory="500GB", time="90d"), None),
        ("big", Resources(gpus=1), "in partition big: nodes=1, cpus=64, memory=500GiB, gpus=0$"),
        ("old,main", Resources(gpus=1, memory="8GB", nodes=2), None),
        ("old", Resources(gpus=3), "in partition old: .*gpus=2 of any kind, time=1800s"),
        (None, Resources(tpu="v5p-8"), "no TPU"),
    ],
)  # fmt: skip
def test_what_a_partition_does_not_have_is_told_with_what_it_has(
    slurm: Slurm, partition: str | None, asked: Resources, offered: str | None
) -> None:
    slurm.config.partition = partition
    answers(slurm, "sinfo", NODES)
    found = slurm.shortage(asked)
    assert found is None if offered is None else re.match(offered, found or "")


def test_a_job_asks_for_gpus_as_the_cluster_spells_them(slurm: Slurm) -> None:
    answers(slurm, "sinfo", NODES)
    answers(slurm, "sbatch", "34;cluster\n")
    asked = Resources(nodes=2, gpus=4, accelerator="h100", cpus=8, memory="10GiB", time="90s")
    assert slurm.submit(task(asked)) == "34"
    script = Path(slurm.config.folder, "a-name.sh").read_text().splitlines()
    lines = {f"#SBATCH --{line}" for line in (
        "nodes=2", "gres=gpu:H100:4", "cpus-per-task=8", "mem=10240M", "time=2"
    )}  # fmt: skip
    assert lines <= set(script)


# --- Ray ---------------------------------------------------------------------------------------


class Client:
    """Ray's client of jobs, which answers what a test says."""

    def __init__(self, **info: Any) -> None:
        self.info = info
        self.submitted: list[Mapping[str, Any]] = []
        self.stopped: list[str] = []

    def get_job_info(self, job: str) -> SimpleNamespace:
        if error := self.info.get("error"):
            raise error
        return SimpleNamespace(**self.info)

    def get_job_logs(self, job: str) -> str:
        return f"log of {job}"

    def stop_job(self, job: str) -> None:
        self.stopped.append(job)

    def submit_job(self, **job: Any) -> str:
        self.submitted.append(job)
        return job["submission_id"]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    client = Client()
    monkeypatch.setitem(ray_jobs._clients, (os.getpid(), RayConfig.address), client)
    return client


def has_nodes(monkeypatch: pytest.MonkeyPatch, nodes: Sequence[Mapping[str, float]]) -> None:
    """Let the cluster have nodes with these resources, and one that is dead."""
    known = [SimpleNamespace(state="ALIVE", resources_total=dict(node)) for node in nodes]
    dead = SimpleNamespace(state="DEAD", resources_total={"CPU": 9999, "GPU": 9999})
    states = ModuleType("ray.util.state")
    vars(states)["list_nodes"] = lambda *_, **__: [*known, dead]
    monkeypatch.setitem(sys.modules, "ray.util.state", states)


@pytest.mark.parametrize(
    ("status", "code", "end"),
    [
        ("PENDING", None, "PENDING"),
        ("RUNNING", None, "RUNNING"),
        ("SUCCEEDED", 0, Ended(0, "SUCCEEDED")),
        ("FAILED", 3, Ended(3, "FAILED")),
        ("STOPPED", None, Ended(None, "STOPPED", cancelled=True)),
        ("FAILED", None, Ended(None, "FAILED, The node died", preempted=True, confirmed=False)),
        ("FAILED", LOST,
         Ended(None, "FAILED, it lost a node", preempted=True, confirmed=False)),
    ],
)  # fmt: skip
def test_the_state_of_a_job_of_ray_is_a_word_while_it_lives_and_then_its_end(
    client: Client, status: str, code: int | None, end: Ended | str
) -> None:
    client.info = {"status": status, "driver_exit_code": code, "message": "The node\n died. "}
    found = Ray(RayConfig()).state("temper-a")
    if isinstance(end, Ended):
        assert isinstance(found, Ended)
        assert found.reason == f"ray job temper-a: {end.reason}"
        assert found == Ended(end.status, found.reason, end.preempted, end.cancelled, end.confirmed)
    else:
        assert found == end


SLICES = [
    {"CPU": 8, "memory": 2**34, "TPU": 4, "TPU-v5p-16-head": 1, "mine": 1, "node:10.0.0.1": 1},
    {"CPU": 8, "memory": 2**34, "TPU": 4, "mine": 1, "object_store_memory": 2**30},
]
GPUS = [{"CPU": 32, "GPU": 8, "memory": 2**37, "accelerator_type:H100": 1}] * 2


@pytest.mark.parametrize(
    ("nodes", "asked", "offered"),
    [
        (GPUS, Resources(nodes=2, gpus=8, accelerator="H100", memory="100GiB"), None),
        (GPUS, Resources(nodes=3),
         "2 nodes: cpus=32, gpus=8, accelerator_type:H100=1, memory=128GiB"),
        (GPUS, Resources(gpus=8, accelerator="A100"),
         "2 nodes: cpus=32, gpus=8, accelerator_type:H100=1, memory=128GiB"),
        (SLICES[1:], Resources(cpus=9), "1 nodes: cpus=8, TPU=4, memory=16GiB, mine=1"),
        (SLICES, Resources(tpu="v5p-16"), None),
        (SLICES[:1], Resources(tpu="v5p-16"), "v5p-16 with 1 of its hosts (nodes=2)"),
        (SLICES, Resources(tpu="v4-8"), "the TPU slices v5p-16"),
        (GPUS, Resources(tpu="v4-8"), "the TPU slices (none)"),
    ],
)  # fmt: skip
def test_what_a_cluster_of_ray_does_not_have_is_told_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
    nodes: Sequence[Mapping[str, float]],
    asked: Resources,
    offered: str | None,
) -> None:
    has_nodes(monkeypatch, nodes)
    assert Ray(RayConfig()).shortage(asked) == offered
    assert Ray(RayConfig(autoscales=True)).shortage(asked) is None


def test_a_job_asks_ray_for_what_its_step_requests(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_nodes(monkeypatch, SLICES)
    ray = Ray(RayConfig(python="/its/python", env={"HF_HOME": "/cache"}))
    asked = Resources(cpus=8, gpus=2, accelerator="H100", memory="1GiB")
    assert ray.submit(task(asked)) == "temper-a-name"
    ray.submit(task(Resources(tpu="v5p-16", nodes=1)))
    ray.submit(task(Resources(nodes=2, cpus=4)))
    ray.submit(task(Resources(tpu="v5p-16")))
    one, slice_, two, hosts = client.submitted
    worker = "/its/python -P -m pipeline.worker.attempt file:///s/spec.json"
    assert one["entrypoint"] == slice_["entrypoint"] == worker
    assert (one["entrypoint_num_cpus"], one["entrypoint_num_gpus"]) == (8, 2)
    assert one["entrypoint_memory"] == 2**30
    assert [*one["entrypoint_resources"]] == ["accelerator_type:H100"]
    variables = one["runtime_env"]["env_vars"]
    assert (variables["OMP_NUM_THREADS"], variables["HF_HOME"]) == ("4", "/cache")  # two ranks
    assert variables["TEMPER_FOLDER"] == os.getcwd()
    assert slice_["entrypoint_resources"] == {"TPU-v5p-16-head": 1.0, "TPU": 4}
    starter = "/its/python -P -m pipeline.launchers.ray_nodes file:///s/spec.json 2"
    assert two["entrypoint"] == f"{starter} '' CPU=4.0"
    assert hosts["entrypoint"] == f"{starter} v5p-16 CPU=1.0"
    assert two["entrypoint_num_cpus"] < 1  # what starts the workers is no worker
