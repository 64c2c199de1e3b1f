"""CPO (Xu et al. 2024, https://arxiv.org/abs/2401.08417)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import LikelihoodLoss, PairLogps, PairLosses, logistic, require_smoothing


@dataclass(frozen=True)
class Cpo(LikelihoodLoss):
    """DPO with a uniform reference, and a likelihood term for the chosen response.

    A reference that gives every response the same probability cancels in the margin. The likelihood
    term takes over its role as a regulariser (equation 3):

        L = −log σ(m) + nll_weight · NLL(w),    m = β (log π(w) − log π(l)),    dL/dm = −σ(−m)

    Rewards are β log π, a sum over tokens, so longer responses get lower rewards.
    With label smoothing ε the first term is −(1 − ε) log σ(m) − ε log σ(−m).

    The likelihood term is a mean over the tokens of the batch, as in TRL; in the paper it is a mean
    over responses.

    TRL: `CPOTrainer` with `loss_type="sigmoid"`; `cpo_alpha` is `nll_weight`.

    Args:
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "cpo"

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.beta * logps.chosen, self.beta * logps.rejected
        return PairLosses(logistic(chosen - rejected, self.label_smoothing), chosen, rejected)
