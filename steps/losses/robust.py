"""Robust DPO (Chowdhury, Kini and Natarajan 2024, https://arxiv.org/abs/2403.00409)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import (
    PairLogps,
    PairLosses,
    SmoothedLoss,
    logistic,
)


@dataclass(frozen=True)
class Robust(SmoothedLoss):
    """DPO's loss of the true labels, estimated without bias from labels of which some are flipped.

    Let ℓ(m) = −log σ(m) and let a share ε of labels be flipped at random. Then

        L = ((1 − ε) ℓ(m) − ε ℓ(−m)) / (1 − 2ε)
        dL/dm = −((1 − ε) σ(−m) + ε σ(m)) / (1 − 2ε)

    has the expectation ℓ of the unflipped label: with rate 1 − ε it is L(m) and with ε it is L(−m),
    and ((1 − ε)² − ε²) / (1 − 2ε) = 1 of ℓ(m) remains, ((1 − ε)ε − ε(1 − ε)) = 0 of ℓ(−m). The
    label smoothing of :class:`~steps.losses.dpo.Dpo` has the opposite sign in its second
    term: it guards against confidence, and this against a wrong mean. Unlike that it is not bounded
    below, and its gradient never falls under ε/(1 − 2ε).

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
