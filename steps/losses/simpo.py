"""SimPO (Meng, Xia and Chen 2024, https://arxiv.org/abs/2405.14734)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import PairLogps, PairLosses, ReferenceFreeLoss, logistic, require_smoothing
from steps.shared.checks import require


@dataclass(frozen=True)
class Simpo(ReferenceFreeLoss):
    """−log σ(m − γ), where rewards are β times the *mean* log-probability of a token.

    The reward r = β/|y| log π(y|x) (equation 4) is the quantity that ranks responses in decoding.
    It needs no reference and does not favour length. The margin must exceed a target γ
    (equation 6):

        L = −log σ(m − γ),    m = β (log π(w)/|w| − log π(l)/|l|),    dL/dm = −σ(γ − m)

    With label smoothing ε it is −(1 − ε) log σ(m − γ) − ε log σ(γ − m).

    The paper uses β from 2 to 10 and γ/β from 0.3 to 1.6.

    TRL: `CPOTrainer` with `loss_type="simpo"`, `simpo_gamma`, and `cpo_alpha=0`, which is
    `nll_weight` here. (TRL's defaults are β = 0.1 and γ = 0.5, so γ/β is 5.)

    Args:
        beta: the weight β of mean log-probabilities in the margin.
        gamma: the target γ of the margin.
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "simpo"

    beta: float = 2.0
    gamma: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta < math.inf, "beta must be above 0", self.beta)
        require(0 <= self.gamma < math.inf, "gamma must not be negative", self.gamma)
        require_smoothing(self.label_smoothing)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = self.beta * logps.chosen / logps.chosen_tokens
        rejected = self.beta * logps.rejected / logps.rejected_tokens
        losses = logistic(chosen - rejected - self.gamma, self.label_smoothing)
        return PairLosses(losses, chosen, rejected)
