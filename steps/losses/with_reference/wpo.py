"""WPO (Zhou et al. 2024, https://arxiv.org/abs/2406.11827): weights from the policy."""

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
    """DPO's loss, weighted by the policy's probabilities of the two responses.

    Responses from other models are off-policy. These weights approximate training on responses that
    the policy sampled itself (equation 2):

        L = p_w p_l ((1 − ε) ℓ(m) + ε ℓ(−m)),    p_y = exp(log π(y) / |y|),    ℓ(x) = −log σ(x)
        dL/dm = p_w p_l (σ(m) − (1 − ε))

    p_y is the geometric mean of a response's token probabilities. The weights are not
    differentiated. They are logged as `weights`.

    The paper's *weight alignment* is not implemented. It divides the probability of each token by
    its expectation for a sampled token, Σ_v π(v)², so that the weights of on-policy responses are
    near 1. Without it, weights and gradients are small where the policy is uncertain.

    A policy that equals its reference has L = p_w p_l ln 2.

    TRL: `use_weighting=True` with `loss_type="sigmoid"`, which includes the alignment.
    """

    name: ClassVar[str] = "wpo"

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        likely = logps.chosen / logps.chosen_tokens + logps.rejected / logps.rejected_tokens
        weights = likely.detach().exp()
        losses = weights * logistic(chosen - rejected, self.label_smoothing)
        return PairLosses(losses, chosen, rejected, {"weights": weights})
