"""Ray, through its job submission: a step is a job whose entrypoint is the worker.

A job is submitted under the attempt's name, so any driver finds it, and Ray never starts it twice.
For several nodes the entrypoint is :mod:`pipeline.launchers.ray_nodes`, which starts a worker on
each. In Ray, the first host of a TPU pod slice has a resource like ``TPU-v5p-8-head``, and all
hosts of the slice have a resource with the slice's name.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from pipeline.base.errors import TemperError
from pipeline.base.extras import how_to_install, require_installed
from pipeline.dag.resources import Resources
from pipeline.launchers.config import RayConfig
from pipeline.launchers.environment import job_environment
from pipeline.launchers.jobs import EngineError
from pipeline.wire.launcher import FOLDER, Ended, Task

LOST = 77
"""Exit status of a job with several nodes that lost one of them."""
START_SECONDS = 120.0
"""How long to wait for a cluster that is starting."""
ANY_AMOUNT = 0.001
"""The requested amount of a resource that only determines where a job may run."""


@dataclass(frozen=True)
class Ray:
    """A configured cluster; see :class:`pipeline.launchers.jobs.Engine`."""

    config: RayConfig
    kind: str = "ray"

    def shortage(self, resources: Resources) -> str | None:
        if self.config.autoscales:
            return None
        nodes = self._nodes()
        if resources.tpu is not None:
            kinds = [name[4:-5] for node in nodes for name in node if name.endswith("-head")]
            if resources.tpu not in kinds:
                return f"the TPU slices {', '.join(sorted(set(kinds))) or '(none)'}"
            most = max(map(len, slices_of(resources.tpu, nodes).values()))
            if most >= resources.num_nodes:
                return None
            return f"{resources.tpu} with {most} of its hosts (nodes={resources.num_nodes})"
        wanted = needs(resources)
        fitting = (all(n.get(name, 0) >= least for name, least in wanted.items()) for n in nodes)
        if sum(fitting) >= resources.num_nodes:
            return None
        return f"{len(nodes)} nodes: " + "; ".join(sorted({_in_words(node) for node in nodes}))

    def submit(self, task: Task) -> str:
        """
        Raises:
            TemperError: Ray refuses the job.
        """
        python, resources = self.config.python or sys.executable, task.resources
        if resources.num_nodes == 1:
            command = [python, "-P", "-m", "pipeline.worker.attempt", task.spec_url]
            asked = self._on_one_node(resources)
        else:
            command = [python, "-P", "-m", "pipeline.launchers.ray_nodes", task.spec_url]
            command += [str(resources.num_nodes), resources.tpu or ""]
            command += [f"{name}={amount}" for name, amount in needs(resources).items()]
            asked = {"CPU": ANY_AMOUNT}
        job = _job_of(task.name)
        with _answering():
            try:
                _once_it_has_started(
                    self._client().submit_job,
                    entrypoint=shlex.join(command),
                    submission_id=job,
                    runtime_env=self._runtime_environment(task),
                    metadata={"step": task.step, "key": task.key},
                    entrypoint_num_cpus=asked.pop("CPU"),
                    entrypoint_num_gpus=asked.pop("GPU", None),
                    entrypoint_memory=int(asked.pop("memory", 0)) or None,
                    entrypoint_resources=asked or None,
                )
            except (RuntimeError, TypeError, ValueError) as error:  # the last two of its client
                raise TemperError(f"Ray refuses the job: {_line(error)}") from error
        return job

    def find(self, name: str) -> str | None:
        job = _job_of(name)
        return None if self._info(job) is None else job

    def state(self, job: str) -> Ended | str:
        info = self._info(job)
        if info is None:
            return Ended(None, f"ray job {job}: forgotten", preempted=True, confirmed=False)
        status = str(info.status)
        if status in ("PENDING", "RUNNING"):
            return status
        code = info.driver_exit_code
        reason = f"ray job {job}: {status}"
        if status == "STOPPED":
            return Ended(None, reason, cancelled=True)
        if code is None:  # not the entrypoint ended, but its node or Ray itself
            reason += f", {_line(info.message)}"
            return Ended(None, reason, preempted=True, confirmed=False)
        if code == LOST:
            return Ended(None, f"{reason}, it lost a node", preempted=True, confirmed=False)
        return Ended(code, reason)

    def output(self, name: str, job: str, start: int) -> bytes:
        with _answering():
            return self._client().get_job_logs(job).encode()[start:]

    def cancel(self, job: str) -> None:
        with _answering():
            self._client().stop_job(job)

    def _info(self, job: str) -> Any:
        with _answering():
            try:
                return self._client().get_job_info(job)
            except RuntimeError as error:
                if "404" in str(error):
                    return None
                raise

    def _on_one_node(self, resources: Resources) -> dict[str, float]:
        if resources.tpu is None:
            return needs(resources)
        head = f"TPU-{resources.tpu}-head"
        chips = [node["TPU"] for node in self._nodes() if head in node and "TPU" in node]
        return {**needs(resources), head: 1.0, **({"TPU": min(chips)} if chips else {})}

    def _runtime_environment(self, task: Task) -> dict[str, Any]:
        environment = {
            **job_environment(self.config.python),
            **task.environment,
            "RAY_JOB_STOP_WAIT_TIME_S": str(int(self.config.grace_seconds) + 1),
        }
        if task.resources.cpus:
            threads = max(1, task.resources.cpus // task.resources.num_processes)
            environment["OMP_NUM_THREADS"] = str(threads)
        if self.config.working_dir is None:
            return {"env_vars": {**environment, FOLDER: os.getcwd(), **self.config.env}}
        return {
            "working_dir": self.config.working_dir,
            "env_vars": {**environment, "PYTHONPATH": ".", **self.config.env},
        }

    def _nodes(self) -> list[Mapping[str, float]]:
        """The resources of every node that is alive."""
        with _answering():
            from ray.util.state import list_nodes  # pyright: ignore[reportMissingImports]

            # the entry of a node that has just died may be incomplete, which is no error
            found: list[Any] = list_nodes(self.config.address, raise_on_missing_output=False)
            return [node.resources_total for node in found if node.state == "ALIVE"]

    def _client(self) -> Any:
        """This process's client, since a connection does not survive a fork."""
        key = (os.getpid(), self.config.address)
        if key not in _clients:
            from ray.job_submission import JobSubmissionClient  # pyright: ignore[reportMissingImports]

            _clients[key] = JobSubmissionClient(self.config.address)
        return _clients[key]


_clients: dict[tuple[int, str], Any] = {}


def _once_it_has_started(submit: Callable[..., str], **job: Any) -> None:
    """Submit a job to a cluster that may be starting: the agent that accepts jobs starts last."""
    for attempt in Retrying(
        retry=retry_if_exception(lambda error: "No available agent" in str(error)),
        stop=stop_after_delay(START_SECONDS),
        wait=wait_fixed(1.0),
        reraise=True,
    ):
        with attempt:
            submit(**job)


def slices_of(
    kind: str, nodes: Sequence[Mapping[str, float]]
) -> dict[str, list[Mapping[str, float]]]:
    """The hosts of every slice of a kind, by the slice's name. The first hosts of slices without a
    name share the entry ``""``.

    Args:
        nodes: the resources of each node.
    """
    head = f"TPU-{kind}-head"
    found: dict[str, list[Mapping[str, float]]] = {}
    for first in nodes:
        if head in first:
            name = next((name for name in first if _is_slice(name, head)), "")
            found.setdefault(name, []).append(first)
            found[name] += [node for node in nodes if name in node and node is not first]
    return found


def _is_slice(name: str, head: str) -> bool:
    """Whether a resource of the first host is the name of its slice."""
    known = ("node:", "accelerator_type:", "memory", "object_store", "CPU", "GPU", "TPU")
    return name != head and not name.startswith(known)


def needs(resources: Resources) -> dict[str, float]:
    """The resources that a step requests of a node, under Ray's names."""
    asked: dict[str, float] = {"CPU": float(resources.cpus or 1)}
    if resources.num_gpus:
        asked["GPU"] = float(resources.num_gpus)
    if resources.accelerator:
        asked[f"accelerator_type:{resources.accelerator}"] = ANY_AMOUNT
    if resources.memory_bytes:
        asked["memory"] = float(resources.memory_bytes)
    return asked


def _job_of(name: str) -> str:
    return f"temper-{name}"


def _in_words(node: Mapping[str, float]) -> str:
    """The resources of a node under the names of a request, as far as it has such names."""
    ours = {"CPU": "cpus", "GPU": "gpus"}
    return ", ".join(
        f"{ours.get(name, name)}={amount:g}"
        if name != "memory"
        else f"memory={amount / 2**30:.0f}GiB"
        for name, amount in sorted(node.items())
        if not name.startswith(("node:", "object_store"))
    )


@contextmanager
def _answering() -> Iterator[None]:
    """Convert every error of the client to :class:`EngineError`."""
    try:
        yield
    except (TemperError, EngineError):
        raise
    except ImportError as error:
        require_installed(["ray"], "launcher ray")
        raise TemperError(f"launcher ray: {_line(error)}; {how_to_install('ray')}") from error
    except Exception as error:
        raise EngineError(
            f"Ray does not answer: {_line(error)}; is its dashboard at launcher.ray.address?"
        ) from error


def _line(error: object) -> str:
    """The beginning of an error, without what Ray's client suggests to its own users."""
    return " ".join(str(error).partition("Please check")[0].split())[:300].rstrip(". ")
