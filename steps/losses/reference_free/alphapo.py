"""AlphaPO (Gupta et al. 2025, https://arxiv.org/abs/2501.03884)."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import (
    PairLogps,
    PairLosses,
    ReferenceFreeLoss,
    logistic,
    require_smoothing,
)
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AlphaPo(ReferenceFreeLoss):
    """SimPO with a reward whose shape α sets.

    With p = exp(log π(y) / |y|), the geometric mean of a response's token probabilities,

        L = −log σ(m − γ),    m = r_w − r_l,    r = β (1 − p^−α) / α
        dL/dm = −σ(γ − m),    dr/d log p = β p^−α

    As α → 0 the reward becomes β log p, which is SimPO's; α = 0 is computed so. With α > 0 an
    unlikely response weighs more, with α < 0 a likely one.
    With label smoothing ε, L is −(1 − ε) log σ(m − γ) − ε log σ(γ − m).

    TRL: `CPOTrainer` with `loss_type="alphapo"`; `gamma` is `simpo_gamma`.

    Args:
        alpha: the shape α of the reward: above 0 an unlikely response weighs more, 0 is SimPO.
        beta: the weight β of rewards in the margin.
        gamma: the margin γ that is to be reached.
        label_smoothing: the share of labels taken as wrong.
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
        chosen = self._rewards(logps.chosen / logps.chosen_tokens)
        rejected = self._rewards(logps.rejected / logps.rejected_tokens)
        losses = logistic(chosen - rejected - self.gamma, self.label_smoothing)
        return PairLosses(losses, chosen, rejected)

    def _rewards(self, logps: "Tensor") -> "Tensor":
        """β (1 − p^−α)/α of log p, [n]."""
        if self.alpha == 0:
            return self.beta * logps
        return -self.beta / self.alpha * (-self.alpha * logps).expm1()
