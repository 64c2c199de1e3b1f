"""LD-DPO (Liu et al. 2024, https://arxiv.org/abs/2409.06411): DPO less sensitive to length."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic, require_smoothing
from steps.losses.token_level.ragged import each_token, places, response_sums
from steps.shared.checks import require

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LdDpo(ImplicitRewardLoss):
    """DPO in which tokens beyond the length of the shorter response have the weight α.

    A longer response has a lower likelihood and a larger gradient because of its length alone. So,
    with l = min(|w|, |l|), the length of the shorter response, the likelihood of each is

        log π̂(y) = Σ_{t ≤ l} log π(y_t) + α Σ_{t > l} log π(y_t)

    for the policy and for the reference, and

        L = −(1 − ε) log σ(m) − ε log σ(−m),    m = β (log π̂(w)/π̂_ref(w) − log π̂(l)/π̂_ref(l))
        dL/dm = σ(m) − (1 − ε),    dm/d log π(y_t) = ±β, beyond l ±αβ

    α = 1 is DPO; α = 0 cuts the longer response. The shorter response always has full weight. Only
    scored tokens count towards lengths. The logged rewards are those of π̂.

    A policy that equals its reference has L = ln 2.

    TRL: `ld_alpha` with `loss_type="sigmoid"`; its logged logps are those of π̂ too.

    Args:
        alpha: the weight of tokens beyond the other response's length.
        label_smoothing: the share ε of labels that is assumed to be wrong.
    """

    name: ClassVar[str] = "ld_dpo"

    alpha: float = 0.5
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.alpha <= 1, "alpha must be in [0, 1]", self.alpha)
        require_smoothing(self.label_smoothing)

    @property
    def needs_tokens(self) -> bool:
        return True

    def rewards(self, logps: PairLogps) -> tuple["Tensor", "Tensor"]:
        policy, reference = logps.required_tokens()
        lengths, count = logps.lengths, len(policy)
        shared = lengths.amin(dim=1, keepdim=True).expand_as(lengths)
        beyond = places(lengths, count) >= each_token(shared, lengths, count)
        weights = 1 - (1 - self.alpha) * beyond.to(policy.dtype)
        chosen, rejected = response_sums(weights * (policy - reference), lengths).unbind(1)
        return self.beta * chosen, self.beta * rejected

    def per_pair(self, logps: PairLogps) -> PairLosses:
        chosen, rejected = self.rewards(logps)
        return PairLosses(logistic(chosen - rejected, self.label_smoothing), chosen, rejected)
