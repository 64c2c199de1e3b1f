"""On-policy distillation: a student learns from a teacher at the tokens of its own completions.

Agarwal et al. 2023 (GKD, https://arxiv.org/abs/2306.13649) take the gradient through divergences of
the two distributions. Lu 2025 (On-Policy Distillation,
https://thinkingmachines.ai/blog/on-policy-distillation) takes a policy gradient.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.losses.distillation.forward_kl import ForwardKl
from steps.losses.distillation.jsd import Jsd
from steps.losses.distillation.reverse_kl import ReverseKl
from steps.online.methods.policy_gradient import PolicyGradient
from steps.shared.checks import require, require_count
from steps.shared.execution_detail import added_field

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


@dataclass(frozen=True)
class Distill(PolicyGradient):
    """A teacher p beside the rewards of a policy π, as `policy_gradient` learns from them.

    Without `beta`, each token y has the further advantage log p(y) − log π_old(y) (Lu 2025). Its
    expected gradient is that of the reverse KL divergence at that place; the effect of a token on
    later ones is left out.

    With `beta`, each token has the further loss D of the two distributions at its place, in which
    gradients flow through the `top_k` tokens that the teacher finds likeliest, the others being one
    bucket: KL(p ‖ π) for 0, KL(π ‖ p) for 1, and in between JSD(β) (Agarwal et al. 2023, equation
    1).

    Args:
        beta: which divergence; null: the policy gradient of the reverse KL divergence.
        reward_weight: the weight of rewards; 0: they are not looked at. A completion without a
            reward still learns from the teacher.
        top_k: how many of the teacher's tokens are kept at each place, with `beta`.
        on_policy: with which probability an iteration learns from the policy's own answers, and not
            from demonstrations (λ of Agarwal et al. 2023, algorithm 1). The seed and the number of
            the iteration decide.
    """

    name: ClassVar[str] = "distill"
    least_completions: ClassVar[int] = 1
    needs_rewards: ClassVar[bool] = False
    needs_teacher: ClassVar[bool] = True

    beta: float | None = None
    reward_weight: float = 0.0
    top_k: int = 64
    on_policy: float = added_field(1.0, before=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta is None or 0 <= self.beta <= 1, "beta must be in [0, 1]", self.beta)
        weight = self.reward_weight
        require(0 <= weight < float("inf"), "reward_weight must not be negative", weight)
        require_count(self, "top_k")
        require(0 <= self.on_policy <= 1, "on_policy must be in [0, 1]", self.on_policy)
        if self.on_policy < 1 and (self.beta is None or weight):
            raise ValueError(
                f"on_policy is {self.on_policy:g}, and of answers that the policy has not drawn it "
                "learns by a divergence alone; set beta, and reward_weight=0"
            )

    @property
    def divergence(self) -> DistillationLoss | None:
        if self.beta in (None, 0, 1):
            return {None: None, 0: ForwardKl(), 1: ReverseKl()}[self.beta]
        return Jsd(beta=self.beta)

    @property
    def kept(self) -> int:
        return 1 if self.beta is None else self.top_k

    @property
    def of_data(self) -> float:
        return 1 - self.on_policy

    @property
    def uses_rewards(self) -> bool:
        return self.reward_weight > 0

    def objective(self, experience: "Experience") -> "Objective | None":
        from steps.online.methods.grpo import policy_objective

        return policy_objective(self, experience, self.reward_weight, self.divergence)
