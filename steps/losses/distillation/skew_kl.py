"""Skewed KL (Ko et al. 2024, DistiLLM, https://arxiv.org/abs/2402.03898)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss, kl, mixture, require_skew

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SkewKl(DistillationLoss):
    """D = KL(p ‖ m), m = α p + (1 − α) q.

    The ratio p / m is at most 1 / α, so D is at most log(1 / α), however unlikely the student finds
    what the teacher finds likely.

    With the rest R as one bucket D lacks p(R) KL(p(·|R) ‖ m(·|R)), which is between 0 and
    p(R) log(m(R) / (α p(R))).

    Args:
        alpha: the weight α of the teacher in the mixture; the paper's experiments use 0.1.
    """

    name: ClassVar[str] = "skew_kl"

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_skew(self.alpha)

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        return kl(teacher, mixture(teacher, student, self.alpha))
