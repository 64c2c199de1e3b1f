"""The input of one iteration's learning: prompts with completions, rewards and logps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from steps.distillation.cached_teacher import Teacher
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps
from steps.scoring.packing import lengths_of


@dataclass(frozen=True)
class Experience:
    """n prompts with at most k completions each.

    rewards: float64 [n, k]; 0 where a prompt has fewer than k completions, and where one has none.
    longest: the largest number of tokens that a completion could have.
    sampler, policy, reference: for each prompt, the logps of all scored tokens of its completions,
        concatenated, float64: under the sampler, under the trainer before its first update, and
        under a frozen reference. The last two are None unless the method needs them.
    cut: which completions have no stop token from the policy, bool [n, k]; None: all have one.
    unrewarded: which completions have no reward, bool [n, k]; None: all have one.
    teacher: a distribution at each scored token, unless the method needs none.
    """

    groups: tuple[TokenGroup, ...]
    rewards: Tensor
    longest: int
    sampler: tuple[Tensor, ...]
    policy: tuple[Tensor, ...] | None = None
    reference: tuple[Tensor, ...] | None = None
    cut: Tensor | None = None
    unrewarded: Tensor | None = None
    teacher: Teacher | None = None

    @cached_property
    def lengths(self) -> Tensor:
        """How many tokens of each completion are scored, int64 [n, k]; 0 where there is none."""
        return lengths_of(self.groups, self.rewards.shape[1])

    @property
    def present(self) -> Tensor:
        """Which of the k completions exist, bool [n, k]."""
        return self.lengths > 0

    @property
    def rewarded(self) -> Tensor:
        """Which of the k completions have a reward, bool [n, k]."""
        return self.present if self.unrewarded is None else self.present & ~self.unrewarded

    def sums(self, tokens: Sequence[Tensor]) -> Tensor:
        """The logps of whole completions, float64 [n, k]."""
        return TokenLogps(torch.cat(list(tokens)), self.lengths).sums()


def apart(policy: Sequence[Tensor], reference: Sequence[Tensor]) -> dict[str, float]:
    """Two estimates of KL(π ‖ π_ref), in nats a token, at tokens that π drew (Schulman 2020).

    kl/k1: the mean of log π − log π_ref; unbiased, and below 0 at times.
    kl/k3: the mean of π_ref/π − log(π_ref/π) − 1; unbiased, never below 0, and less noisy.
    """
    behind = torch.cat(list(reference)) - torch.cat(list(policy))
    return {
        "kl/k1": -behind.mean().item(),
        "kl/k3": (behind.expm1() - behind).mean().item(),
    }


def mismatch(policy: Sequence[Tensor], sampler: Sequence[Tensor]) -> dict[str, float]:
    """The difference between trainer and sampler, which should be the same policy.

    mismatch/k3: the mean over tokens of π/q − log(π/q) − 1, an estimate of KL(q ‖ π) in nats (q
        drew; Schulman 2020, http://joschu.net/blog/kl-approx.html).
    mismatch/largest: the largest |log π − log q| of a token.
    """
    ahead = torch.cat(list(policy)) - torch.cat(list(sampler))
    return {
        "mismatch/k3": (ahead.expm1() - ahead).mean().item(),
        "mismatch/largest": ahead.abs().max().item(),
    }
