"""WPO (Zhou et al. 2024, https://arxiv.org/abs/2406.11827): weights that follow the policy."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import (
    PairLogps,
    PairLosses,
    SmoothedLoss,
    logistic,
)


@dataclass(frozen=True)
class Wpo(SmoothedLoss):
    """DPO's loss, weighted by how likely the policy is to give the two responses.

    Responses from other models are off-policy. Weights that follow the policy make them count more
    like responses that it sampled itself (equation 2):

        L = p_w p_l ((1 − ε) ℓ(m) + ε ℓ(−m)),    p_y = exp(log π(y) / |y|),    ℓ(x) = −log σ(x)
        dL/dm = p_w p_l (σ(m) − (1 − ε))

    p_y is the geometric mean of a response's token probabilities. The weights are not
    differentiated. They are logged as `weights`.

    The paper's *weight alignment* is not here. It divides the probability of each token by what the
    policy expects of a token that it samples itself, Σ_v π(v)², so that weights of on-policy
    responses are near 1. Without it weights are small where the policy is uncertain, and so is the
    gradient.

    A policy that equals its reference has L = p_w p_l ln 2.

    TRL: `use_weighting=True` with `loss_type="sigmoid"`, which has the alignment.
    """

    name: ClassVar[str] = "wpo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        likely = logps.chosen / logps.chosen_tokens + logps.rejected / logps.rejected_tokens
        weights = likely.detach().exp()
        losses = weights * logistic(chosen - rejected, self.label_smoothing)
        return PairLosses(losses, chosen, rejected, {"weights": weights})
