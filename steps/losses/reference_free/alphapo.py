"""AlphaPO (Gupta et al. 2025, https://arxiv.org/abs/2501.03884)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import (
    PairLogps,
    PairLosses,
    ReferenceFreeLoss,
    logistic,
    not_overflowing,
    require_smoothing,
)
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AlphaPo(ReferenceFreeLoss):
    """SimPO with a parameter α for the shape of the reward.

    With p = exp(log π(y) / |y|), the geometric mean of a response's token probabilities,

        L = −log σ(m − γ),    m = r_w − r_l,    r = β (1 − p^−α) / α
        dL/dm = −σ(γ − m),    dr/d log p = β p^−α

    As α → 0, the reward becomes SimPO's β log p; the code uses this limit for α = 0. With α > 0,
    unlikely responses have more weight; with α < 0, likely ones.
    With label smoothing ε, L is −(1 − ε) log σ(m − γ) − ε log σ(γ − m).

    TRL: `CPOTrainer` with `loss_type="alphapo"`; `gamma` is `simpo_gamma`.

    Args:
        alpha: the shape α of the reward; above 0, unlikely responses have more weight; 0 is SimPO.
        beta: the weight β of rewards in the margin.
        gamma: the target γ of the margin.
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "alphapo"

    alpha: float = 0.25
    beta: float = 2.0
    gamma: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(-math.inf < self.alpha < math.inf, "alpha must be finite", self.alpha)
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)
        require(0 <= self.gamma < math.inf, "gamma must not be negative", self.gamma)
        require_smoothing(self.label_smoothing)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen / logps.chosen_tokens
        rejected = logps.rejected / logps.rejected_tokens
        if self.alpha > 0 and not self.label_smoothing:
            rejected = not_overflowing(rejected, chosen, self.alpha)
        chosen, rejected = self._rewards(chosen), self._rewards(rejected)
        losses = logistic(chosen - rejected - self.gamma, self.label_smoothing)
        return PairLosses(losses, chosen, rejected)

    def _rewards(self, logps: "Tensor") -> "Tensor":
        """β (1 − p^−α)/α from log p, [n]."""
        if self.alpha == 0:
            return self.beta * logps
        return -self.beta / self.alpha * (-self.alpha * logps).expm1()
