"""BCO on pairs (Jung et al. 2024, https://arxiv.org/abs/2404.04656)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic


@dataclass(frozen=True)
class BcoPair(ImplicitRewardLoss):
    """A binary classifier whose logit is the reward: chosen responses are 1, rejected ones 0.

    With r = β log(π/π_ref),

        L = −log σ(r_w) − log σ(−r_l),    dL/dr_w = −σ(−r_w),    dL/dr_l = σ(r_l)

    L is an upper bound of DPO's loss. The paper also shifts rewards by their running mean; this
    class does not, like TRL's loss of the same name.

    A policy that equals its reference has L = 2 ln 2.

    TRL: `loss_type="bco_pair"`.
    """

    name: ClassVar[str] = "bco_pair"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses(logistic(chosen) + logistic(-rejected), chosen, rejected)
