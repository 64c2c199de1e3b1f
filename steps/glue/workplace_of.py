"""Where a training step works, as the machinery takes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline import Output

if TYPE_CHECKING:
    from steps.models.workplace import Workplace


@contextmanager
def at_work(out: Output) -> "Iterator[Workplace]":
    """The folders of a step and whom it answers to, with all the ranks that do it together."""
    from steps.models.ranks import together
    from steps.models.workplace import Workplace

    with together() as ranks:
        yield Workplace(out.path, out.scratch, out.progress, lambda: out.stopping, ranks)
