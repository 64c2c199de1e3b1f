"""Generalised Jensen-Shannon divergence (Agarwal et al. 2023, https://arxiv.org/abs/2306.13649)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss, kl, mixture
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Jsd(DistillationLoss):
    """D = β KL(p ‖ m) + (1 − β) KL(q ‖ m), m = β p + (1 − β) q; their equation 1.

    Near β = 0 it behaves like β KL(p ‖ q), near β = 1 like (1 − β) KL(q ‖ p); it is at most ln 2.

    With the rest R as one bucket D lacks between 0 and
    β p(R) log(m(R) / (β p(R))) + (1 − β) q(R) log(m(R) / ((1 − β) q(R))), which is at most
    m(R) ln 2.

    TRL: `DistillationTrainer` with the same `beta`; at 0 and 1 it takes the two KLs themselves.

    Args:
        beta: the weight β of the teacher in the mixture.
    """

    name: ClassVar[str] = "jsd"

    beta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "beta must be in (0, 1); for 0 use forward_kl, for 1 reverse_kl"
        require(0 < self.beta < 1, rule, self.beta)

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        both = mixture(teacher, student, self.beta)
        return self.beta * kl(teacher, both) + (1 - self.beta) * kl(student, both)
