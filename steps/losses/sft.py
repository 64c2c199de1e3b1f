"""Supervised fine-tuning: the negative log-likelihood of response tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import Loss, Shares, Totals

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sft(Loss):
    """−1/T Σ log π(token | what is before it), over the T scored tokens of the global batch.

    The gradient is that of cross-entropy: of a logit z_v, π(v) − [v is the target], over T. Every
    token counts the same, so a long response counts for more than a short one.

    TRL: `SFTTrainer` with `completion_only_loss=True`; in `DPOTrainer`, `loss_type="sft"` is the
    term that `nll_weight` adds to a loss over pairs.
    """

    name: ClassVar[str] = "sft"

    def shares(self, logps: "Tensor", totals: Totals, weights: "Tensor | None" = None) -> Shares:
        """The shares of responses with summed log-probabilities `logps`, float64 [n].

        Args:
            weights: [n]; how many times each response counts.
        """
        losses = -logps / totals.tokens
        return Shares(losses if weights is None else weights * losses, {})
