"""KTO (Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306): good or bad, without pairs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import UnpairedLogps, UnpairedLosses, WeightedUnpairedLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Kto(WeightedUnpairedLoss):
    """λ (1 − v), where v is the value of a response, between 0 and 1.

    v is the value function of Kahneman and Tversky, with a logistic in place of the power function,
    of the reward r = log(π(y|x) / π_ref(y|x)) relative to a reference point z (equations 7, 8):

        good:  v = σ(β (r − z)),    L = desirable_weight (1 − v)
        bad:   v = σ(β (z − r)),    L = undesirable_weight (1 − v)

        dL/dr = ∓ weight · β · v (1 − v),   − for good and + for bad

    So a response whose reward is far from z, on either side, has almost no gradient: the loss
    ignores labels that it cannot fit.

    The reference point is z = KL(π ‖ π_ref). It is estimated and not differentiated. The estimator
    is that of the paper's section 4.1 and of TRL: with y'ᵢ a response to *another* prompt,

        z = max(0, 1/n Σᵢ log(π(y'ᵢ|xᵢ) / π_ref(y'ᵢ|xᵢ))).

    This estimate is biased but cheap, as it needs no samples. Here the mean is over the whole
    global batch, from a pass without gradients before the step, so it does not depend on
    micro-batches. In TRL it is over one micro-batch on every device. y'ᵢ is the response of a
    row before with another prompt, in the order of the whole data (before the first row comes the
    last): to the k-th of neighbours with one prompt the k-th of the neighbours before, so that good
    and bad responses stand for others alike. In TRL, it is that of the row before, whatever its
    prompt, in each `per_device_train_batch_size` rows.

    A policy that equals its reference has r = z = 0 and L = weight/2.

    The weights balance unequal numbers of labels: the paper recommends
    (desirable_weight · good) / (undesirable_weight · bad) between 1 and 4/3.

    TRL: `KTOTrainer` with `loss_type="kto"` and the same option names. TRL's loss of a batch is
    also the mean over its responses.
    """

    name: ClassVar[str] = "kto"
    needs_baseline: ClassVar[bool] = True

    def baseline(self, ratios: "Tensor") -> "Tensor":
        """z, a scalar, from log π(y'|x) − log π_ref(y'|x) of the global batch, float64 [batch]."""
        return ratios.detach().mean().clamp(min=0)

    def per_response(self, logps: UnpairedLogps, baseline: "Tensor | None") -> UnpairedLosses:
        if baseline is None:
            raise ValueError("kto compares rewards with a baseline, and was given none")
        signs = logps.desirable.to(logps.responses.dtype) * 2 - 1
        values = (signs * self.beta * (logps.ratios - baseline.detach())).sigmoid()
        weights = logps.desirable.to(values.dtype) * self.desirable_weight
        weights = weights + (~logps.desirable).to(values.dtype) * self.undesirable_weight
        return UnpairedLosses(weights * (1 - values), self.beta * logps.ratios)
