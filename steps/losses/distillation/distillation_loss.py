"""The family of losses that compare a student's distribution with a teacher's.

Both are over buckets at each scored token: the k tokens that the teacher finds likeliest, and all
others together (R) as one bucket, unless k is the whole vocabulary. A divergence D of buckets is
never above that of the whole distributions, and equal to it where k is the vocabulary. By how much
it is below, the docstring of each loss says; that is 0 too where teacher and student agree on what
is likely within R.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steps.losses.base import Loss, Shares, Totals
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DistillationLoss(Loss):
    """1/N Σ (1 − w) D(p, q) − w log π(y), over the N scored tokens y of the global batch.

    p and q are the teacher's and the student's distribution at a temperature T, p(v) ∝ exp(z(v)/T).
    The likelihood term is at temperature 1. As in TRL, D is not multiplied by T², so its gradient
    falls with a higher T (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

    Args:
        temperature: T, of both distributions.
        cross_entropy: the weight w of the likelihood of the tokens themselves, in [0, 1).
    """

    temperature: float = 1.0
    cross_entropy: float = 0.0

    def __post_init__(self) -> None:
        rule = "temperature must be above 0"
        require(0 < self.temperature < math.inf, rule, self.temperature)
        rule = "cross_entropy must be in [0, 1)"
        require(0 <= self.cross_entropy < 1, rule, self.cross_entropy)

    def divergences(self, student: "Tensor", teacher: "Tensor") -> "Tensor":
        """D for each of S tokens, [S].

        Args:
            student: log q of each of m buckets, float64 [S, m], with gradients.
            teacher: log p of the same buckets, float64 [S, m].
        """
        raise NotImplementedError

    def shares(
        self,
        divergences: "Tensor",
        logps: "Tensor",
        totals: Totals,
        weights: "Tensor",
        hits: "Tensor",
        agreements: "Tensor",
    ) -> Shares:
        """The shares of n responses, from sums over their tokens, [n] each.

        Args:
            divergences: of D; logged as ``loss/divergence``.
            logps: of log π(y); their negative is logged as ``loss/cross_entropy``.
            weights: a factor of each response's loss.
            hits: how many tokens y have the largest logit: ``mean_token_accuracy``.
            agreements: at how many tokens the student finds the same token likeliest as the
                teacher: ``teacher/agreement``.
        """
        w, tokens = self.cross_entropy, totals.tokens
        losses = ((1 - w) * divergences - w * logps) / tokens
        values = {"loss/divergence": divergences, "loss/cross_entropy": -logps}
        values |= {"mean_token_accuracy": hits, "teacher/agreement": agreements}
        return Shares(weights * losses, {n: v.detach() / tokens for n, v in values.items()})


def kl(log_p: "Tensor", log_q: "Tensor") -> "Tensor":
    """KL(p ‖ q) = Σ p (log p − log q) over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def mixture(log_p: "Tensor", log_q: "Tensor", weight: float) -> "Tensor":
    """log(weight · p + (1 − weight) · q), for a weight in (0, 1)."""
    import torch

    return torch.logaddexp(log_p + math.log(weight), log_q + math.log1p(-weight))


def require_skew(alpha: float) -> None:
    """Require a weight of a skewed divergence in (0, 1); at 0 it would be another loss."""
    require(0 < alpha < 1, "alpha must be in (0, 1); without a skew, use the KL itself", alpha)
