"""Leaving before the end: the machine is wanted back, and what there is goes on elsewhere."""

from collections.abc import Callable

Stopping = Callable[[], bool]
"""Whether a run has been told to leave; asked often."""


class Left(Exception):
    """A run was told to leave. All that it has done is on disk, and the next one goes on there."""


def never() -> bool:
    """The `Stopping` of a run that nobody interrupts."""
    return False
