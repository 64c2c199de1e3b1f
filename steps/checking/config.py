"""How verdicts are come to: frozen data."""

from dataclasses import dataclass

from steps.shared.checks import require, require_count
from steps.shared.execution_detail import detail_field


@dataclass(frozen=True)
class JudgeConfig:
    """How verdicts are come to.

    Args:
        time_limit: seconds for one verdict; after that there is none.
        most_without: the largest share of completions without a verdict that is accepted. Beyond
            it, it is the checker that fails and not the model.
        processes: that judge side by side; 0: one for each core.
    """

    time_limit: float = 10.0
    most_without: float = 0.05
    processes: int = detail_field(1)

    def __post_init__(self) -> None:
        require(self.time_limit > 0, "time_limit must be above 0", self.time_limit)
        require(0 <= self.most_without <= 1, "most_without must be in [0, 1]", self.most_without)
        require_count(self, "processes", least=0)
