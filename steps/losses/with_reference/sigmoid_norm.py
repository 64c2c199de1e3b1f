"""Length-normalised DPO (Lambert et al. 2024, Tülu 3, https://arxiv.org/abs/2411.15124)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic


@dataclass(frozen=True)
class SigmoidNorm(ImplicitRewardLoss):
    """DPO on the mean log-ratio of a token, so that length is not rewarded.

        L = −log σ(m),    dL/dm = −σ(−m)
        m = β (log(π(w)/π_ref(w)) / |w| − log(π(l)/π_ref(l)) / |l|)

    The scale of m is that of one token, so β is larger than DPO's by about a response's length; the
    paper takes 5. The rewards that are logged are β times the sums, as DPO's.

    A policy that equals its reference has L = ln 2.

    TRL: `loss_type="sigmoid_norm"`.

    Args:
        beta: the weight β of a token's mean log-ratio; larger than DPO's by about the length of a
            response.
    """

    name: ClassVar[str] = "sigmoid_norm"

    beta: float = 5.0

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen = logps.chosen_ratios / logps.chosen_tokens
        rejected = logps.rejected_ratios / logps.rejected_tokens
        return PairLosses(logistic(self.beta * (chosen - rejected)), *self.rewards(logps))
