"""The hinge loss of SLiC-HF (Zhao et al. 2023, https://arxiv.org/abs/2305.10425)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import LikelihoodLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class CpoHinge(LikelihoodLoss):
    """max(0, 1 − m) on the margin of :class:`~steps.losses.cpo.Cpo`, with a likelihood term.

        L = max(0, 1 − m) + nll_weight · NLL(w),    m = β (log π(w) − log π(l)),    dL/dm = −[m < 1]

    In the paper the margin is in nats and must reach δ, which is 1/β here. The paper's likelihood
    term is over the supervised targets; here it is over the chosen responses.

    TRL: `CPOTrainer` with `loss_type="hinge"`; `cpo_alpha` is `nll_weight`.
    """

    name: ClassVar[str] = "cpo_hinge"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.beta * logps.chosen, self.beta * logps.rejected
        return PairLosses((1 - (chosen - rejected)).relu(), chosen, rejected)
