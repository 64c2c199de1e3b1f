"""TDPO (Zeng et al. 2024, https://arxiv.org/abs/2404.11999): DPO with a forward KL by token."""

import math
from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic
from steps.shared.checks import require


@dataclass(frozen=True)
class Tdpo(ImplicitRewardLoss):
    """DPO whose margin also compares how far the policy has left its reference on each response.

    The distance is the sequential forward KL, over the vocabulary V at each of a response's scored
    tokens,

        D(y) = Σ_t Σ_{v ∈ V} π_ref(v | y_<t) (log π_ref(v | y_<t) − log π(v | y_<t))

    and the loss (the paper's TDPO2; sg stops the gradient) is

        L = −log σ(M),    M = m + αβ (sg D(w) − D(l)),    m = β (log π/π_ref(w) − log π/π_ref(l))
        dL/dm = σ(M) − 1,    dL/dD(l) = αβ (1 − σ(M)),    dL/dD(w) = 0

    So a step lowers D(l), which grows faster than D(w) under DPO. With `stop_gradient=False`,
    dL/dD(w) = αβ (σ(M) − 1), which raises D(w); with α = 1 that is the paper's TDPO1. As α
    vanishes, both become DPO.

    The reference's distribution at each token is computed while training, by a model beside the
    policy. The logged rewards are β log π/π_ref as in DPO, which an evaluation can compute too; the
    authors' are these plus β D. D is logged as `kl/chosen` and `kl/rejected`.

    A policy that equals its reference has L = ln 2, D = 0, and the gradient of DPO.

    TRL has no TDPO. In the authors' code `if_tdpo2=true` is the default here; with `false` it takes
    α = 1, whatever `alpha` says.

    Args:
        alpha: the weight α of the distances.
        stop_gradient: do not differentiate the chosen response's distance, as TDPO2.
    """

    name: ClassVar[str] = "tdpo"

    alpha: float = 0.5
    stop_gradient: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.alpha < math.inf, "alpha must be above 0", self.alpha)

    @property
    def needs_divergence(self) -> bool:
        return True

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        of_chosen, of_rejected = logps.required_divergence()
        metrics = {"kl/chosen": of_chosen, "kl/rejected": of_rejected}
        fixed = of_chosen.detach() if self.stop_gradient else of_chosen
        margins = chosen - rejected + self.alpha * self.beta * (fixed - of_rejected)
        return PairLosses(logistic(margins), chosen, rejected, metrics)
