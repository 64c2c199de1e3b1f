"""Runs workers as processes of this machine, each started afresh (never forked: see below).

A worker is exec'd because forking a process that has run multi-threaded tensor code can deadlock.
It gets its own session, so that Ctrl-C reaches the driver alone, which then stops the worker in
order; if the driver is killed outright, the lifeline ends the worker.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from pipeline.errors import TemperError
from pipeline.lifeline import ENVIRONMENT, WORKER_ENVIRONMENT, Lifeline

STOP_SECONDS = 5.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class LocalLauncher:
    """Starts ``python -m pipeline.worker`` and waits for it.

    Args:
        jobs: how many workers may run at once; each gets its share of the processors, because
            threads beyond the free processors make every worker several times slower.
    """

    lifeline: Lifeline
    jobs: int = 1

    def run(self, spec_url: str, log: IO[bytes], stop: Event) -> int:
        """Run one worker to its end, or until ``stop`` is set; its exit status.

        What it prints goes to ``log``.
        """
        process = subprocess.Popen(
            # -P: the folder we are in is not where Python looks first
            [sys.executable, "-P", "-m", "pipeline.worker", spec_url],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            pass_fds=(self.lifeline.read_end,),
            start_new_session=True,
        )
        try:
            while not _ended(process, POLL_SECONDS):
                if stop.is_set():
                    _stop(process)
            return process.wait()
        except BaseException:  # stopped by a signal: take the worker along
            _stop(process)
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):  # what the step started and left behind
                os.killpg(process.pid, signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.jobs))
        settings = {
            "OMP_NUM_THREADS": threads,
            "GOMP_SPINCOUNT": "2000",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        # a worker imports what the driver imports, from the same places in the same order
        path = [os.path.abspath(entry) for entry in sys.path]
        return {
            **settings,
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            ENVIRONMENT: str(self.lifeline.read_end),
            WORKER_ENVIRONMENT: "1",
        }


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


def require_gpus(wanted: int) -> None:
    """Refuse what this machine cannot do, before anything runs.

    Raises:
        TemperError: more GPUs are asked for than there are, or than one worker can use.
    """
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if wanted > present:
        raise TemperError(
            f"gpus={wanted}: this machine has {present}; add --plan to see what would run, "
            "or run it on a machine that has them"
        )
    if wanted > 1:
        raise TemperError(
            f"gpus={wanted}: a step trains on one device so far; set gpus=1 and a model that fits"
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        return
