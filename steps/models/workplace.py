"""A step's folders, its callbacks for progress and for leaving early, and its ranks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from steps.models.ranks import ALONE, Ranks
from steps.shared.execution_detail import execution_detail

OnProgress = Callable[[int, int, Mapping[str, float]], None]
"""Called with the amount of work done, the total, and the latest metrics."""

Stopping = Callable[[], bool]
"""Whether the run must stop soon, because its machine is needed elsewhere. Runs call it often."""


class Left(Exception):
    """A run stopped early on request. Its progress is on disk, and the next run resumes from it."""


@execution_detail
def ignore_progress(done: int, total: int, metrics: Mapping[str, float]) -> None:
    """An `OnProgress` that does nothing."""


def never() -> bool:
    """A `Stopping` that never asks a run to stop."""
    return False


@dataclass(frozen=True)
class Workplace:
    """The folders, callbacks and ranks of a run.

    output: the folder for results; only the first rank writes there.
    scratch: the folder for checkpoints and shards, from which an interrupted run resumes.
    on_progress: called as the run proceeds.
    stopping: asked whether the run must stop early.
    base: the digest of the artifact from which training starts, if its result may refer to it.
    """

    output: Path
    scratch: Path
    on_progress: OnProgress = ignore_progress
    stopping: Stopping = never
    ranks: Ranks = ALONE
    base: str | None = None
