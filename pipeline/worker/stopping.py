"""Asks a worker to stop: on SIGTERM from a launcher, an engine, or whoever reclaims the machine.

A step that polls ``out.stopping`` is expected to save its state in scratch and to end with any
exception, within the grace period of the spec. Any other step is stopped at once, like by a kill,
since its scratch folder must survive a kill anyway. In both cases the worker's report says
"preempted", and the next attempt resumes from the scratch folder.

A signal from the step itself, or from a process that it started, is no request: it has its usual
effect, which is to end the process. To find out who sent a signal, the worker blocks these signals,
and a thread waits for them: the kernel tells it the sender. This also works while the main thread
is in a long call of a library. In processes that the step starts, the signals are not blocked. A
signal that arrives just while the step starts a process counts as a request, whoever sent it.
"""

import _posixsubprocess
import _thread
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from pipeline.base import processes
from pipeline.wire.launcher import PREEMPTED

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""``torchrun`` forwards the second one; see :mod:`pipeline.worker.torchrun`."""
_MOST_ANCESTORS = 64


class Stopping:
    """Whether this worker has been asked to stop.

    Attributes:
        grace: seconds after the request in which a step that polls must end.
        heeded: whether the step has polled, so it will end itself.
        paused: whether the step has reached the point at which it is to pause. Then there is no
            time limit, since nobody else waits for the machine.
        leave: called before the process is ended from outside the step.
        report: called before ``leave``; it reports that the process was asked to stop.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.grace = 10.0
        self.heeded = False
        self.paused = False
        self._has_answered = False
        self.leave: Callable[[], None] = lambda: None
        self.report: Callable[[], None] = lambda: None

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def is_asked_within(self, seconds: float) -> bool:
        """Whether a request to stop arrives within so many seconds."""
        return self._asked.wait(seconds)

    def asked(self) -> bool:
        """For the step: true once it is to stop."""
        self.heeded = True
        self._has_answered = self.paused or self._asked.is_set()
        return self._has_answered

    def is_pause(self, error: Exception) -> bool:
        """Whether an exception ends a step that was asked to pause. An error of the disk or the
        memory is a failure all the same."""
        return self.paused and self._has_answered and not isinstance(error, OSError | MemoryError)

    def ask(self) -> None:
        """Request the step to stop; if it does not poll, end the process."""
        if self._asked.is_set():
            return
        self._asked.set()
        threading.Thread(target=self._end, daemon=True).start()

    def ask_after(self, seconds: float) -> None:
        """Call :meth:`ask` after so many seconds, when the attempt's time is over."""
        timer = threading.Timer(seconds, self.ask)
        timer.daemon = True
        timer.start()

    def listen(self) -> None:
        """Handle the signals of this process as requests; only possible in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # also in every thread from here on
        for number in SIGNALS:  # a signal may arrive while it is not blocked
            signal.signal(number, self._asked_by_anybody)
        os.register_at_fork(after_in_child=_default_signals)  # a forked child is no worker
        _unblock_in_programs()
        _raise_in_process()
        threading.Thread(target=self._listen, name="stopping", daemon=True).start()

    def _listen(self) -> None:
        while True:
            number, sender = _next_signal()
            if sender is None or not _is_ours(sender):
                self.ask()
            else:
                self._act_on(number)

    def _asked_by_anybody(self, *_: object) -> None:
        self.ask()

    def _act_on(self, number: int) -> None:
        """Give a signal its usual effect."""
        handler = signal.getsignal(number)
        if handler in (self._asked_by_anybody, signal.SIG_DFL):
            print(f"the step has ended this process by signal {number}", flush=True)
            os._exit(128 + number)
        if callable(handler):  # the step's own handler
            _thread.interrupt_main(signal.Signals(number))
        elif handler is None:  # a library's handler, in C
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            signal.pthread_kill(threading.get_ident(), number)
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _end(self) -> None:
        if self.heeded:
            threading.Event().wait(self.grace)
        self.report()
        self.leave()
        os._exit(PREEMPTED)


def _next_signal() -> tuple[int, int | None]:
    """The next signal, and the process that sent it; ``None`` if the sender is unknown."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return signal.sigwait(SIGNALS), None
    found = signal.sigwaitinfo(SIGNALS)
    # pid 0: the sender is outside the container
    return found.si_signo, found.si_pid or None


def _is_ours(sender: int) -> bool:
    """Whether a process is this one or its descendant; false for a process that has ended."""
    for _ in range(_MOST_ANCESTORS):
        if sender == os.getpid():
            return True
        status = processes.status(sender)
        sender = int(status[1]) if status else 0
        if sender <= 1:
            break
    return False


def _default_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _raise_in_process() -> None:
    """Make ``signal.raise_signal`` send signals to the process: this thread blocks them."""
    in_thread = signal.raise_signal

    def raise_signal(number: int, /) -> None:
        if number in SIGNALS:
            os.kill(os.getpid(), number)
        else:
            in_thread(number)

    signal.raise_signal = raise_signal


def _unblock_in_programs() -> None:
    """Unblock the signals in programs that this process starts, since these inherit the mask."""
    _posixsubprocess.fork_exec = _unblocking(_posixsubprocess.fork_exec)
    # in a warm worker this is not the same function: it also makes a Python join the observation
    subprocess._fork_exec = _unblocking(subprocess._fork_exec)  # type: ignore[attr-defined]


def _unblocking(start: Callable[..., int]) -> Callable[..., int]:
    def fork_exec(*arguments: Any) -> int:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            return start(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return fork_exec
