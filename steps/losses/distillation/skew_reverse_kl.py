"""Skewed reverse KL (Ko et al. 2024, DistiLLM, https://arxiv.org/abs/2402.03898)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.distillation.distillation_loss import DistillationLoss, kl, mixture, require_skew

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SkewReverseKl(DistillationLoss):
    """D = KL(q ‖ m), m = (1 − α) p + α q.

    The ratio q / m is at most 1 / α, so D is at most log(1 / α), however unlikely the teacher finds
    what the student finds likely.

    With the rest R as one bucket D lacks q(R) KL(q(·|R) ‖ m(·|R)), which is between 0 and
    q(R) log(m(R) / (α q(R))).

    Args:
        alpha: the weight α of the student in the mixture; the paper's experiments use 0.1.
    """

    name: ClassVar[str] = "skew_reverse_kl"

    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_skew(self.alpha)

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        return kl(student, mixture(student, teacher, self.alpha))
