"""IPO's regression without a reference (Azar et al. 2023, https://arxiv.org/abs/2310.12036)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import LikelihoodLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class CpoIpo(LikelihoodLoss):
    """(h − 1/(2β))² for mean log-probabilities of tokens, with CPO's likelihood term.

    This is the loss of :class:`~steps.losses.ipo.Ipo` (the paper's equation 17) with a uniform
    reference, as in CPO.

        L = (h − 1/(2β))² + nll_weight · NLL(w),    h = log π(w)/|w| − log π(l)/|l|
        dL/dh = 2h − 1/β

    A small β means a large target margin: with β = 0.1 it is 5 nats per token.

    TRL: `CPOTrainer` with `loss_type="ipo"`; `cpo_alpha` is `nll_weight`.
    """

    name: ClassVar[str] = "cpo_ipo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen / logps.chosen_tokens
        rejected = logps.rejected / logps.rejected_tokens
        losses = (chosen - rejected - 1 / (2 * self.beta)) ** 2
        return PairLosses(losses, self.beta * chosen, self.beta * rejected)
