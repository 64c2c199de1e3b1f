"""Forward KL (Hinton et al. 2015, https://arxiv.org/abs/1503.02531)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss, kl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ForwardKl(DistillationLoss):
    """D = KL(p ‖ q) = Σ_v p(v) log(p(v) / q(v)), with dD/dz_v = (q(v) − p(v)) / T.

    It covers all that the teacher finds likely.

    With the rest R as one bucket D lacks p(R) KL(p(·|R) ‖ q(·|R)) ≥ 0. The gradient by the logits
    of the k tokens is exact. By those of R it is off by p(R) (p(v|R) − q(v|R)) / T, in all by at
    most 2 p(R) / T.

    TRL: `DistillationTrainer` with `beta=0`.
    """

    name: ClassVar[str] = "forward_kl"

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        return kl(teacher, student)
