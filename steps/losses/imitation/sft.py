"""Supervised fine-tuning: the negative log-likelihood of response tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import SftLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sft(SftLoss):
    """−1/T Σ log π(token | tokens before it), over the T scored tokens of the global batch.

    This is cross-entropy; its gradient by a logit z_v is (π(v) − [v is the target]) / T. All tokens
    have the same weight, so a long response has more weight than a short one.

    TRL: `SFTTrainer` with `completion_only_loss=True`; in `DPOTrainer`, `loss_type="sft"` is the
    term that `nll_weight` adds to a loss over pairs.
    """

    name: ClassVar[str] = "sft"

    def per_token(self, logps: "Tensor") -> "Tensor":
        return -logps
