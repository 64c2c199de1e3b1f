"""Supervised fine-tuning: the negative log-likelihood of response tokens."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import Loss, Shares, Totals

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sft(Loss):
    """−1/T Σ log π(token | tokens before it), over the T scored tokens of the global batch.

    This is cross-entropy; its gradient by a logit z_v is (π(v) − [v is the target]) / T. All tokens
    have the same weight, so a long response has more weight than a short one.

    TRL: `SFTTrainer` with `completion_only_loss=True`; in `DPOTrainer`, `loss_type="sft"` is the
    term that `nll_weight` adds to a loss over pairs.
    """

    name: ClassVar[str] = "sft"

    def shares(
        self,
        logps: "Tensor",
        totals: Totals,
        weights: "Tensor | None" = None,
        hits: "Tensor | None" = None,
    ) -> Shares:
        """The shares of responses with summed log-probabilities `logps`, float64 [n].

        Args:
            weights: [n]; a factor of each response's loss.
            hits: [n]; how many of each response's tokens have the largest logit. Their share of
                all T tokens, unweighted, is the metric ``mean_token_accuracy``.
        """
        losses = -logps / totals.tokens
        metrics = {} if hits is None else {"mean_token_accuracy": hits / totals.tokens}
        return Shares(losses if weights is None else weights * losses, metrics)
