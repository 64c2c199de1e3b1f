"""DPO with other divergences (Wang et al. 2023, f-DPO, https://arxiv.org/abs/2309.16240)."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import (
    ImplicitRewardLoss,
    PairLogps,
    PairLosses,
    logistic,
    not_overflowing,
    require_smoothing,
)
from steps.shared.checks import require, set_choice

if TYPE_CHECKING:
    from torch import Tensor


class Divergence(StrEnum):
    """The f-divergence between policy and reference, given by its derivative f'(u), u = π/π_ref.

    Each f' is shifted so that f'(1) = 0; the shift cancels in a pair.

    forward_kl: f'(u) = 1 − 1/u.
    js: f'(u) = log(2u / (1 + u)), the Jensen-Shannon divergence.
    alpha: f'(u) = (1 − u^−α) / α.
    """

    forward_kl = "forward_kl"
    js = "js"
    alpha = "alpha"


@dataclass(frozen=True)
class FDpo(ImplicitRewardLoss):
    """DPO's logistic loss with another divergence from the reference than the reverse KL.

    A policy that maximises a reward under a penalty β D_f(π, π_ref) has the implicit reward
    r = β f'(π/π_ref), up to a constant that cancels in a pair. For the reverse KL, f' = log u,
    which gives :class:`~steps.losses.dpo.Dpo`.

        L = −(1 − ε) log σ(m) − ε log σ(−m),    m = β f'(π(w)/π_ref(w)) − β f'(π(l)/π_ref(l))
        dL/dm = σ(m) − (1 − ε)
        df'/d log u = 1/u (forward_kl),  1/(1 + u) (js),  u^−α (alpha)

    The α-divergence lies between the reverse KL (α → 0) and the forward KL (α → 1). With js and
    alpha the reward has an upper bound, so a chosen response that is likely enough has almost no
    gradient.

    With forward_kl and alpha, a response that has become 10^308 times less likely overflows; the
    run then ends with an error. A rejected response does so only with label smoothing.

    A policy that equals its reference has r = 0 and L = ln 2.

    TRL: `f_divergence_type` is `forward_kl`, `js_divergence` or `alpha_divergence`, with
    `loss_type="sigmoid"`. Its `f_alpha_divergence_coef` is 1 − α. TRL ignores label smoothing, and
    logs the rewards of the reverse KL.

    Args:
        divergence: the f-divergence between policy and reference.
        alpha: the parameter α of the α-divergence.
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "f_dpo"

    divergence: Divergence = Divergence.js
    alpha: float = 0.5
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        set_choice(self, "divergence", Divergence)
        require(0 < self.alpha < 1, "alpha must be in (0, 1)", self.alpha)
        require_smoothing(self.label_smoothing)

    def rewards(self, logps: PairLogps) -> tuple["Tensor", "Tensor"]:
        chosen, rejected = logps.chosen_ratios, logps.rejected_ratios
        if self.divergence is not Divergence.js and not self.label_smoothing:
            rejected = not_overflowing(rejected, chosen, self._alpha)
        return self.beta * self._derivative(chosen), self.beta * self._derivative(rejected)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses(logistic(chosen - rejected, self.label_smoothing), chosen, rejected)

    def _derivative(self, ratios: "Tensor") -> "Tensor":
        """f'(u) from log u, [n]."""
        if self.divergence is Divergence.js:
            return math.log(2) - logistic(ratios)
        return -(-self._alpha * ratios).expm1() / self._alpha

    @property
    def _alpha(self) -> float:
        return 1.0 if self.divergence is Divergence.forward_kl else self.alpha
