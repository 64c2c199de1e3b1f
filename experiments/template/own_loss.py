"""A loss of your own: settings, and a pure function from log-probabilities to losses.

``experiment.py`` gives it a name on the command line: ``dpo/loss=shifted_dpo dpo.loss.shift=1``.
"""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic


@dataclass(frozen=True)
class ShiftedDpo(ImplicitRewardLoss):
    """DPO with a target margin: −log σ(r_w − r_l − shift).

    Args:
        shift: the margin at which the loss is ln 2; 0 is DPO.
    """

    name: ClassVar[str] = "shifted_dpo"

    shift: float = 0.5

    def per_pair(self, logps: PairLogps) -> PairLosses:
        """The loss and the two rewards of each pair, without any reduction."""
        chosen, rejected = self.rewards(logps)
        return PairLosses(logistic(chosen - rejected - self.shift), chosen, rejected)
