"""APO-zero (D'Oosterlinck et al. 2024, https://arxiv.org/abs/2408.06266)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class ApoZero(ImplicitRewardLoss):
    """(1 − σ(r_w)) + σ(r_l) raises the chosen response and lowers the rejected one, separately.

    DPO depends only on a difference of rewards, so the likelihood of both responses may fall. Here
    each reward r = β log(π/π_ref) has a loss of its own. Equation 7, plus 1, is

        L = 1 − σ(r_w) + σ(r_l),    dL/dr_w = −σ(r_w) σ(−r_w),    dL/dr_l = σ(r_l) σ(−r_l)

    It is for a policy that is worse than the chosen responses. A policy that equals its reference
    has L = 1.

    TRL: `loss_type="apo_zero"`.
    """

    name: ClassVar[str] = "apo_zero"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses((-chosen).sigmoid() + rejected.sigmoid(), chosen, rejected)
