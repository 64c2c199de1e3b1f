"""Settings for judging completions."""

import math
from dataclasses import dataclass

from steps.shared.checks import require, require_count
from steps.shared.execution_detail import detail_field


@dataclass(frozen=True)
class JudgeConfig:
    """How a checker judges completions.

    Args:
        time_limit: the seconds that one verdict may take. After that, the completion has no
            verdict.
        most_without: the largest acceptable share of completions without a verdict. A larger share
            is an error: the checker fails, not the model.
        processes: the number of processes that judge in parallel; 0: one for each core.
    """

    time_limit: float = 10.0
    most_without: float = 0.05
    processes: int = detail_field(1)

    def __post_init__(self) -> None:
        require(
            0 < self.time_limit < math.inf, "time_limit must be above 0 and finite", self.time_limit
        )
        require(0 <= self.most_without <= 1, "most_without must be in [0, 1]", self.most_without)
        require_count(self, "processes", least=0)
