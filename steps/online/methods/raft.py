"""RAFT: imitation of the best completions (Dong et al. 2023, https://arxiv.org/abs/2304.06767)."""

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
    """Supervised fine-tuning on the best distinct completions of each prompt, of equally good ones
    the earlier. The loss is a mean over tokens.

    Args:
        least_reward: the least reward of an imitated completion.
        per_prompt: the most completions of a prompt that are imitated; null: all.
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
