"""Runs workers as processes of this machine: fresh interpreters, or forks of a warm parent.

The driver itself is never forked for a worker. A parent process that only imports the libraries of
a run's steps is forked (:mod:`pipeline.launchers.warm_parent`). A worker
gets its own session, so Ctrl-C reaches only the driver, which then stops the worker in order. If
the driver is killed, the lifeline ends the worker.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import IO

from pipeline.base.redaction import shown_output
from pipeline.dag.resources import NOTHING, Resources
from pipeline.estimate.machine import cores_here, memory_here
from pipeline.launchers import devices
from pipeline.launchers.config import LocalConfig
from pipeline.launchers.driver_end import uninterrupted
from pipeline.launchers.environment import UNOPTIMISED, import_path, users_environment
from pipeline.launchers.warm_parent import Forked, WarmParent
from pipeline.observed import native
from pipeline.wire import forking
from pipeline.wire.launcher import Ended, Task
from pipeline.wire.lifeline import ENVIRONMENT, WORKER_ENVIRONMENT, Lifeline
from pipeline.wire.spec import SECRETS

POLL_SECONDS = 0.5
LOG_SECONDS = 5.0
"""How long to wait for the last output of a worker that has ended."""
UNKNOWN = "its parent, which would know how it ended, was killed"
GIB = 2**30


@dataclass
class LocalLauncher:
    """Starts ``python -m pipeline.worker.attempt`` and waits for it.

    Args:
        jobs: how many workers may run at once. Each gets its share of the processors, since more
            threads than free processors make every worker several times slower.
    """

    lifeline: Lifeline
    jobs: int = 1
    config: LocalConfig = field(default_factory=LocalConfig)
    kind: str = "local"
    detached: bool = False
    _warm: WarmParent | None = field(default=None, init=False, repr=False)

    @property
    def grace_seconds(self) -> float:
        return self.config.grace_seconds

    def shortage(self, resources: Resources) -> str | None:
        """The resources of this machine, in words, if they are not enough for a request."""
        if resources.num_nodes > 1:
            return "one node"
        if resources.tpu is not None:
            return "no TPU"
        if resources.num_gpus > (gpus := self._gpus()):
            return f"gpus={gpus} on this machine"
        if resources.num_gpus > len(devices.present(resources.accelerator)):
            return f"GPUs of the kind {devices.models() or 'unknown'}"
        if (resources.cpus or 0) > cores_here():
            return f"cpus={cores_here()} on this machine"
        if (resources.memory_bytes or 0) > memory_here():
            return f"memory={memory_here() // GIB}GiB on this machine"
        return None

    def claims(self, resources: Resources) -> Mapping[str, int]:
        asked = {
            "gpus": resources.num_gpus,
            "cpus": resources.cpus or 0,
            "memory": math.ceil((resources.memory_bytes or 0) / GIB),
        }
        return {name: amount for name, amount in asked.items() if amount}

    def capacity(self) -> Mapping[str, int]:
        memory = math.ceil(memory_here() / GIB)
        return {"gpus": self._gpus(), "cpus": cores_here(), "memory": memory}

    @contextlib.contextmanager
    def ready(self, asked: Sequence[tuple[str, Resources]]) -> Iterator[None]:
        """Start a parent of warm workers for the block, if a step can use it."""
        usual = self._environment(NOTHING, devices.Devices())
        functions = [
            function
            for function, resources in asked
            if _is_plain(resources) and self._environment(resources, devices.Devices()) == usual
        ]
        if not self.config.warm or not functions or not forking.is_possible():
            yield
            return
        self._warm = WarmParent(functions, usual, self.lifeline.read_end)
        try:
            yield
        finally:
            self._warm.close()
            self._warm = None

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        """Run one worker to its end, or until ``stop`` is set.

        Its output goes to ``log``.
        """
        asked = task.resources
        with devices.taken(asked.num_gpus, stop.wait, asked.accelerator) as mine:
            if mine is None:
                return Ended(None, "stopped while it waited for a GPU")
            environment = self._environment(asked, mine)
            with _printed(log, is_secret=SECRETS in task.environment) as output:
                if self._warm is not None and _is_plain(asked):
                    forked = self._warm.order(task, environment, output)
                    if forked is not None:
                        ended = self._until_end(forked, stop)
                        if forked.has_begun or stop.is_set():
                            return ended
                kept = (self.lifeline.read_end, *mine.files)
                fresh = _Fresh(task, {**environment, **task.environment}, output, kept)
                return self._until_end(fresh, stop)

    def _until_end(self, worker: "Forked | _Fresh", stop: Event) -> Ended:
        try:
            while not worker.ended(POLL_SECONDS):
                if stop.is_set():
                    worker.stop(self.grace_seconds)
        except BaseException:  # this process was interrupted: stop the worker too
            with uninterrupted():
                worker.stop(self.grace_seconds)
            raise
        finally:
            worker.clear()
        return Ended(worker.status, UNKNOWN if worker.status is None else "")

    def _gpus(self) -> int:
        present = len(devices.present())
        return present if self.config.gpus is None else min(self.config.gpus, present)

    def _environment(self, resources: Resources, mine: devices.Devices) -> dict[str, str]:
        cores = resources.cpus or cores_here() // self.jobs
        environment = {
            "OMP_NUM_THREADS": str(max(1, cores // resources.num_processes)),
            "GOMP_SPINCOUNT": "2000",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow could not fork
            devices.ORDER: devices.BY_BUS,
            **users_environment(self.config.env),
            **UNOPTIMISED,
            "PYTHONPATH": import_path(),
            ENVIRONMENT: str(self.lifeline.read_end),
            WORKER_ENVIRONMENT: "1",
            devices.VISIBLE: ",".join(mine.names),
        }
        return native.preloaded(environment)


class _Fresh:
    """A worker in an interpreter of its own; its methods are those of :class:`Forked`.

    Args:
        kept: descriptors that it inherits.
    """

    def __init__(self, task: Task, environment: Mapping[str, str], log: int, kept: Sequence[int]):
        self._process = subprocess.Popen(
            # -P: do not put the working folder into sys.path
            [sys.executable, "-P", "-m", "pipeline.worker.attempt", task.spec_url],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=kept,
            start_new_session=True,
        )

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def ended(self, seconds: float | None) -> bool:
        if hasattr(os, "pidfd_open"):  # the kernel reports the end at once; `wait` would poll
            if self._process.returncode is None:
                descriptor = os.pidfd_open(self._process.pid)
                try:
                    forking.is_readable(descriptor, seconds)
                finally:
                    os.close(descriptor)
            return self._process.poll() is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def stop(self, grace: float) -> None:
        for number, seconds in ((signal.SIGTERM, grace + 1), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if self.ended(seconds):
                return

    def clear(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _printed(log: IO[bytes], is_secret: bool) -> Iterator[int]:
    """The descriptor for a worker's output. If the worker has secrets, they are redacted in the
    log."""
    if not is_secret:
        yield log.fileno()
        return
    ours, theirs = os.pipe()

    def copy() -> None:
        with open(ours, "rb") as output:
            for line in output:
                with contextlib.suppress(OSError, ValueError):  # the log is only for display
                    log.write(shown_output(line))
                    log.flush()

    copying = threading.Thread(target=copy, name="log", daemon=True)
    copying.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        copying.join(LOG_SECONDS)


def _is_plain(resources: Resources) -> bool:
    """Whether a step needs only one process and no devices."""
    return not resources.num_gpus and resources.num_nodes * resources.num_processes == 1
