"""Where a run works."""

from dataclasses import dataclass
from pathlib import Path

from steps.training.leaving import Stopping, never
from steps.training.metrics import OnProgress, ignore_progress
from steps.training.ranks import ALONE, Ranks


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
