"""A thread that does something again and again while a block runs."""

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def repeating(seconds: float, do: Callable[[], object], name: str) -> Iterator[None]:
    """Within the block, call `do` after each pause in a thread, which ends before the block does.

    Args:
        name: of the thread.
    """
    over = threading.Event()

    def again() -> None:
        while not over.wait(seconds):
            do()

    thread = threading.Thread(target=again, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
