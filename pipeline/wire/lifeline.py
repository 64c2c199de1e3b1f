"""A pipe that ends workers when their driver is gone, for whatever reason.

The driver holds the write end and never writes. Every worker inherits the read end and blocks on it
in a thread. When the driver exits, also by SIGKILL, the kernel closes the write end and the workers
end themselves. So no worker goes on writing checkpoints beside the worker of the next run.
"""

import fcntl
import os
import signal
import threading

ENVIRONMENT = "TEMPER_LIFELINE"
WORKER_ENVIRONMENT = "TEMPER_WORKER"
"""Set in every worker, so that :func:`run` refuses to run in a script that a worker imports."""


class Lifeline:
    """The driver's side. Create it before any process is forked."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self.read_end, self._write_end = os.pipe()

    def let_go_in_child(self) -> bool:
        """In a forked child, close its copy of the write end, which would keep workers alive.
        Return whether this process is such a child."""
        in_child = os.getpid() != self._owner
        if in_child and self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1
        return in_child

    def close(self) -> None:
        os.close(self.read_end)
        if self._write_end >= 0:
            os.close(self._write_end)


def exit_with_driver() -> None:
    """The worker's side: end this process as soon as its driver is gone."""
    descriptor = os.environ.pop(ENVIRONMENT, None)
    if descriptor is not None:
        threading.Thread(target=_wait_and_exit, args=(int(descriptor),), daemon=True).start()


def be_ended_with_driver(descriptor: int) -> None:
    """Have the kernel end this process group, by SIGIO, as soon as the driver is gone.

    For a process that may have no second thread. It ends even while an import hangs.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _wait_and_exit(descriptor: int) -> None:
    os.read(descriptor, 1)
    if os.getpgrp() == os.getpid():  # our own process group: kill the step's processes too
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # without flushing: nothing of an unfinished attempt is needed
