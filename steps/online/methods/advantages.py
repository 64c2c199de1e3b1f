"""Advantages: how much better a completion is than the others of its prompt.

Everything is float64 on the host. A group whose rewards are all equal has advantages of exactly 0,
whatever rounding does to its mean.
"""

import torch
from torch import Tensor

from steps.online.methods.policy_gradient import Advantage

_STD_EPSILON = 1e-4  # outside the root, as in TRL


def advantages(rewards: Tensor, present: Tensor, kind: Advantage) -> Tensor:
    """The advantages of n groups of at most k completions, float64 [n, k], 0 where none is present,
    and where one is alone: there is nothing to compare it with.

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
