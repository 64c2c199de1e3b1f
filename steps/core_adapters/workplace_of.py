"""The folders, callbacks and ranks of a step, as the libraries take them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline import Output

if TYPE_CHECKING:
    from steps.models.workplace import Workplace


@contextmanager
def at_work(out: Output) -> "Iterator[Workplace]":
    """The step's output and scratch folders, its callbacks, and its connected ranks."""
    from steps.models.ranks import together
    from steps.models.workplace import Workplace

    with together() as ranks:
        yield Workplace(out.path, out.scratch, out.progress, lambda: out.stopping, ranks)
