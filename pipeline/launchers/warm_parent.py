"""The launcher's side of warm workers: the parent process that forks them, and each worker.

``pipeline.worker.warm`` describes the parent, and why its workers are equivalent to fresh ones. The
parent is started once for a run, with the environment of this launcher's workers. A worker that
needs another environment is not forked.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from socket import socket

from pipeline.base.processes import working_folder
from pipeline.wire import forking
from pipeline.wire.forking import is_readable
from pipeline.wire.launcher import Task


class Forked:
    """A worker that is forked by the parent of warm workers."""

    def __init__(self, answers: socket):
        self._answers, self._descriptor = answers, -1
        self._pid: int | None = None
        self._is_over = False
        self.status: int | None = None
        """After its end: the exit status, or minus the number of the signal, if known."""

    @property
    def has_begun(self) -> bool:
        """False if the parent has not forked it; then the step needs a fresh interpreter."""
        return self._pid is not None

    def ended(self, seconds: float | None) -> bool:
        """Wait for its end, at most so long; return whether it has ended."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._is_over:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            waits_for = self._answers if self._descriptor < 0 else self._descriptor
            if not is_readable(waits_for, left):
                break
            self._listen()
        return self._is_over

    def _listen(self) -> None:
        if self._descriptor >= 0:  # its parent is gone, so its exit status is unknown
            self._is_over = True
            return
        match forking.receive_answer(self._answers):
            case forking.Started(pid, descriptor):
                self._pid, self._alive = pid, descriptor
            case forking.Status(status):
                self.status, self._is_over = status, True
            case None:
                self._is_over = not self.has_begun
                self._descriptor = self._alive if self.has_begun else -1

    def stop(self, grace: float) -> None:
        """Ask it to stop; kill it if it has not ended after the grace period."""
        for number, seconds in ((signal.SIGTERM, grace + 1), (signal.SIGKILL, None)):
            if self._pid is None:
                self._answers.close()  # it ends, since nobody can confirm it
                self._is_over = True
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, number)
            if self.ended(seconds):
                return

    def clear(self) -> None:
        """Kill the processes that the step left behind, unless its parent does so."""
        if self._descriptor >= 0 and self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        self._answers.close()
        if self.has_begun:
            os.close(self._alive)


class WarmParent:
    """The parent of a run's warm workers.

    Args:
        functions: the functions of the steps that will run, once for each step.
        environment: the environment of the parent, and so of its workers.
        lifeline: the descriptor that ends them with the driver.
    """

    def __init__(self, functions: Sequence[str], environment: Mapping[str, str], lifeline: int):
        self._environment, self._folder = dict(environment), working_folder()
        self._control, theirs = forking.connected()
        wanted = {"functions": list(functions), "without": [], "control": theirs.fileno()}
        with theirs, tempfile.TemporaryFile() as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pipeline.worker.warm", json.dumps(wanted)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=(lifeline, theirs.fileno()),
                start_new_session=True,
            )

    def order(self, task: Task, environment: Mapping[str, str], log: int) -> Forked | None:
        """Order a worker, if the parent may fork it; :attr:`Forked.has_begun` tells whether it did.

        Args:
            environment: the worker's environment, without the variables that ``task`` adds.
            log: the descriptor for its output.
        """
        if environment != self._environment or working_folder() != self._folder:
            return None
        answers, theirs = forking.connected()
        order = forking.Order(task.function, task.spec_url, task.environment)
        with theirs:
            try:
                forking.send_order(self._control, order, theirs, log)
            except OSError:  # the parent is gone
                answers.close()
                return None
        return Forked(answers)

    def close(self) -> None:
        """End the parent, and the plain one that it has forked. Their workers continue."""
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
