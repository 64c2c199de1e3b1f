"""Slurm, through its own commands: ``sbatch``, ``squeue``, ``scontrol``, ``scancel``, ``sinfo``.

A job is a short shell script that starts the workers with ``srun``. (``submitit`` would use a
pickled function, know its jobs only by number, and call ``sacct``, which many clusters do not
have.) The job has the name of the attempt, so any driver finds it. Slurm never requeues it: a
driver notices a preemption and submits another attempt.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.base.errors import TemperError
from pipeline.dag.resources import Resources
from pipeline.launchers.config import SlurmConfig
from pipeline.launchers.environment import job_environment, users_environment
from pipeline.launchers.jobs import EngineError
from pipeline.wire.launcher import Ended, Task

ANSWER_SECONDS = 60.0
UNDER_WAY = {
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "STOPPED",
    "RESIZING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SIGNALING",
}  # fmt: skip
TAKEN_AWAY = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT", "REVOKED"}
"""Final states of jobs that are no fault of the step."""
NO_ANSWER = re.compile("timed out|unable to contact|communication|standby|zero bytes", re.I)
"""Messages of ``sbatch`` about an unavailable or busy controller, rather than about the job."""
FIRST_PORT, PORTS = 20000, 20000
DEFAULTS = ("account", "partition", "qos", "reservation")
"""Options that a user of ``sbatch`` may have set for all jobs, as ``SBATCH_ACCOUNT``."""
_OF_A_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS")
FLAG = "true"
"""The value of an option of ``sbatch`` that takes none."""


@dataclass(frozen=True)
class Slurm:
    """A configured cluster; see :class:`pipeline.launchers.jobs.Engine`."""

    config: SlurmConfig
    kind: str = "slurm"

    def shortage(self, resources: Resources) -> str | None:
        if resources.tpu is not None:
            return "no TPU"
        fitting = [group for group in self._partitions if group.has(resources)]
        if sum(group.nodes for group in fitting) >= resources.num_nodes:
            return None
        offered = "; ".join(str(group) for group in self._partitions)
        return f"in partition {offered}"

    def submit(self, task: Task) -> str:
        """
        Raises:
            TemperError: Slurm refuses the job.
        """
        script = self._folder / f"{task.name}.sh"
        script.write_text(self._script(task))
        cluster = {name: os.environ[name] for name in _OF_A_CLUSTER if name in os.environ}
        environment = _outside_jobs(users_environment({**cluster, **self.config.env}))
        answer = _run(["sbatch", "--parsable", str(script)], environment)
        if answer.returncode:
            reason = _last_line(answer.stderr)
            if NO_ANSWER.search(reason):
                raise EngineError(f"sbatch: {reason}")
            raise TemperError(f"sbatch refuses {script}: {reason.removeprefix('sbatch: ')}")
        return answer.stdout.strip().split(";")[0]

    def find(self, name: str) -> str | None:
        listed = _ask(["squeue", "--noheader", "--states=all", f"--name={name}", "--format=%i"])
        return listed.split()[0] if listed.split() else None

    def state(self, job: str) -> Ended | str:
        answer = _run(["scontrol", "--oneliner", "show", "job", job])
        if answer.returncode and "Invalid job id" not in answer.stderr:
            raise EngineError(f"scontrol: {_last_line(answer.stderr)}")
        fields = dict(re.findall(r"(\w+)=(\S+)", answer.stdout))
        state = fields.get("JobState", "forgotten")
        why = fields.get("Reason", "None")
        words = state if why == "None" else f"{state}, {why}"
        if state in UNDER_WAY:
            return words
        status, _, number = fields.get("ExitCode", "").partition(":")
        reason = f"slurm job {job}: {words}"
        if why == "JobLaunchFailure":  # its status is a signal that does not exist
            return Ended(None, f"{reason}; can its node write to {self._folder}?")
        if state == "CANCELLED":
            return Ended(None, reason, cancelled=True)
        if state in TAKEN_AWAY or not status:
            seen = state not in ("NODE_FAIL", "BOOT_FAIL", "forgotten")
            return Ended(None, reason, preempted=True, confirmed=seen)
        if state == "OUT_OF_MEMORY":  # likewise
            return Ended(-signal.SIGKILL, reason)
        code = -int(number) if number not in ("", "0") else int(status)
        return Ended(code, reason)

    def output(self, name: str, job: str, start: int) -> bytes:
        with open(self._folder / f"{name}.log", "rb") as file:
            file.seek(start)
            return file.read()

    def cancel(self, job: str) -> None:
        _ask(["scancel", job])  # signals the workers, and kills them after the cluster's KillWait

    @cached_property
    def _folder(self) -> Path:
        folder = Path(self.config.folder).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TemperError(
                f"launcher.slurm.folder={folder} cannot be made ({error.strerror}); name a folder "
                "on a file system that all nodes share"
            ) from error
        return folder

    def _default(self, option: str) -> str | None:
        """The value of one of ``DEFAULTS``: the config's, else the user's for all jobs."""
        theirs = os.environ.get(f"SBATCH_{option.upper()}")
        return getattr(self.config, option, None) or theirs or None

    @cached_property
    def _partitions(self) -> "list[_Nodes]":
        answer = _ask(["sinfo", "--all", "--noheader", "--exact", "--format=%D|%c|%m|%G|%l|%P"])
        found = [_Nodes.parse(line) for line in answer.splitlines() if line.strip()]
        wanted = self._default("partition")
        names = wanted.split(",") if wanted else [n.partition for n in found if n.is_default]
        chosen = [nodes for nodes in found if nodes.partition in names]
        if not chosen:
            known = ", ".join(dict.fromkeys(nodes.partition for nodes in found)) or "none at all"
            missing = f"no partition {wanted}" if wanted else "no partition by default"
            raise EngineError(
                f"there is {missing}; launcher.slurm.partition= names one of: {known}"
            )
        return chosen

    def _spelled(self, kind: str | None) -> str | None:
        """A kind of GPU in the cluster's spelling."""
        if not kind:
            return None
        known = {name.lower(): name for nodes in self._partitions for name in nodes.gpus}
        return known.get(kind.lower(), kind)

    def _script(self, task: Task) -> str:
        """The script of a job: the resources that it requests, and the start of a worker on each
        node."""
        options = {
            "job-name": task.name,
            "comment": f"temper:{task.step}",
            "output": str(self._folder / f"{task.name}.log").replace("%", "%%"),
            "open-mode": "append",
            "no-requeue": FLAG,
            **{name: self._default(name) for name in DEFAULTS},
            # Slurm signals the workers while there is time left for a checkpoint
            "signal": f"TERM@{int(self.config.grace_seconds) + 5}",
            **_asked(task.resources, self._spelled(task.resources.accelerator)),
            **self.config.options,
        }
        lines = [_line(name, value) for name, value in options.items() if value is not None]
        python = self.config.python or sys.executable
        worker = shlex.join([python, "-P", "-m", "pipeline.worker.attempt", task.spec_url])
        environment = {**job_environment(self.config.python), **task.environment}
        exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        return _SCRIPT.format(
            options="\n".join(lines),
            exports="\n".join([*exports, *self.config.setup]),
            processes=task.resources.num_processes,
            port=FIRST_PORT,
            ports=PORTS,
            # overlap: a step that calls srun would wait for the processors that it has itself
            srun=f"srun --overlap --kill-on-bad-exit=1 --ntasks={task.resources.num_nodes}",
            worker=worker,
        )


_SCRIPT = """#!/bin/bash
{options}

{exports}
threads=$(( ${{SLURM_CPUS_ON_NODE:-1}} / {processes} ))
export OMP_NUM_THREADS=$(( threads > 0 ? threads : 1 ))
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol --oneliner show node "$first" | grep -o 'NodeAddr=[^ ]*')
export TEMPER_MASTER=${{address#NodeAddr=}}:$(( {port} + SLURM_JOB_ID % {ports} ))
export SLURM_EXPORT_ENV=ALL  # otherwise --export=NONE would keep all of this from the workers
trap '' TERM  # it is for the workers
{srun} --ntasks-per-node=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \
    bash -c 'TEMPER_NODE=$SLURM_NODEID exec "$@"' worker \
    {worker}
"""


@dataclass(frozen=True)
class _Nodes:
    """Nodes of one kind in one partition."""

    nodes: int
    cpus: int
    memory: int
    gpus: Mapping[str, int]
    longest: int | None
    partition: str
    is_default: bool

    @classmethod
    def parse(cls, line: str) -> "_Nodes":
        nodes, cpus, memory, gres, longest, partition = line.strip().split("|")
        gpus: dict[str, int] = {}
        for found in re.finditer(r"gpu:(?:([^:,()]+):)?(\d+)", gres):
            kind = found[1] or ""
            gpus[kind] = gpus.get(kind, 0) + int(found[2])
        return cls(
            nodes=int(nodes),
            cpus=int(cpus.rstrip("+")),
            memory=int(memory.rstrip("+")) * 2**20,
            gpus=gpus,
            longest=None if longest in ("infinite", "n/a") else _seconds(longest),
            partition=partition.rstrip("*"),
            is_default=partition.endswith("*"),
        )

    def has(self, resources: Resources) -> bool:
        """Whether each of these nodes fulfils a request."""
        kind = (resources.accelerator or "").lower()
        gpus = sum(n for name, n in self.gpus.items() if not kind or name.lower() == kind)
        return (
            gpus >= resources.num_gpus
            and self.cpus >= (resources.cpus or 0)
            and self.memory >= (resources.memory_bytes or 0)
            and (self.longest is None or self.longest >= (resources.seconds or 0))
        )

    def __str__(self) -> str:
        kinds = [f"{count} {kind or 'of any kind'}" for kind, count in self.gpus.items()]
        parts = [f"nodes={self.nodes}", f"cpus={self.cpus}", f"memory={self.memory // 2**30}GiB"]
        parts.append(f"gpus={', '.join(kinds) or 0}")
        if self.longest is not None:
            parts.append(f"time={self.longest}s")
        return f"{self.partition}: {', '.join(parts)}"


def _line(option: str, value: str) -> str:
    given = "" if str(value).lower() == FLAG else f"={shlex.quote(str(value))}"
    return f"#SBATCH --{option}{given}"


def _asked(resources: Resources, accelerator: str | None) -> dict[str, str | None]:
    memory, seconds = resources.memory_bytes, resources.seconds
    kind = f"{accelerator}:" if accelerator else ""
    return {
        "nodes": str(resources.num_nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(resources.cpus) if resources.cpus else None,
        "mem": f"{-(-memory // 2**20)}M" if memory else None,
        "gres": f"gpu:{kind}{resources.gpus}" if resources.gpus else None,
        "time": str(-(-seconds // 60)) if seconds else None,
    }


def _seconds(text: str) -> int:
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours, minutes, seconds = ([0, 0, 0, *parts])[-3:]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """
    Args:
        environment: what ``sbatch`` passes on to its job.

    Raises:
        EngineError: the command cannot be run, or takes too long.
    """
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            env=_outside_jobs(os.environ) if environment is None else environment,
        )
    except FileNotFoundError as error:
        raise EngineError(
            f"there is no {command[0]} on this machine: is Slurm's client installed here? On its "
            "login node it is; launcher=local runs steps on this machine"
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(f"{command[0]} cannot be asked here ({error})") from error


def _ask(command: Sequence[str]) -> str:
    answer = _run(command)
    if answer.returncode:
        told = _last_line(answer.stderr).removeprefix(f"{command[0]}: ")
        if "configuration" in told:  # of which there is none, or not where SLURM_CONF says
            told += "; this machine belongs to no cluster, unless SLURM_CONF names its slurm.conf"
        raise EngineError(f"{command[0]}: {told}")
    return answer.stdout


def _outside_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables of a Slurm job in which this driver may run itself,
    and without those that come before what a job's script says (see ``DEFAULTS``)."""
    return {
        name: value
        for name, value in environment.items()
        if name in _OF_A_CLUSTER or not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
    }


def _last_line(text: str) -> str:
    """The last line that says what is wrong; another may follow that names a command's help."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Try ")]
    return lines[-1].strip() if lines else "no answer"
