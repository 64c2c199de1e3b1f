"""Online DPO: preference learning from the best and worst of the policy's own completions (Guo et
al. 2024, Direct language model alignment from online AI feedback, https://arxiv.org/abs/2402.04792).
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import ReferenceLoss
from steps.losses.dpo import Dpo
from steps.online.methods.method import Method

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class OnlineDpo(Method):
    """A preference loss, with a reference, on one pair for each prompt whose completions differ in
    reward: the first of the best against the first of the worst completions."""

    name: ClassVar[str] = "online_dpo"

    loss: ReferenceLoss = field(default_factory=Dpo)

    def __post_init__(self) -> None:
        if not self.loss.is_of_sums:
            raise ValueError(
                f"the loss {self.loss.name} looks at tokens or at whole batches of a cached "
                "reference; train with it on select_pairs and reference_logprobs"
            )

    @property
    def needs_reference(self) -> bool:
        return True

    def objective(self, experience: "Experience") -> "Objective | None":
        import torch

        from steps.training.objectives import preference_objective

        assert experience.reference is not None
        sums = experience.sums(experience.reference)
        pairs, reference = [], []
        for n, group in enumerate(experience.groups):
            rewards = experience.rewards[n, : len(group.responses)].tolist()
            best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
            if rewards[best] > rewards[worst]:
                sides = (group.responses[best], group.responses[worst])
                pairs.append(replace(group, responses=sides))
                reference.append(sums[n, [best, worst]])
        return preference_objective(pairs, self.loss, torch.stack(reference)) if pairs else None
