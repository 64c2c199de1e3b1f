"""How a worker is told to leave: SIGTERM, from a launcher, an engine or whoever takes the machine.

A step that asks ``out.stopping`` as it goes is trusted to save what it has in scratch and to end by
any exception; it has the grace that the spec says. Any other step is ended at once, as a kill
would, since its scratch is made to survive one. Either way the exit status says "preempted", and
the step goes on from its scratch in another attempt.

The C level handler writes into a pipe that a thread reads, so that this works also while the main
thread is in a long call of a library.
"""

import os
import signal
import threading
from collections.abc import Callable

from pipeline.launchers.protocol import PREEMPTED

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""``torchrun`` passes on the second; see :mod:`pipeline.ranks`."""


class Stopping:
    """Whether this worker was told to leave.

    Attributes:
        grace: seconds after which it ends then, whatever the step does.
        heeded: the step has asked, so it will see to its own end.
        leave: called before the process ends without the step's doing.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.grace = 10.0
        self.heeded = False
        self.leave: Callable[[], None] = lambda: None

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def is_asked_within(self, seconds: float) -> bool:
        """Whether it is told to leave at the latest so many seconds from now."""
        return self._asked.wait(seconds)

    def asked(self) -> bool:
        """For the step: true once it is to leave."""
        self.heeded = True
        return self._asked.is_set()

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
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=_default_signals)  # a child is not the worker

        def wait() -> None:
            while number := os.read(read_end, 1):
                if number[0] in SIGNALS:
                    self.ask()

        threading.Thread(target=wait, name="stopping", daemon=True).start()

    def _end(self) -> None:
        if self.heeded:
            threading.Event().wait(self.grace)
        self.leave()
        os._exit(PREEMPTED)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
