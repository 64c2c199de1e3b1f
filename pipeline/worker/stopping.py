"""How a worker is told to leave: SIGTERM, from a launcher, an engine or whoever takes the machine.

A step that asks ``out.stopping`` as it goes is trusted to save what it has in scratch and to end by
any exception; it has the grace that the spec says. Any other step is ended at once, as a kill
would, since its scratch is made to survive one. Either way the worker's report says "preempted",
and the step goes on from its scratch in another attempt.

A signal that the step has sent itself, or a process that it started, is no request: it does what it
would do in any program, which is to end it. So the signals are blocked, and a thread waits for
them, whom the kernel tells who has sent each; that works also while the main thread is in a long
call of a library. Processes that the step starts have them unblocked. A signal that arrives in the
instant in which the step starts a process counts as a request, whoever sends it.
"""

import _posixsubprocess
import _thread
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.wire.launcher import PREEMPTED

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""``torchrun`` passes on the second; see :mod:`pipeline.worker.torchrun`."""
_MOST_ANCESTORS = 64


class Stopping:
    """Whether this worker was told to leave.

    Attributes:
        grace: seconds after which it ends then, whatever the step does.
        heeded: the step has asked, so it will see to its own end.
        paused: it has come as far as it is to go for now. Nobody waits for the machine, so it has
            all the time it needs.
        leave: called before the process ends without the step's doing.
        report: called before that: leaves word that the process was told to.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.grace = 10.0
        self.heeded = False
        self.paused = False
        self._was_told = False
        self.leave: Callable[[], None] = lambda: None
        self.report: Callable[[], None] = lambda: None

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def is_asked_within(self, seconds: float) -> bool:
        """Whether it is told to leave at the latest so many seconds from now."""
        return self._asked.wait(seconds)

    def asked(self) -> bool:
        """For the step: true once it is to leave."""
        self.heeded = True
        self._was_told = self.paused or self._asked.is_set()
        return self._was_told

    def is_pause(self, error: Exception) -> bool:
        """Whether an exception is how a step leaves that has come as far as it was to go: it was
        told so, and the machine has what it needs."""
        return self.paused and self._was_told and not isinstance(error, OSError | MemoryError)

    def ask(self) -> None:
        """Tell the step, or end the process for it."""
        if self._asked.is_set():
            return
        self._asked.set()
        threading.Thread(target=self._end, daemon=True).start()

    def ask_after(self, seconds: float) -> None:
        """:meth:`ask` when the time of this attempt is over."""
        timer = threading.Timer(seconds, self.ask)
        timer.daemon = True
        timer.start()

    def listen(self) -> None:
        """Take the signals of this process as the request. They belong to the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # of every thread from here on
        for number in SIGNALS:  # where one comes through at a moment when they are not
            signal.signal(number, self._asked_by_anybody)
        os.register_at_fork(after_in_child=_default_signals)  # a child is not the worker
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
        """Do what a signal does in a program that has nobody to ask it to leave."""
        handler = signal.getsignal(number)
        if handler in (self._asked_by_anybody, signal.SIG_DFL):
            print(f"the step has ended this process by signal {number}", flush=True)
            os._exit(128 + number)
        if callable(handler):  # the step's own
            _thread.interrupt_main(signal.Signals(number))
        elif handler is None:  # a library's own
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
    """The next signal, and the process that has sent it; ``None`` where that is not known."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS
        return signal.sigwait(SIGNALS), None
    found = signal.sigwaitinfo(SIGNALS)
    # 0: from outside the container
    return found.si_signo, found.si_pid or None


def _is_ours(sender: int) -> bool:
    """Whether a process is this one or was started by it. One that has ended may be anybody's."""
    for _ in range(_MOST_ANCESTORS):
        if sender == os.getpid():
            return True
        try:
            fields = Path(f"/proc/{sender}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        sender = int(fields[1])
        if sender <= 1:
            return False
    return False


def _default_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _raise_in_process() -> None:
    """Let who raises a signal send it to the process: a thread that blocks it would keep it."""
    in_thread = signal.raise_signal

    def raise_signal(number: int, /) -> None:
        if number in SIGNALS:
            os.kill(os.getpid(), number)
        else:
            in_thread(number)

    signal.raise_signal = raise_signal


def _unblock_in_programs() -> None:
    """Let programs that this process starts take the signals: they inherit what is blocked."""
    start = _posixsubprocess.fork_exec

    def fork_exec(*arguments: Any) -> int:
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            return start(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    _posixsubprocess.fork_exec = fork_exec
    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
