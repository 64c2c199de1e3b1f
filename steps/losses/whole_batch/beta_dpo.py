"""β-DPO (Wu et al. 2024, https://arxiv.org/abs/2407.08639): β depends on the batch."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from steps.losses.base import ImplicitRewardLoss, PairLogps, PairLosses, logistic
from steps.shared.checks import require
from steps.shared.counts import share_of

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_BETA = 1e-3
_THRESHOLD, _SPREAD = "beta_dpo/threshold", "beta_dpo/spread"


@dataclass(frozen=True)
class BetaDpo(ImplicitRewardLoss):
    """DPO whose β grows with the margins of a batch, and which leaves out pairs with unusual gaps.

    The policy learns cautiously from batches with large gaps and faster from others. With the gaps
    M = log π(w)/π_ref(w) − log π(l)/π_ref(l) of a batch, and their running mean M₀ and standard
    deviation s over steps,

        M₀ ← μ M₀ + (1 − μ) mean(M),    s ← μ s + (1 − μ) std(M)
        keep ⌊ρ n⌋ pairs, drawn without replacement with weights exp(−(M − M₀)² / 2s²)
        β' = max(β (1 + α (mean M of kept pairs − M₀)), 1e-3)
        L  = mean of −log σ(β' M) over kept pairs,    dL/dM = −β' σ(−β' M)

    β' is not differentiated. μ is `momentum` and ρ is `keep`. These are the rules of the authors'
    code (https://github.com/junkangwu/beta-DPO), with two differences: M₀ and s start at the mean
    and deviation of the first batch, not at 0; and the step's number seeds the draw of pairs.

    Each step logs M₀ and s and reads the values that the previous step logged, so a resumed run
    continues identically. In the first step and on held-out pairs, all pairs are kept and β' = β:
    the loss is DPO's.

    A policy that equals its reference has L = ln 2. TRL does not have this loss.

    Args:
        alpha: how strongly β depends on the batch's gaps.
        momentum: the momentum of the running mean and deviation of gaps.
        keep: the share of pairs that is kept.
    """

    name: ClassVar[str] = "beta_dpo"

    alpha: float = 0.6
    momentum: float = 0.9
    keep: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta >= _LEAST_BETA, f"beta must be at least {_LEAST_BETA}", self.beta)
        require(0 <= self.alpha < math.inf, "alpha must not be negative", self.alpha)
        require(0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)
        require(0 < self.keep <= 1, "keep must be in (0, 1]", self.keep)

    @property
    def needs_batch(self) -> bool:
        return True

    def per_pair(self, logps: PairLogps) -> PairLosses:
        batch, places = logps.required_batch()
        gaps = batch.chosen_ratios - batch.rejected_ratios
        threshold, spread = self._running(gaps, logps)
        kept = self._kept(gaps, threshold, spread, logps)
        excess = (kept * gaps).sum() / kept.sum() - threshold
        beta = (self.beta * (1 + self.alpha * excess)).clamp(min=_LEAST_BETA)
        shares = kept[places] * len(gaps) / kept.sum()  # turns the mean into one over kept pairs
        margins = beta * (logps.chosen_ratios - logps.rejected_ratios)
        metrics = {"beta_dpo/beta": beta, _THRESHOLD: threshold, _SPREAD: spread}
        logged = {name: value.expand_as(margins) for name, value in metrics.items()}
        logged["beta_dpo/kept"] = kept[places]
        return PairLosses(shares * logistic(margins), *self.rewards(logps), logged)

    def _running(self, gaps: "Tensor", logps: PairLogps) -> "tuple[Tensor, Tensor]":
        """M₀ and s after the update with this batch."""
        mean, deviation = gaps.mean(), gaps.std(correction=0)
        if _THRESHOLD not in logps.last:
            return mean, deviation
        new = 1 - self.momentum
        threshold = self.momentum * logps.last[_THRESHOLD] + new * mean
        return threshold, self.momentum * logps.last[_SPREAD] + new * deviation

    def _kept(
        self, gaps: "Tensor", threshold: "Tensor", spread: "Tensor", logps: PairLogps
    ) -> "Tensor":
        """1 for each pair of the batch that is kept, and 0 for the others; float64 [batch]."""
        import torch

        if _THRESHOLD not in logps.last:
            return torch.ones_like(gaps)
        generator = torch.Generator().manual_seed(int(logps.last["step"]))
        waits = torch.empty(len(gaps), dtype=torch.float64).exponential_(generator=generator)
        distances = (gaps - threshold) / spread.clamp(min=torch.finfo(gaps.dtype).tiny)
        # A weighted draw without replacement: each pair gets an exponential arrival time whose rate
        # is its weight, and the first pairs are kept (Efraimidis and Spirakis 2006). The code uses
        # logarithms, because weights may underflow.
        arrivals = waits.to(gaps.device).log() + 0.5 * distances.square()
        kept = torch.zeros_like(gaps)
        kept[arrivals.argsort(stable=True)[: max(1, int(share_of(self.keep, len(gaps))))]] = 1
        return kept
