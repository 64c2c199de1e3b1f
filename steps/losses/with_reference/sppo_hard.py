"""SPPO with hard labels (Wu et al. 2024, https://arxiv.org/abs/2405.00675)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class SppoHard(ImplicitRewardLoss):
    """Two regressions of a response's log-ratio to its target value in self-play.

    In self-play, the target of a response's log-ratio is (P − ½)/β, where P is the probability that
    it beats the policy's own responses (equation 4.7, whose η is 1/β). Here P is 1 for the chosen
    response and 0 for the rejected one; the paper estimates P with a preference model.

        L = (h_w − 1/(2β))² + (h_l + 1/(2β))²,    h = log(π/π_ref)
        dL/dh_w = 2h_w − 1/β,    dL/dh_l = 2h_l + 1/β

    As in IPO, the gradient grows as β goes to 0. A policy that equals its reference has
    L = 1/(2β²).

    TRL: `loss_type="sppo_hard"`.
    """

    name: ClassVar[str] = "sppo_hard"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        target = 0.5 / self.beta
        losses = (logps.chosen_ratios - target) ** 2 + (logps.rejected_ratios + target) ** 2
        return PairLosses(losses, *self.rewards(logps))
