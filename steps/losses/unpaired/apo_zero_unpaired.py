"""APO-zero for single responses (D'Oosterlinck et al. 2024, https://arxiv.org/abs/2408.06266)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import UnpairedLogps, UnpairedLosses, WeightedUnpairedLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ApoZeroUnpaired(WeightedUnpairedLoss):
    """APO-zero for responses labelled good or bad; like KTO, but without a reference point.

    The paper's equation 7 is a sum of one term for each response of a pair, so it needs no pairs.
    With r = β log(π/π_ref),

        good:  L = desirable_weight (1 − σ(r)),     dL/dr = −desirable_weight σ(r) σ(−r)
        bad:   L = undesirable_weight σ(r),         dL/dr = undesirable_weight σ(r) σ(−r)

    There is no baseline, so a training step needs no additional forward. A policy that equals its
    reference has L = weight/2.

    TRL: `KTOTrainer` with `loss_type="apo_zero_unpaired"`.
    """

    name: ClassVar[str] = "apo_zero_unpaired"

    def per_response(self, logps: UnpairedLogps, baseline: "Tensor | None") -> UnpairedLosses:
        import torch

        rewards = self.beta * logps.ratios
        good = self.desirable_weight * (-rewards).sigmoid()
        bad = self.undesirable_weight * rewards.sigmoid()
        return UnpairedLosses(torch.where(logps.desirable, good, bad), rewards)
