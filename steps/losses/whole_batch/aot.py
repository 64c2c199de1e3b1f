"""AOT on pairs (Melnyk et al. 2024, https://arxiv.org/abs/2406.05882)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import PairLogps, PairLosses, SmoothedLoss, logistic
from steps.losses.whole_batch.quantiles import matched


@dataclass(frozen=True)
class Aot(SmoothedLoss):
    """DPO's loss between distributions: each quantile of the policy's margins must exceed the
    reference's.

    DPO wants the policy's margin to exceed the reference's in each pair. AOT wants the
    *distribution* of the policy's margins to dominate that of the reference's. The cost is an
    optimal transport problem in one dimension, which sorting solves. With the batch's sorted
    margins u = log π(w) − log π(l) and v = log π_ref(w) − log π_ref(l),

        L = 1/n Σ_k ℓ(β (u_(k) − v_(k))),    ℓ(x) = −(1 − ε) log σ(x) − ε log σ(−x)
        dL/du_(k) = β/n (σ(β (u_(k) − v_(k))) − (1 − ε))

    So if the margin of pair i is the k-th smallest, the pair's loss is ℓ(β (u_i − v_(k))). Ranks
    are within the whole global batch; in TRL they are within one micro-batch. For a batch of one
    pair, this is DPO.

    A policy that equals its reference has L = ln 2.

    TRL: `loss_type="aot"` with `label_smoothing`.
    """

    name: ClassVar[str] = "aot"

    @property
    def needs_batch(self) -> bool:
        return True

    def per_pair(self, logps: PairLogps) -> PairLosses:
        batch, places = logps.required_batch()
        reference_chosen, reference_rejected = batch.required_reference()
        theirs = reference_chosen - reference_rejected
        other = matched(places, batch.chosen - batch.rejected, theirs)
        margins = self.beta * (logps.chosen - logps.rejected - other)
        return PairLosses(logistic(margins, self.label_smoothing), *self.rewards(logps))
