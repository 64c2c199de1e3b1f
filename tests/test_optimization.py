"""The learning rate of every step, and which example is seen when."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from steps.training.batches import batch_indices, steps_per_epoch, total_steps
from steps.training.config import OptimizerConfig, Schedule, TrainConfig
from steps.training.optimization import build_optimizer, clip_gradients, learning_rate


def rates(total: int, **settings) -> list[float]:
    config = OptimizerConfig(learning_rate=1.0, **settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_the_schedules_start_at_the_full_rate_and_fall_towards_zero() -> None:
    assert rates(4, schedule=Schedule.constant) == [1, 1, 1, 1]
    assert rates(4, schedule=Schedule.linear) == [1, 0.75, 0.5, 0.25]
    half = math.sqrt(0.5)
    expected = [1, (1 + half) / 2, 0.5, (1 - half) / 2]
    assert rates(4, schedule=Schedule.cosine) == pytest.approx(expected)


def test_warm_up_climbs_in_equal_steps_to_the_full_rate() -> None:
    warm = rates(7, schedule=Schedule.linear, warmup_steps=3)
    assert warm == [0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]


@given(
    total=st.integers(1, 50),
    warmup_steps=st.integers(0, 60),
    schedule=st.sampled_from(Schedule),
)
def test_no_step_is_wasted_on_a_rate_of_zero(
    total: int, warmup_steps: int, schedule: Schedule
) -> None:
    assert all(0 < r <= 1 for r in rates(total, warmup_steps=warmup_steps, schedule=schedule))


def test_only_matrices_decay() -> None:
    model = nn.Linear(3, 2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerConfig(learning_rate=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before["weight"] * 0.95)
    assert torch.equal(model.bias.detach(), before["bias"])


def test_clipping_reports_the_norm_there_was_and_leaves_the_norm_asked_for() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([parameter], None) == 5
    assert parameter.grad.tolist() == [3, 4]
    assert clip_gradients([parameter], 1.0) == 5
    assert parameter.grad.norm().item() == pytest.approx(1, rel=1e-5)


@given(
    examples=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 3),
)
def test_every_example_is_seen_exactly_once_an_epoch(
    examples: int, batch_size: int, seed: int, epoch: int
) -> None:
    steps = steps_per_epoch(examples, batch_size)
    batches = [
        batch_indices(examples, batch_size, epoch * steps + step, seed) for step in range(steps)
    ]
    assert sorted(i for batch in batches for i in batch) == list(range(examples))
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_epochs_and_seeds_shuffle_differently() -> None:
    first = batch_indices(50, 50, 0, seed=0)
    assert first == batch_indices(50, 50, 0, seed=0)
    assert first != sorted(first)
    assert first != batch_indices(50, 50, 1, seed=0)
    assert first != batch_indices(50, 50, 0, seed=1)


def test_a_run_is_as_long_as_its_epochs_and_no_longer_than_max_steps() -> None:
    assert total_steps(10, 4, epochs=1, max_steps=None) == 3
    assert total_steps(10, 4, epochs=2.5, max_steps=None) == 8
    assert total_steps(10, 4, epochs=0.1, max_steps=None) == 1
    assert total_steps(10, 4, epochs=1, max_steps=2) == 2
    assert total_steps(10, 4, epochs=1, max_steps=9) == 3


@pytest.mark.parametrize(
    "settings", [{"epochs": 0}, {"batch_size": 0}, {"max_steps": 0}, {"seed": -1}]
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        TrainConfig(**settings)
