"""Length-normalised DPO (Lambert et al. 2024, Tülu 3, https://arxiv.org/abs/2411.15124)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic


@dataclass(frozen=True)
class SigmoidNorm(ImplicitRewardLoss):
    """DPO on the mean log-ratio of tokens, which does not favour length.

        L = −log σ(m),    dL/dm = −σ(−m)
        m = β (log(π(w)/π_ref(w)) / |w| − log(π(l)/π_ref(l)) / |l|)

    m has the scale of one token, so β must be larger than DPO's by about a factor of a response's
    length; the paper uses 5. The logged rewards are β times the sums, as in DPO.

    A policy that equals its reference has L = ln 2.

    TRL: `loss_type="sigmoid_norm"`.

    Args:
        beta: the weight β of the mean log-ratio of tokens; larger than DPO's by about a factor of
            a response's length.
    """

    name: ClassVar[str] = "sigmoid_norm"

    beta: float = 5.0

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen_ratios / logps.chosen_tokens
        rejected = logps.rejected_ratios / logps.rejected_tokens
        return PairLosses(logistic(self.beta * (chosen - rejected)), *self.rewards(logps))
