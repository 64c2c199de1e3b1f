"""The policy-gradient loss of tokens, in all its variants, without any reduction.

With A the advantage of a token's completion, ρ = π/π_old of the token (or of its whole response)
and w the off-policy weight, a token's loss is

    −w · min(ρ A, clip(ρ) A)        ratio = token, sequence
    −w · sg(clip(ρ)) A log π        ratio = detached
    −w · A log π                    ratio = none
    +β · k3   or   +β · ρ · k3      k3 = π_ref/π − log(π_ref/π) − 1

π_old is the trainer's own scoring at the start of the iteration: ρ is exactly 1 at the first
update, and nothing is clipped.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from steps.online.methods.policy_gradient import Kl, PolicyGradient, Ratio
from steps.scoring.logps import TokenLogps

_FAR = 30.0
"""Nats behind the reference from which ρ and k3 are multiplied by adding their logarithms."""


@dataclass(frozen=True)
class Compared:
    """The values with which S tokens are compared, float64 [S] each; `reference` and `weight` are
    optional."""

    old: Tensor
    advantages: Tensor
    reference: Tensor | None = None
    weight: Tensor | None = None


def policy_losses(
    method: PolicyGradient, logps: TokenLogps, to: Compared
) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses of tokens, with gradients, and their metrics, detached; [S] each.

    A token of weight 0 is clipped or not as if it had another weight, as in TRL. It counts in the
    divergence from the reference, too, where that is finite.
    """
    log_ratio = logps.tokens - to.old
    masked = None if to.weight is None else to.weight == 0
    if masked is not None:  # -inf - -inf, where the policy had excluded what was drawn
        log_ratio = log_ratio.masked_fill(masked & ~log_ratio.isfinite(), 0.0)
    compared = _means(log_ratio, logps) if method.ratio is Ratio.sequence else log_ratio
    ratio, low, high = compared.detach().exp(), method.clip_low, method.clip_high
    clipped = ratio.clamp(
        -torch.inf if low is None else 1 - low, None if high is None else 1 + high
    )
    binds = ((ratio > clipped) & (to.advantages > 0)) | ((ratio < clipped) & (to.advantages < 0))
    gain = to.advantages if masked is None else to.advantages.masked_fill(masked, 0.0)
    learnt = logps.tokens.masked_fill(gain == 0, 0.0)
    if method.ratio is Ratio.none:
        gains = gain * learnt
    elif method.ratio is Ratio.detached:
        gains = (clipped * gain).masked_fill(gain == 0, 0.0) * learnt
        binds = ratio != clipped
    else:  # masked before exp: where it overflows, a gradient of 0 would become NaN
        moving = compared.masked_fill(binds | (gain == 0), 0.0).exp()
        gains = clipped.where(binds, moving) * gain
    losses = -gains if to.weight is None else -gains * to.weight
    watched = {
        "ratio/deviation": (ratio - 1).abs(),
        "clip_ratio/low_mean": (binds & (ratio < clipped)).double(),
        "clip_ratio/high_mean": (binds & (ratio > clipped)).double(),
    }
    if to.reference is not None:
        behind = to.reference - logps.tokens
        if masked is not None:
            behind = behind.masked_fill(masked & ~behind.isfinite(), 0.0)
        k3 = behind.expm1() - behind
        watched |= {"kl/k1": -behind, "kl/k3": k3}
        if method.kl is Kl.k3:
            losses = losses + method.kl_weight * k3
        elif method.kl is Kl.k3_weighted:
            losses = losses + method.kl_weight * _weighted(log_ratio, behind)
    return losses, {name: values.detach() for name, values in watched.items()}


def _weighted(log_ratio: Tensor, behind: Tensor) -> Tensor:
    """ρ k3, even where ρ is too small and k3 too large for a number."""
    far, ratio = behind > _FAR, log_ratio.exp()
    near = behind.masked_fill(far, 0.0)
    away = (log_ratio + behind).where(far, 0.0).exp() - ratio * (1 + behind)
    return away.where(far, ratio * (near.expm1() - near))


def _means(log_ratio: Tensor, logps: TokenLogps) -> Tensor:
    """Each token's mean over its response: the logarithm of a geometric mean."""
    means = replace(logps, tokens=log_ratio).sums() / logps.lengths.clamp(min=1)
    counts = logps.lengths.flatten()
    return means.flatten().repeat_interleave(counts, output_size=len(log_ratio))
