"""Imitating what came out right (RAFT; Dong et al. 2023, https://arxiv.org/abs/2304.06767)."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from steps.online.methods.method import Method
from steps.shared.checks import require, require_count

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class Raft(Method):
    """Supervised fine-tuning on the best completions of each prompt: a mean over tokens.

    `least_reward` is what a completion must have to be imitated, and `per_prompt` how many
    different ones of a prompt are, the best first and the earlier of equals; null: all of them.

    Args:
        least_reward: what a completion must have to be imitated.
        per_prompt: how many completions of a prompt are imitated; null: all.
    """

    name: ClassVar[str] = "raft"
    least_completions: ClassVar[int] = 1

    least_reward: float = 1.0
    per_prompt: int | None = 1

    def __post_init__(self) -> None:
        require(math.isfinite(self.least_reward), "least_reward must be finite", self.least_reward)
        require_count(self, "per_prompt", or_null=True)

    def objective(self, experience: "Experience") -> "Objective | None":
        from steps.training.objectives import sft_objective

        imitated = []
        for group, rewards in zip(experience.groups, experience.rewards.tolist(), strict=True):
            best = sorted(range(len(group.responses)), key=lambda k: -rewards[k])
            good = (group.responses[k] for k in best if rewards[k] >= self.least_reward)
            for response in list(dict.fromkeys(good))[: self.per_prompt]:
                imitated.append(replace(group, responses=(response,)))
        return sft_objective(imitated) if imitated else None
