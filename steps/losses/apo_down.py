"""APO-down (D'Oosterlinck et al. 2024, https://arxiv.org/abs/2408.06266)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class ApoDown(ImplicitRewardLoss):
    """σ(r_w) + (1 − σ(r_w − r_l)) lowers both responses, the rejected one more.

    It is for a policy that is already better than the chosen responses and should only learn the
    contrast. With r = β log(π/π_ref) and m = r_w − r_l, equation 8, plus 1, is

        L = σ(r_w) + 1 − σ(m)
        dL/dr_w = σ(r_w) σ(−r_w) − σ(m) σ(−m),    dL/dr_l = σ(m) σ(−m)

    A policy that equals its reference has L = 1. Its first gradient moves only the rejected
    response.

    TRL: `loss_type="apo_down"`.
    """

    name: ClassVar[str] = "apo_down"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses(chosen.sigmoid() + (rejected - chosen).sigmoid(), chosen, rejected)
