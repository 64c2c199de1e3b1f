"""Robust DPO (Chowdhury, Kini and Natarajan 2024, https://arxiv.org/abs/2403.00409)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import PairLogps, PairLosses, SmoothedLoss, logistic


@dataclass(frozen=True)
class Robust(SmoothedLoss):
    """An unbiased estimate of DPO's loss with the true labels, from labels with random flips.

    Let ℓ(m) = −log σ(m) and let a share ε of labels be flipped at random. Then

        L = ((1 − ε) ℓ(m) − ε ℓ(−m)) / (1 − 2ε)
        dL/dm = −((1 − ε) σ(−m) + ε σ(m)) / (1 − 2ε)

    has the expectation ℓ(m) for the unflipped label. The loss is L(m) with probability 1 − ε and
    L(−m) with probability ε. In the expectation, ℓ(m) has the factor ((1 − ε)² − ε²)/(1 − 2ε) = 1,
    and ℓ(−m) the factor ((1 − ε)ε − ε(1 − ε))/(1 − 2ε) = 0. In the label smoothing of
    :class:`~steps.losses.dpo.Dpo`, the second term has the opposite sign: it prevents
    overconfidence, while this loss corrects a bias. Unlike it, this loss has no lower bound, and
    the size of its gradient never falls below ε/(1 − 2ε).

    A policy that equals its reference has L = ln 2; with ε = 0 it is DPO.

    TRL: `loss_type="robust"` with `label_smoothing`.

    Args:
        label_smoothing: the rate at which labels are flipped.
    """

    name: ClassVar[str] = "robust"

    label_smoothing: float = 0.1

    def per_pair(self, logps: PairLogps) -> PairLosses:
        flipped = self.label_smoothing
        chosen, rejected = self.rewards(logps)
        margins = chosen - rejected
        losses = (1 - flipped) * logistic(margins) - flipped * logistic(-margins)
        return PairLosses(losses / (1 - 2 * flipped), chosen, rejected)
