"""The arithmetic of policy gradients: advantages, the losses of tokens, the loss of a batch.

With A the advantage of a token's completion, ρ = π/π_old of the token (or of its whole response)
and w the off-policy weight, a token's loss is

    −w · min(ρ A, clip(ρ) A)        ratio = token, sequence
    −w · sg(clip(ρ)) A log π        ratio = detached
    −w · A log π                    ratio = none
    +β · k3   or   +β · ρ · k3      k3 = π_ref/π − log(π_ref/π) − 1
    +D                              a divergence from a teacher's distribution

π_old is the trainer's own scoring at the start of the iteration: ρ is exactly 1 at the first
update, and nothing is clipped.

The losses of groups are shares of the batch's loss: their denominators are counted over the whole
batch before the step. So the loss does not depend on how the batch is cut into forwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from steps.losses.distillation.distillation_loss import DistillationLoss
from steps.online.methods.experience import Experience
from steps.online.methods.policy_gradient import (
    Advantage,
    Kl,
    OffPolicy,
    Over,
    PolicyGradient,
    Ratio,
)
from steps.scoring.logps import TokenLogps
from steps.shared.checks import require
from steps.training.objectives import Objective
from steps.training.trainer import GroupLosses

_STD_EPSILON = 1e-4  # outside the root, as in TRL

_FAR = 30.0
"""Nats behind the reference from which ρ and k3 are multiplied by adding their logarithms."""


def advantages(rewards: Tensor, present: Tensor, kind: Advantage) -> Tensor:
    """How much better each of k completions is than the others of its prompt, float64 [n, k]; 0
    where none is present, where one is alone, and where all rewards of a prompt are equal, whatever
    rounding does to their mean.

    Args:
        rewards: float64 [n, k]; what stands where no completion is present is not read.
        present: bool [n, k]; which completions there are.
    """
    count = present.sum(dim=1, keepdim=True).double()  # integers would divide in float32
    rewards = rewards.where(present, 0.0)
    centred = (rewards - rewards.sum(dim=1, keepdim=True) / count.clamp(min=1)).where(present, 0.0)
    match kind:
        case Advantage.group_mean:
            found = centred
        case Advantage.group_std:
            variance = centred.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
            found = centred / (variance.sqrt() + _STD_EPSILON)
        case Advantage.leave_one_out:
            found = centred * (count / (count - 1).clamp(min=1))
    return found.where(has_signal(rewards, present)[:, None], 0.0)


def has_signal(rewards: Tensor, present: Tensor) -> Tensor:
    """Which groups have completions with different rewards, bool [n]: the others teach nothing."""
    highest = rewards.where(present, -torch.inf).amax(dim=1)
    lowest = rewards.where(present, torch.inf).amin(dim=1)
    return highest > lowest


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


def policy_objective(
    method: PolicyGradient,
    experience: Experience,
    reward_weight: float = 1.0,
    divergence: DistillationLoss | None = None,
) -> Objective | None:
    """The policy-gradient loss of any of an iteration's prompts as one batch.

    Args:
        reward_weight: multiplies the advantages by rewards.
        divergence: from the distribution of a teacher; without one, its logps are advantages.
    """
    old, lengths, teacher = experience.policy, experience.lengths, experience.teacher
    trained = _trained(method, experience)
    found = advantages(_rewards(method, experience), experience.rewarded, method.advantage)
    found = found.where(trained > 0, 0.0) * reward_weight
    teaches_anyway = teacher is not None or not method.skip_without_signal
    has_signal = found.any(dim=1) | teaches_anyway
    kept = (has_signal & trained.any(dim=1)).nonzero()[:, 0].tolist()
    if not kept:
        return None
    weights = _off_policy_weights(method, experience)

    def batch_loss(indices: Sequence[int], _: TokenLogps | None) -> PolicyBatch:
        chosen = [kept[index] for index in indices]
        groups = [experience.groups[index] for index in chosen]
        return PolicyBatch(
            method,
            lengths[chosen],
            found[chosen],
            scales(trained[chosen], method.over, experience.longest),
            _tokens(old, chosen),
            _tokens(experience.reference, chosen),
            _tokens(weights, chosen),
            teacher and teacher.logps_of(groups),
            teacher and divergence and teacher.at(groups, divergence.temperature),
            divergence,
        )

    return Objective([experience.groups[index] for index in kept], batch_loss)


def _trained(method: PolicyGradient, experience: Experience) -> Tensor:
    """How many tokens of each completion count in the loss, int64 [n, k]."""
    if not method.mask_cut or experience.cut is None:
        return experience.lengths
    return experience.lengths.where(~experience.cut, 0)


def _rewards(method: PolicyGradient, experience: Experience) -> Tensor:
    if method.kl is not Kl.k1_in_reward:
        return experience.rewards
    assert experience.policy is not None
    assert experience.reference is not None
    policy, reference = map(experience.sums, (experience.policy, experience.reference))
    return experience.rewards - method.kl_weight * (policy - reference)


def _off_policy_weights(method: PolicyGradient, experience: Experience) -> Sequence[Tensor] | None:
    """π_old / π_sampler of each prompt's tokens, bounded."""
    if method.off_policy is OffPolicy.none:
        return None
    assert experience.policy is not None
    pairs = zip(experience.policy, experience.sampler, strict=True)
    weights = [(own - drawn).exp() for own, drawn in pairs]
    limit = method.off_policy_limit
    if method.off_policy is OffPolicy.truncate:
        return [weight.clamp(max=limit) for weight in weights]
    return [w.where((w >= 1 / limit) & (w <= limit), 0.0) for w in weights]


def _tokens(values: Sequence[Tensor] | None, chosen: Sequence[int]) -> Tensor | None:
    """The values of the chosen prompts, concatenated, float64 [S]."""
    return None if values is None else torch.cat([values[index] for index in chosen])


@dataclass(frozen=True)
class PolicyBatch:
    """The loss of n groups of at most k completions, whose S tokens lie group after group.

    lengths: scored tokens of each completion, int64 [n, k]; 0 where there is none.
    advantages, scale: of each completion, float64 [n, k]; `scale` is what its tokens' losses are
        multiplied by, so that they add up to the batch's; 0 if they do not count.
    old, reference, weight: of each token, float64 [S]; see `Compared`. Without `old`,
        the policy in training is the old one: this is the only update.
    teacher: its logp of each token, float64 [S].
    buckets: its logp of each bucket of a `divergence`, float64 [S, m].
    """

    method: PolicyGradient
    lengths: Tensor
    advantages: Tensor
    scale: Tensor
    old: Tensor | None
    reference: Tensor | None
    weight: Tensor | None
    teacher: Tensor | None = None
    buckets: Tensor | None = None
    divergence: DistillationLoss | None = None

    def __call__(self, logps: TokenLogps, members: Tensor) -> GroupLosses:
        count, lengths = len(logps.tokens), logps.lengths.flatten()

        def of_completions(values: Tensor) -> Tensor:
            of_pack = values[members, : logps.lengths.shape[1]]  # groups here may all be smaller
            return of_pack.flatten().repeat_interleave(lengths, output_size=count)

        scale = of_completions(self.scale)
        left_out = scale == 0  # not even infinity counts, of which 0 times is no number

        def of_tokens(values: Tensor) -> Tensor:
            found = TokenLogps(values, self.lengths).of(members, count).tokens
            return found.masked_fill(left_out, 0.0)

        logps = replace(logps, tokens=logps.tokens.masked_fill(left_out, 0.0))
        old = logps.tokens.detach() if self.old is None else of_tokens(self.old)
        gains, told = of_completions(self.advantages), dict[str, Tensor]()
        if self.teacher is not None:
            told["teacher/reverse_kl"] = old - of_tokens(self.teacher)
            gains = gains - told["teacher/reverse_kl"] if self.divergence is None else gains
        compared = Compared(
            old,
            gains,
            None if self.reference is None else of_tokens(self.reference),
            None if self.weight is None else of_tokens(self.weight),
        )
        losses, watched = policy_losses(self.method, logps, compared)
        if self.divergence is not None:
            assert self.buckets is not None
            assert logps.others is not None
            theirs = TokenLogps(self.buckets, self.lengths).of(members, count).tokens
            apart = self.divergence.divergences(logps.others[:, 1:], theirs)
            losses = losses + apart.masked_fill(left_out, 0.0)
            told |= {"loss/divergence": apart.detach(), "teacher/agreement": logps.others[:, 0]}
        watched |= told
        counted = self.lengths.where(self.scale > 0, 0).sum()
        metrics = {
            name: _by_group(logps, values.masked_fill(left_out, 0.0) / counted)
            for name, values in watched.items()
        }
        return _by_group(logps, losses * scale), metrics

    def to(self, device: torch.device) -> Self:
        """The same loss with its tensors on `device`."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
        return replace(self, **{n: t.to(device, non_blocking=True) for n, t in tensors.items()})


def scales(lengths: Tensor, over: Over, longest: int) -> Tensor:
    """What the losses of a completion's tokens are multiplied by, float64 [n, k].

    Args:
        lengths: the tokens of each completion of the batch that count, int64 [n, k]; a completion
            of 0 tokens has the factor 0.
        longest: the most tokens that a completion may have.

    Raises ValueError if one has more: then `over` would divide by what it does not say.
    """
    count = int((lengths > 0).sum())
    match over:
        case Over.response:
            found = 1 / (count * lengths.clamp(min=1).double())
        case Over.token:
            found = torch.full(lengths.shape, 1 / int(lengths.sum()), dtype=torch.float64)
        case Over.constant:
            most = int(lengths.max())
            rule = "max_new_tokens, by which over=constant divides, must be that of the sampling"
            require(most <= longest, f"{rule}, and a completion has {most} tokens", longest)
            found = torch.full(lengths.shape, 1 / (count * longest), dtype=torch.float64)
    return found.where(lengths > 0, 0.0)


def _by_group(logps: TokenLogps, values: Tensor) -> Tensor:
    """The sums of tokens' values over each group, [n]."""
    return replace(logps, tokens=values).sums().sum(dim=1)
