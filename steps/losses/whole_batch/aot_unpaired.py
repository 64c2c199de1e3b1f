"""AOT without pairs (Melnyk et al. 2024, https://arxiv.org/abs/2406.05882)."""

from dataclasses import dataclass
from typing import ClassVar

from steps.losses.base import PairLogps, PairLosses, SmoothedLoss, logistic
from steps.losses.whole_batch.quantiles import matched


@dataclass(frozen=True)
class AotUnpaired(SmoothedLoss):
    """Each quantile of the rewards of chosen responses must exceed that of the rejected ones.

    The loss ignores which responses share a prompt. With the batch's log-ratios
    c = log π(w)/π_ref(w) and r = log π(l)/π_ref(l), each sorted,

        L = 1/n Σ_k ℓ(β (c_(k) − r_(k))),    ℓ(x) = −(1 − ε) log σ(x) − ε log σ(−x)
        dL/dc_(k) = −dL/dr_(k) = β/n (σ(β (c_(k) − r_(k))) − (1 − ε))

    The two responses of a term usually belong to different pairs, possibly in different forwards.
    So the loss of pair i is half the term of its chosen response plus half the term of its rejected
    one, but its gradient is the full gradient of both terms by its own responses. Summed over the
    batch, these give L and its gradient. Ranks are within the whole global batch; in TRL they are
    within one micro-batch.

    A policy that equals its reference has L = ln 2.

    TRL: `loss_type="aot_unpaired"` with `label_smoothing`.
    """

    name: ClassVar[str] = "aot_unpaired"

    @property
    def needs_batch(self) -> bool:
        return True

    def per_pair(self, logps: PairLogps) -> PairLosses:
        batch, places = logps.required_batch()
        chosen, rejected = batch.chosen_ratios, batch.rejected_ratios
        above = logps.chosen_ratios - matched(places, chosen, rejected)
        below = matched(places, rejected, chosen) - logps.rejected_ratios
        terms = logistic(self.beta * above, self.label_smoothing)
        terms = terms + logistic(self.beta * below, self.label_smoothing)
        return PairLosses(terms - 0.5 * terms.detach(), *self.rewards(logps))
