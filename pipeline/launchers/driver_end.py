"""Ends the processes of a driver in order, while the driver itself is asked to end."""

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from types import FrameType

from pipeline.base.errors import Stopped


def heed_first(numbers: Iterable[signal.Signals]) -> None:
    """Raise at the first of these signals, and ignore those after it: KeyboardInterrupt for SIGINT,
    Stopped for another. Signals that are ignored already stay so.

    Two signals may come at once, such as Luigi's SIGTERM after the Ctrl-C. The second would cut
    short what the first one's exception ends in order.
    """
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]

    def stop(number: int, frame: FrameType | None) -> None:
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)

    for each in heeded:
        signal.signal(each, stop)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Finish the block although another signal asks to end: Luigi sends its processes a SIGTERM
    after the Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    previous = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def await_children(seconds: float) -> None:
    """Wait, at most so long, for Luigi's processes, which end their workers in order."""
    deadline = time.monotonic() + seconds
    for child in multiprocessing.active_children():
        child.join(max(0.0, deadline - time.monotonic()))
