"""IPO (Azar et al. 2023, https://arxiv.org/abs/2310.12036)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class Ipo(ImplicitRewardLoss):
    """(h − 1/(2β))²: regression to a target margin, where DPO always favours a larger margin.

    DPO maps preference probabilities to rewards by a logit. The logit is infinite if all annotators
    agree, and then no β keeps the policy near its reference. With the identity in place of the
    logit, the loss becomes a regression (equation 17, whose τ is β):

        L = (h − 1/(2β))²,    h = log π(w)/π_ref(w) − log π(l)/π_ref(l),    dL/dh = 2h − 1/β

    The logps in h are means over tokens. The paper does not specify this. With sums, short and long
    responses would have the same target margin 1/(2β); TRL reports that the authors confirmed that
    their results use means.

    A policy that equals its reference has h = 0 and L = 1/(4β²). A small β means a large target
    margin: as β goes to 0, the gradient grows.

    TRL: `loss_type="ipo"`.
    """

    name: ClassVar[str] = "ipo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen_ratios / logps.chosen_tokens
        rejected = logps.rejected_ratios / logps.rejected_tokens
        losses = (chosen - rejected - 1 / (2 * self.beta)) ** 2
        return PairLosses(losses, *self.rewards(logps))
