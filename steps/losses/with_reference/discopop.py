"""DiscoPOP (Lu et al. 2024, https://arxiv.org/abs/2406.08414)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic
from steps.shared.checks import require


@dataclass(frozen=True)
class Discopop(ImplicitRewardLoss):
    """A blend of the logistic and the exponential loss; the margin sets their weights.

    The paper found this loss by a search over programs. It is also called log-ratio modulated loss
    (equation 5):

        L = σ(−m/τ) · −log σ(m) + σ(m/τ) · exp(−m)
        m = β (log π(w)/π_ref(w) − log π(l)/π_ref(l))

    The exponential dominates for m > 0, the logistic for m < 0. L is not convex: around 0 it rises
    with m, from a minimum at about −2τ to a maximum at about τ. So the first gradient of a policy
    that equals its reference points the wrong way. τ must not exceed 1, as the exponential would
    then be unbounded for wrong pairs; the paper uses 0.05.

    A policy that equals its reference has L = ½ (1 + ln 2).

    TRL: `loss_type="discopop"`; `tau` is `discopop_tau`.

    Args:
        tau: the temperature τ of the mixing weight.
    """

    name: ClassVar[str] = "discopop"

    tau: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.tau <= 1, "tau must be in (0, 1]", self.tau)

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        margins = chosen - rejected
        modulation = margins / self.tau
        # One exponential, because for very wrong pairs σ(m/τ) would be 0 and exp(−m) infinite.
        exponential = (-logistic(modulation) - margins).exp()
        losses = (-modulation).sigmoid() * logistic(margins) + exponential
        return PairLosses(losses, chosen, rejected)
