"""Runs workers as processes of this machine, each started afresh (never forked: see below).

A worker is exec'd because forking a process that has run multi-threaded tensor code can deadlock.
It gets its own session, so that Ctrl-C reaches the driver alone, which then stops the worker in
order; if the driver is killed outright, the lifeline ends the worker.
"""

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import IO

from pipeline.launchers import devices
from pipeline.launchers.config import LocalConfig
from pipeline.launchers.environment import import_path
from pipeline.launchers.orderly import uninterrupted
from pipeline.launchers.protocol import PREEMPTED, Ended, Task
from pipeline.lifeline import ENVIRONMENT, WORKER_ENVIRONMENT, Lifeline
from pipeline.resources import Resources

POLL_SECONDS = 0.5
GIB = 2**30


@dataclass(frozen=True)
class LocalLauncher:
    """Starts ``python -m pipeline.worker`` and waits for it.

    Args:
        jobs: how many workers may run at once; each gets its share of the processors, because
            threads beyond the free processors make every worker several times slower.
    """

    lifeline: Lifeline
    jobs: int = 1
    config: LocalConfig = field(default_factory=LocalConfig)
    kind: str = "local"
    detached: bool = False

    @property
    def grace_seconds(self) -> float:
        return self.config.grace_seconds

    def shortage(self, resources: Resources) -> str | None:
        """What this machine has, where that is not enough."""
        if resources.num_nodes > 1:
            return "one node"
        if resources.tpu is not None:
            return "no TPU"
        if resources.num_gpus > (gpus := self._gpus()):
            return f"gpus={gpus} on this machine"
        if resources.num_gpus > len(devices.present(resources.accelerator)):
            return f"GPUs of the kind {devices.models() or 'unknown'}"
        if (resources.cpus or 0) > _cores():
            return f"cpus={_cores()} on this machine"
        if (resources.memory_bytes or 0) > _memory():
            return f"memory={_memory() // GIB}GiB on this machine"
        return None

    def claims(self, resources: Resources) -> Mapping[str, int]:
        asked = {
            "gpus": resources.num_gpus,
            "cpus": resources.cpus or 0,
            "memory": math.ceil((resources.memory_bytes or 0) / GIB),
        }
        return {name: amount for name, amount in asked.items() if amount}

    def capacity(self) -> Mapping[str, int]:
        return {"gpus": self._gpus(), "cpus": _cores(), "memory": math.ceil(_memory() / GIB)}

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        """Run one worker to its end, or until ``stop`` is set.

        What it prints goes to ``log``.
        """
        asked = task.resources
        with devices.taken(asked.num_gpus, stop.wait, asked.accelerator) as mine:
            if mine is None:
                return Ended(None, "stopped while it waited for a GPU")
            return self._run(task, mine, log, stop)

    def _run(self, task: Task, mine: devices.Devices, log: IO[bytes], stop: Event) -> Ended:
        process = subprocess.Popen(
            # -P: the folder we are in is not where Python looks first
            [sys.executable, "-P", "-m", "pipeline.worker", task.spec_url],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(task.resources, mine),
            pass_fds=(self.lifeline.read_end, *mine.files),
            start_new_session=True,
        )
        try:
            while process.returncode is None and not _ended(process, POLL_SECONDS):
                if stop.is_set():
                    _stop(process, self.grace_seconds)
            status = process.wait()
        except BaseException:  # stopped by a signal: take the worker along
            with uninterrupted():
                _stop(process, self.grace_seconds)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the step started and left behind
                os.killpg(process.pid, signal.SIGKILL)
        return Ended(status, preempted=status == PREEMPTED)

    def _gpus(self) -> int:
        present = len(devices.present())
        return present if self.config.gpus is None else min(self.config.gpus, present)

    def _environment(self, resources: Resources, mine: devices.Devices) -> dict[str, str]:
        cores = resources.cpus or _cores() // self.jobs
        return {
            "OMP_NUM_THREADS": str(max(1, cores // resources.num_processes)),
            "GOMP_SPINCOUNT": "2000",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            devices.ORDER: devices.BY_BUS,
            **os.environ,
            "PYTHONPATH": import_path(),
            ENVIRONMENT: str(self.lifeline.read_end),
            WORKER_ENVIRONMENT: "1",
            devices.VISIBLE: ",".join(mine.names),
        }


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait until the process ends, at most so long; true if it did."""
    if hasattr(os, "pidfd_open"):  # the kernel says so at once; `wait` with a timeout polls
        descriptor = os.pidfd_open(process.pid)
        try:
            select.select([descriptor], [], [], seconds)
        finally:
            os.close(descriptor)
        return process.poll() is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _stop(process: subprocess.Popen[bytes], grace: float) -> None:
    for number, seconds in ((signal.SIGTERM, grace + 1), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
