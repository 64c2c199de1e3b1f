"""WPO (Zhou et al. 2024, https://arxiv.org/abs/2406.11827): weights from the policy."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import PairLogps, PairLosses, SmoothedLoss, logistic
from steps.shared.execution_detail import added_field

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Wpo(SmoothedLoss):
    """DPO's loss, weighted by the policy's probabilities of the two responses.

    Responses from other models are off-policy. These weights approximate training on responses that
    the policy sampled itself (equation 2):

        L = p_w p_l ((1 − ε) ℓ(m) + ε ℓ(−m)),    p_y = exp(log π(y) / |y|),    ℓ(x) = −log σ(x)
        dL/dm = p_w p_l (σ(m) − (1 − ε))

    p_y is the geometric mean of a response's token probabilities. The weights are not
    differentiated. They are logged as `weights`.

    Without `align`, weights and gradients are small where the policy is uncertain. With it (the
    paper's weight alignment by sampled tokens), the probability of a token is divided by its
    expectation for a token that the policy samples:

        p_y = exp(1/|y| Σ_t (log π(y_t) − log Σ_v π(v)²)),    and the weight is at most 1

    so the weights of responses that the policy sampled itself are near 1. A pass without gradients
    and without dropout computes these sums before each step, which costs a forward.

    A policy that equals its reference has L = weight · ln 2.

    TRL: `use_weighting=True` with `loss_type="sigmoid"` is `align=True`, without the bound of 1.

    Args:
        align: divide each token's probability by its expectation for a sampled token, as the paper
            does.
    """

    name: ClassVar[str] = "wpo"

    align: bool = added_field(False, before=False)

    @property
    def needs_alignment(self) -> bool:
        return self.align

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        weights = self._weights(logps).detach()
        losses = weights * logistic(chosen - rejected, self.label_smoothing)
        return PairLosses(losses, chosen, rejected, {"weights": weights})

    def _weights(self, logps: PairLogps) -> "Tensor":
        """The pairs' weights, [n]."""
        likely = (logps.chosen, logps.rejected)
        if self.align:
            likely = logps.required_alignment()
        means = likely[0] / logps.chosen_tokens + likely[1] / logps.rejected_tokens
        return means.clamp(max=0).exp() if self.align else means.exp()
