"""Fewer runs of Python's garbage collector while many rows are worked on."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ALLOCATIONS = 50_000


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Inside the block, look for cycles of objects after 50,000 new ones, not after 700.

    Rows are thousands of dicts and tuples in no cycle, so a search through them finds nothing, and
    takes up to a fifth of the time. Cycles are still freed, so memory stays bounded.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _ALLOCATIONS) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
