"""NCA on pairs (Chen et al. 2024, https://arxiv.org/abs/2402.05369)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic


@dataclass(frozen=True)
class NcaPair(ImplicitRewardLoss):
    """Noise contrastive alignment of each response separately; the chosen response is the data.

    DPO only raises the chosen response relative to the rejected one, and the likelihood of both may
    fall. Here each reward r = β log(π/π_ref) has its own term, and each response also counts as
    noise with weight ½:

        L = −log σ(r_w) − ½ log σ(−r_w) − ½ log σ(−r_l)
        dL/dr_w = −σ(−r_w) + ½ σ(r_w),    dL/dr_l = ½ σ(r_l)

    The optimum of the chosen reward is log 2, not infinity. A policy that equals its reference has
    L = 2 ln 2.

    TRL: `loss_type="nca_pair"`.
    """

    name: ClassVar[str] = "nca_pair"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        losses = logistic(chosen) + 0.5 * logistic(-chosen) + 0.5 * logistic(-rejected)
        return PairLosses(losses, chosen, rejected)
