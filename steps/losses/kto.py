"""KTO (Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306): good or bad, without pairs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import UnpairedLogps, UnpairedLosses, WeightedUnpairedLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Kto(WeightedUnpairedLoss):
    """λ (1 − v): how far a response is from all the value that it could have.

    Kahneman and Tversky's value of an outcome, with a logistic in place of the power function, is
    taken of the reward r = log(π(y|x) / π_ref(y|x)) against a reference point z (equations 7, 8):

        good:  v = σ(β (r − z)),    L = desirable_weight (1 − v)
        bad:   v = σ(β (z − r)),    L = undesirable_weight (1 − v)

        dL/dr = ∓ weight · β · v (1 − v),   − for good and + for bad

    so a response far from z, whichever side, hardly moves: hopeless labels are left alone.

    The reference point is z = KL(π ‖ π_ref), which is estimated and not differentiated. The
    estimator is that of the paper's section 4.1 and of TRL: with y'ᵢ a response to *another*
    prompt,

        z = max(0, 1/n Σᵢ log(π(y'ᵢ|xᵢ) / π_ref(y'ᵢ|xᵢ))).

    It is biased, and cheap: nothing is sampled. Here the mean is over the whole global batch, found
    in a pass without gradients before the step, so it does not depend on micro-batches; in TRL it
    is over one micro-batch on every device. y'ᵢ is the response of the row before (of the first
    row: of the last) in the order of the whole data; in TRL, in the order of every
    `per_device_train_batch_size` rows of it.

    A policy that equals its reference has r = z = 0 and L = weight/2.

    The weights even out labels of unequal number: the paper wants
    (desirable_weight · good) / (undesirable_weight · bad) between 1 and 4/3.

    TRL: `KTOTrainer` with `loss_type="kto"` and the same option names. There a batch's loss is the
    mean over its responses too.
    """

    name: ClassVar[str] = "kto"
    needs_baseline: ClassVar[bool] = True

    def baseline(self, ratios: "Tensor") -> "Tensor":
        """z of a global batch, a scalar, from log π(y'|x) − log π_ref(y'|x), float64 [batch]."""
        return ratios.detach().mean().clamp(min=0)

    def per_response(self, logps: UnpairedLogps, baseline: "Tensor | None") -> UnpairedLosses:
        if baseline is None:
            raise ValueError("kto compares rewards with a baseline, and was given none")
        signs = logps.desirable.to(logps.responses.dtype) * 2 - 1
        values = (signs * self.beta * (logps.ratios - baseline.detach())).sigmoid()
        weights = logps.desirable.to(values.dtype) * self.desirable_weight
        weights = weights + (~logps.desirable).to(values.dtype) * self.undesirable_weight
        return UnpairedLosses(weights * (1 - values), self.beta * logps.ratios)
