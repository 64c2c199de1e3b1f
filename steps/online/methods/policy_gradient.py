"""The settings of policy-gradient updates: a frozen dataclass, importable without torch.

Well-known methods are combinations of these settings; ``conf/rl`` has them as presets.

    grpo      group_std       token      over response    Shao et al. 2024, arXiv:2402.03300
    dr_grpo   group_mean      token      over constant    Liu et al. 2025, arXiv:2503.20783
    dapo      group_std       token      over token       Yu et al. 2025, arXiv:2503.14476
    gspo      group_std       sequence   over response    Zheng et al. 2025, arXiv:2507.18071
    cispo     group_std       detached   over token       MiniMax 2025, arXiv:2506.13585
    rloo      leave_one_out   none       over constant    Ahmadian et al. 2024, arXiv:2402.14740
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from steps.online.methods.method import Method
from steps.shared.checks import require, set_choice
from steps.shared.execution_detail import added_field

if TYPE_CHECKING:
    from steps.online.methods.experience import Experience
    from steps.training.objectives import Objective


class Advantage(StrEnum):
    """How a completion's reward r is compared with those of the same prompt's completions.

    group_mean: r − mean(r).
    group_std: (r − mean(r)) / (std(r) + 1e-4), with n − 1 in the standard deviation, as in TRL.
    leave_one_out: r − the mean of the others, which is n / (n − 1) of `group_mean` and unbiased.
    """

    group_mean = "group_mean"
    group_std = "group_std"
    leave_one_out = "leave_one_out"


class Ratio(StrEnum):
    """How the current policy π is compared with π_old, the policy at the iteration's start.

    token: π(token) / π_old(token), with gradients, clipped (PPO, GRPO).
    sequence: the geometric mean of these over a response (GSPO).
    detached: the clipped ratio is a weight without a gradient, on A · log π (CISPO).
    none: A · log π, as in REINFORCE.
    """

    token = "token"
    sequence = "sequence"
    detached = "detached"
    none = "none"


class Over(StrEnum):
    """The denominator of the sum over tokens.

    response: the length of each response, then the number of responses (GRPO).
    token: the number of tokens in the batch (DAPO).
    constant: the number of responses times `max_new_tokens` (Dr. GRPO), so that the weight of a
        token does not depend on the length of its response.
    """

    response = "response"
    token = "token"
    constant = "constant"


class Kl(StrEnum):
    """How a KL penalty keeps the policy near a reference.

    k1_in_reward: β Σ (log π_old − log π_ref) is subtracted from a completion's reward. The policy
        gradient of this term is that of the reverse KL divergence.
    k3_weighted: β · ratio · k3 is added to each token's loss, k3 = π_ref/π − log(π_ref/π) − 1. Its
        gradient, including that of the ratio, is that of the reverse KL divergence.
    k3: β · k3 without the ratio, as in GRPO's paper. Its gradient is that of the *forward* KL
        divergence; use it for comparisons with published runs.
    """

    none = "none"
    k1_in_reward = "k1_in_reward"
    k3_weighted = "k3_weighted"
    k3 = "k3"


class OffPolicy(StrEnum):
    """The correction for w = π_old / π_sampler, if sampler and trainer do not agree exactly.

    none: no correction; the mismatch is logged in any case.
    truncate: each token's loss is weighted by min(w, limit) (Yao et al. 2025, TIS).
    mask: each token's loss is weighted by w, or by 0 if w is outside [1 / limit, limit].
    """

    none = "none"
    truncate = "truncate"
    mask = "mask"


@dataclass(frozen=True)
class PolicyGradient(Method):
    """A policy-gradient update. The defaults are Dr. GRPO with a leave-one-out baseline.

    Clipping keeps the ratio in [1 − `clip_low`, 1 + `clip_high`]; null removes the bound on that
    side.

    With `skip_without_signal`, prompts whose completions have equal rewards are neither trained on
    nor counted in the loss's denominator; otherwise they count, with advantages of 0.

    Args:
        advantage: how a completion's reward is compared with those of the same prompt.
        ratio: how the policy is compared with the policy at the iteration's start.
        clip_low: the ratio is clipped at 1 − `clip_low` from below; null: no bound.
        clip_high: the ratio is clipped at 1 + `clip_high` from above; null: no bound.
        over: the denominator of the sum over tokens.
        kl: how a KL penalty keeps the policy near a reference.
        kl_weight: the weight of the KL penalty.
        off_policy: the correction if sampler and trainer do not agree exactly.
        off_policy_limit: the bound of the weights of `off_policy`.
        skip_without_signal: leave out prompts whose completions have equal rewards.
        mask_cut: leave the tokens of completions that were cut out of the loss and its denominator;
            the others are still compared with their rewards (overlong filtering: Yu et al. 2025).
    """

    name: ClassVar[str] = "policy_gradient"
    weighs_by_policy: ClassVar[bool] = True

    advantage: Advantage = Advantage.leave_one_out
    ratio: Ratio = Ratio.token
    clip_low: float | None = 0.2
    clip_high: float | None = 0.2
    over: Over = Over.constant
    kl: Kl = Kl.none
    kl_weight: float = 0.0
    off_policy: OffPolicy = OffPolicy.none
    off_policy_limit: float = 2.0
    skip_without_signal: bool = True
    mask_cut: bool = added_field(False, before=False)

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            set_choice(self, name, choices)
        for name in ("clip_low", "clip_high"):
            bound = getattr(self, name)
            if bound is not None:
                require(0 < bound < math.inf, f"{name} must be above 0, or null", bound)
                unused = self.ratio is Ratio.none
                require(
                    not unused, f"{name} must be null: with ratio=none nothing is clipped", bound
                )
        weight, has_kl = self.kl_weight, self.kl is not Kl.none
        require(0 <= weight < math.inf, "kl_weight must not be negative", weight)
        require(
            has_kl == (weight > 0), f"kl_weight must be {_fits(has_kl)} with {self.kl=!s}", weight
        )
        limit = self.off_policy_limit
        require(1 < limit < math.inf, "off_policy_limit must be above 1", limit)

    @property
    def needs_reference(self) -> bool:
        return self.kl is not Kl.none

    @property
    def needs_scores_first(self) -> bool:
        return self.kl is Kl.k1_in_reward or self.off_policy is not OffPolicy.none

    def objective(self, experience: "Experience") -> "Objective | None":
        from steps.online.methods.grpo import policy_objective

        return policy_objective(self, experience)


_CHOICES = {
    "advantage": Advantage,
    "ratio": Ratio,
    "over": Over,
    "kl": Kl,
    "off_policy": OffPolicy,
}


def _fits(has_kl: bool) -> str:
    return "above 0" if has_kl else "0"
