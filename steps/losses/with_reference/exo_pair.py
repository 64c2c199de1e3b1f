"""EXO on pairs (Ji et al. 2024, https://arxiv.org/abs/2402.00856)."""

import math
from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses
from steps.shared.checks import require


@dataclass(frozen=True)
class ExoPair(ImplicitRewardLoss):
    """The reverse KL divergence between two distributions over a pair's responses.

    DPO minimises the forward divergence, from the labels to the policy, and covers every mode. EXO
    minimises the reverse divergence, which seeks one mode. The policy prefers the chosen response
    with probability σ(m), the labels with probability 1 − ε (equation 16):

        L = σ(m) (log σ(m) − log(1 − ε)) + σ(−m) (log σ(−m) − log ε)
        m = β (log π(w)/π_ref(w) − log π(l)/π_ref(l))
        dL/dm = σ(m) σ(−m) (m − log((1 − ε)/ε))

    The minimum is at m = log((1 − ε)/ε), where L = 0. With certain labels (ε = 0), L would be
    infinite, so ε must be above 0; the paper uses 1e-3.

    A policy that equals its reference has L = −½ log(4 ε (1 − ε)).

    TRL: `loss_type="exo_pair"` with `label_smoothing`.

    Args:
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "exo_pair"

    label_smoothing: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        smoothing = self.label_smoothing
        require(0 < smoothing < 0.5, "label_smoothing must be in (0, 0.5)", smoothing)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        from torch.nn.functional import logsigmoid

        chosen, rejected = self.rewards(logps)
        margins = chosen - rejected
        right = logsigmoid(margins) - math.log1p(-self.label_smoothing)
        wrong = logsigmoid(-margins) - math.log(self.label_smoothing)
        losses = margins.sigmoid() * right + (-margins).sigmoid() * wrong
        return PairLosses(losses, chosen, rejected)
