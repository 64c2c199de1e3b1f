"""Ending in order what a driver has started, while the driver itself is told to end."""

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Finish the block: Luigi ends its processes with a SIGTERM after the Ctrl-C they all got."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def await_children(seconds: float) -> None:
    """Let Luigi's processes end, which end their workers in order; at most so long."""
    deadline = time.monotonic() + seconds
    for child in multiprocessing.active_children():
        child.join(max(0.0, deadline - time.monotonic()))
