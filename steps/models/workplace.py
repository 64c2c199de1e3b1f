"""Where a step's machinery works: its folders, whom it tells how far it is, and who may end it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from steps.models.ranks import ALONE, Ranks
from steps.shared.execution_detail import execution_detail

OnProgress = Callable[[int, int, Mapping[str, float]], None]
"""Told how much is done, of how much, and the metrics of the last of it."""

Stopping = Callable[[], bool]
"""Whether a run has been told to leave, as its machine is wanted back; asked often."""


class Left(Exception):
    """A run was told to leave. All that it has done is on disk, and the next one goes on there."""


@execution_detail
def ignore_progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
    """The `OnProgress` of a caller who does not care."""


def never() -> bool:
    """The `Stopping` of a run that nobody interrupts."""
    return False


@dataclass(frozen=True)
class Workplace:
    """Where a run writes, whom it tells how far it is, who may end it, and who works on it.

    output: the folder for what it makes; of several ranks the first writes there.
    scratch: the folder of what an interrupted run goes on from.
    """

    output: Path
    scratch: Path
    on_progress: OnProgress = ignore_progress
    stopping: Stopping = never
    ranks: Ranks = ALONE
