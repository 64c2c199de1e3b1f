"""The length of online training, as a config of an experiment.

A config that is a ``Segmented`` has the settings ``iterations`` and ``segment``. Its experiment
makes one step for each of ``cfg.segments()``, which begins with the state of the step before. So
more iterations run no earlier segment again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.experiment import ExperimentConfig
from steps.shared.checks import require_count


@dataclass
class Segmented(ExperimentConfig):
    """Iterations of sampling and learning, cut into steps.

    Args:
        iterations: how often the policy samples answers and learns from them.
        segment: how many iterations are one step, whose model is kept and measured.
    """

    iterations: int = 50
    segment: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count(self, "iterations", "segment")

    def segments(self) -> Iterator[tuple[int, int]]:
        """The number of iterations of each segment, and how many are done after it."""
        for before in range(0, self.iterations, self.segment):
            length = min(self.segment, self.iterations - before)
            yield length, before + length
