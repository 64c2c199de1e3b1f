"""CPO (Xu et al. 2024, https://arxiv.org/abs/2401.08417)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import (
    LikelihoodLoss,
    PairLogps,
    PairLosses,
    logistic,
    require_smoothing,
)


@dataclass(frozen=True)
class Cpo(LikelihoodLoss):
    """DPO with a uniform reference, and the likelihood of the chosen response to hold it in place.

    A reference that gives every response the same probability cancels in the margin; what kept the
    policy near it is done by a likelihood term instead (equation 3):

        L = −log σ(m) + nll_weight · NLL(w),    m = β (log π(w) − log π(l)),    dL/dm = −σ(−m)

    Rewards are β log π, of sums over tokens, so a longer response is worth less.
    With label smoothing ε the first term is −(1 − ε) log σ(m) − ε log σ(−m).

    The likelihood is a mean over the tokens of the batch, as in TRL; the paper's is over responses.

    TRL: `CPOTrainer` with `loss_type="sigmoid"`; `cpo_alpha` is `nll_weight`.

    Args:
        label_smoothing: the share of labels taken as wrong.
    """

    name: ClassVar[str] = "cpo"

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.beta * logps.chosen, self.beta * logps.rejected
        return PairLosses(logistic(chosen - rejected, self.label_smoothing), chosen, rejected)
