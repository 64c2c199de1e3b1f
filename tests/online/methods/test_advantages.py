"""Advantages against the same in 50 digits, and where theory says what they are."""

from typing import Any

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from steps.online.methods.grpo import advantages, has_signal
from steps.online.methods.policy_gradient import Advantage

mp.dps = 50


def in_50_digits(rewards: list[float], kind: Advantage) -> list[Any]:
    values = [mpf(reward) for reward in rewards]
    n, mean = len(values), sum(values) / len(values)
    if kind is Advantage.leave_one_out:
        return [r - (sum(values) - r) / (n - 1) for r in values]
    if kind is Advantage.group_mean:
        return [r - mean for r in values]
    std = mpmath.sqrt(sum((r - mean) ** 2 for r in values) / (n - 1))
    return [(r - mean) / (std + mpf("1e-4")) for r in values]


def everywhere(rewards: Tensor) -> Tensor:
    return torch.ones_like(rewards, dtype=torch.bool)


@pytest.mark.parametrize("kind", Advantage)
def test_advantages_are_those_of_50_digits(kind: Advantage) -> None:
    rewards = torch.randn(4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rewards[1] = torch.tensor([1, 0, 0, 1, 1, 0, 0])
    rewards[2] += 1e6
    rewards[3] *= 1e-3
    found = advantages(rewards, everywhere(rewards), kind)
    for row, expected in zip(found.tolist(), rewards.tolist(), strict=True):
        # Of rewards near a million, what is left of them is known to 1e-10 of a reward.
        exact = [float(x) for x in in_50_digits(expected, kind)]
        assert row == pytest.approx(exact, rel=1e-9 if expected[0] > 1e5 else 1e-12)


@pytest.mark.parametrize("kind", Advantage)
def test_equal_rewards_teach_exactly_nothing(kind: Advantage) -> None:
    rewards = torch.full((1, 3), 0.1, dtype=torch.float64)  # whose sum / 3 is not 0.1
    assert (rewards.sum() / 3).item() != 0.1
    assert not has_signal(rewards, everywhere(rewards)).any()
    assert advantages(rewards, everywhere(rewards), kind).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", Advantage)
def test_a_single_completion_has_no_advantage(kind: Advantage) -> None:
    rewards = torch.tensor([[3.0]], dtype=torch.float64)
    assert advantages(rewards, everywhere(rewards), kind).tolist() == [[0]]


@pytest.mark.parametrize("kind", Advantage)
def test_a_completion_that_is_not_there_counts_for_nothing(kind: Advantage) -> None:
    rewards = torch.tensor([[1.0, 0.0, 5.0], [2.0, float("nan"), 7.0]], dtype=torch.float64)
    present = torch.tensor([[True, True, True], [True, False, True]])
    found = advantages(rewards, present, kind)
    alone = advantages(rewards[1:, [0, 2]], present[1:, [0, 2]], kind)
    assert found[1].tolist() == [alone[0, 0].item(), 0, alone[0, 1].item()]
