"""Which completions of a prompt become training data; importable without pyarrow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from steps.shared.checks import require, require_count

if TYPE_CHECKING:
    from steps.online.rollouts import Rollout


@dataclass(frozen=True)
class Best:
    """Which completions of a prompt to imitate: the `per_prompt` best distinct ones (null: all), of
    equally good ones the earlier, with a reward of at least `least_reward` (null: any reward).

    ``Best(least_reward=None)`` is best of n, ``Best(per_prompt=None)`` selects all right
    completions, and ``Best()`` selects one right completion of each prompt, as in RAFT.
    """

    least_reward: float | None = 1.0
    per_prompt: int | None = 1

    def __post_init__(self) -> None:
        require_count(self, "per_prompt", or_null=True)
        if self.least_reward is not None:
            holds = math.isfinite(self.least_reward)
            require(holds, "least_reward must be finite or null", self.least_reward)

    def of(self, drawn: "Sequence[Rollout]") -> "list[Rollout]":
        """The selected of the different completions of one prompt, the best first."""
        least = -math.inf if self.least_reward is None else self.least_reward
        best = sorted(drawn, key=attrgetter("reward"), reverse=True)
        return [r for r in best if r.reward >= least][: self.per_prompt]


@dataclass(frozen=True)
class Pairs:
    """Which completions of a prompt to compare: the best with the worst, the second best with the
    second worst, and so on: at most `per_prompt` pairs whose rewards differ by more than `margin`.
    """

    per_prompt: int = 1
    margin: float = 0.0

    def __post_init__(self) -> None:
        require_count(self, "per_prompt")
        require(0 <= self.margin < math.inf, "margin must not be negative", self.margin)

    def of(self, drawn: "Sequence[Rollout]") -> "list[tuple[Rollout, Rollout]]":
        """The pairs of a prompt's different completions, each with the better one first."""
        best = sorted(drawn, key=attrgetter("reward"), reverse=True)
        worst = sorted(drawn, key=attrgetter("reward"))
        pairs = zip(best[: self.per_prompt], worst, strict=False)
        return [(good, bad) for good, bad in pairs if good.reward - bad.reward > self.margin]
