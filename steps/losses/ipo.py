"""IPO (Azar et al. 2023, https://arxiv.org/abs/2310.12036)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class Ipo(ImplicitRewardLoss):
    """(h − 1/(2β))²: a margin to be met, where DPO's is to be as large as can be.

    DPO passes from preference probabilities to rewards through a logit, which is infinite where
    all annotators agree, so that no β holds the policy back. Preferring the identity instead gives
    a regression (equation 17, whose τ is β):

        L = (h − 1/(2β))²,    h = log π(w)/π_ref(w) − log π(l)/π_ref(l),    dL/dh = 2h − 1/β

    The logps in h are taken as means over tokens. The paper does not say so; as sums, the same
    margin of 1/(2β) would be asked of short and long responses, and TRL reports of the authors
    that their results are with means.

    A policy that equals its reference has h = 0 and L = 1/(4β²). A small β asks for a large
    margin: the gradient does not vanish with β, it grows.

    TRL: `loss_type="ipo"`.
    """

    name: ClassVar[str] = "ipo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen_ratios / logps.chosen_tokens
        rejected = logps.rejected_ratios / logps.rejected_tokens
        losses = (chosen - rejected - 1 / (2 * self.beta)) ** 2
        return PairLosses(losses, *self.rewards(logps))
