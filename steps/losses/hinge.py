"""The hinge loss of SLiC and RSO on DPO's margin.

Zhao et al. 2023 (SLiC-HF, https://arxiv.org/abs/2305.10425), with likelihoods normalised by a
reference as in Liu et al. 2023 (RSO, https://arxiv.org/abs/2309.06657), who call it "hinge-norm".
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses


@dataclass(frozen=True)
class Hinge(ImplicitRewardLoss):
    """max(0, 1 − m), with the margin m of :class:`~steps.losses.dpo.Dpo`.

        L = max(0, 1 − m),    m = β (log π(w)/π_ref(w) − log π(l)/π_ref(l)),    dL/dm = −[m < 1]

    It relates to DPO as a support vector machine to logistic regression: a pair with a difference
    of more than 1/β nats has no gradient. A policy that equals its reference has L = 1.

    TRL: `loss_type="hinge"`.
    """

    name: ClassVar[str] = "hinge"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses((1 - (chosen - rejected)).relu(), chosen, rejected)
