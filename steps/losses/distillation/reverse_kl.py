"""Reverse KL (Gu et al. 2023, MiniLLM, https://arxiv.org/abs/2306.08543)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss, kl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReverseKl(DistillationLoss):
    """D = KL(q ‖ p) = Σ_v q(v) log(q(v) / p(v)), dD/dz_v = q(v) (log(q(v) / p(v)) − D) / T.

    A student that cannot follow the teacher everywhere keeps to what the teacher finds likely.

    With the rest R as one bucket D lacks q(R) KL(q(·|R) ‖ p(·|R)) ≥ 0, which is small once the
    student finds R unlikely.

    TRL: `DistillationTrainer` with `beta=1`, its default.
    """

    name: ClassVar[str] = "reverse_kl"

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        return kl(student, teacher)
