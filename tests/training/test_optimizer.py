"""The learning rate of every step, and which example is seen when."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.architectures import tiny
from steps.training.config import OptimizerConfig, Schedule, TrainConfig
from steps.training.optimizer import Updater, clip_gradients, freeze
from steps.training.schedule import (
    batch_indices,
    epochs_of,
    learning_rate,
    steps_per_epoch,
    total_steps,
)


def rates(total: int, **settings) -> list[float]:
    config = OptimizerConfig(learning_rate=1.0, **settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_the_schedules_start_at_the_full_rate_and_fall_towards_zero() -> None:
    assert rates(4, schedule=Schedule.constant) == [1, 1, 1, 1]
    constant = OptimizerConfig(learning_rate=1.0, schedule=Schedule.constant, warmup_steps=4)
    assert [learning_rate(constant, step, 4) for step in (3, 4, 5)] == [
        0.8,
        1,
        1,
    ]  # a short horizon
    assert rates(4, schedule=Schedule.linear) == [1, 0.75, 0.5, 0.25]
    half = math.sqrt(0.5)
    expected = [1, (1 + half) / 2, 0.5, (1 - half) / 2]
    assert rates(4, schedule=Schedule.cosine) == pytest.approx(expected)


def test_wsd_is_stable_and_then_falls_over_the_last_share_of_the_steps() -> None:
    assert rates(8, schedule=Schedule.wsd, decay_fraction=0.5) == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert rates(8, schedule=Schedule.wsd, decay_fraction=0.1) == [1] * 8  # its one step is full
    assert rates(100, schedule=Schedule.wsd, decay_fraction=0.07).count(1) == 94
    warm = rates(6, schedule=Schedule.wsd, warmup_steps=1, decay_fraction=1 / 3)
    assert warm == [0.5, 1, 1, 1, 1, 0.5]
    assert rates(4, schedule=Schedule.wsd, decay_fraction=1) == rates(4, schedule=Schedule.linear)


def test_warm_up_climbs_in_equal_steps_to_the_full_rate() -> None:
    warm = rates(7, schedule=Schedule.linear, warmup_steps=3)
    assert warm == [0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25]


def test_warm_up_may_be_a_share_of_the_steps() -> None:
    share, steps = {"warmup_fraction": 0.3, "warmup_steps": 9}, {"warmup_steps": 3}
    assert rates(10, **share) == rates(10, **steps)
    assert rates(9, **share) == rates(9, **steps)  # rounded up


def test_the_schedules_may_fall_to_a_share_of_the_full_rate() -> None:
    for schedule in (Schedule.linear, Schedule.cosine, Schedule.wsd):
        to_zero = rates(8, schedule=schedule, warmup_steps=1, decay_fraction=0.5)
        kept = rates(8, schedule=schedule, warmup_steps=1, decay_fraction=0.5, final_fraction=0.1)
        assert kept == pytest.approx([to_zero[0], *(0.1 + 0.9 * rate for rate in to_zero[1:])])
    with pytest.raises(ValueError, match="needs a schedule that falls, and schedule is constant"):
        OptimizerConfig(schedule=Schedule.constant, final_fraction=0.1)


@given(
    total=st.integers(1, 50),
    warmup_steps=st.integers(0, 60),
    schedule=st.sampled_from(Schedule),
)
def test_no_step_is_wasted_on_a_rate_of_zero(
    total: int, warmup_steps: int, schedule: Schedule
) -> None:
    assert all(0 < r <= 1 for r in rates(total, warmup_steps=warmup_steps, schedule=schedule))


def decayed(model: nn.Module) -> set[str]:
    """The parameters that weight decay changes."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    config = OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    (optimizer,) = config.build(dict(model.named_parameters()))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    for name in changed:
        torch.testing.assert_close(model.get_parameter(name).detach(), before[name] * 0.95)
    return changed


def test_only_matrices_decay() -> None:
    assert decayed(nn.Linear(3, 2)) == {"weight"}


@pytest.mark.parametrize(
    ("model_type", "settings", "spared"),
    [
        ("gpt_oss", {}, {"gate_up_proj_bias", "down_proj_bias"}),
        ("cohere", {"use_qk_norm": True}, {"q_norm.weight", "k_norm.weight"}),
    ],
)
def test_a_bias_of_each_expert_and_a_norm_of_each_head_do_not_decay(
    model_type: str, settings: dict[str, Any], spared: set[str]
) -> None:
    model = tiny(model_type, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1  # biases are made as zeros, which decay to themselves
    matrices = {name for name, p in model.named_parameters() if p.ndim >= 2}
    without = matrices - decayed(model)
    assert {name for name in without if not name.endswith(tuple(spared))} == set()
    assert all(any(name.endswith(end) for name in without) for end in spared)


def bfloat16_layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(3, 2, bias=False).to(torch.bfloat16)


def test_masters_keep_updates_that_bfloat16_would_lose() -> None:
    moved = {}
    for masters in (True, False):
        layer = bfloat16_layer()
        before = layer.weight.detach().clone()
        config = OptimizerConfig(learning_rate=1e-4, max_grad_norm=None)
        updater = Updater(layer, config, master_weights=masters)
        for _ in range(100):
            layer(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
            updater.step(1e-4)
        moved[masters] = (layer.weight - before).float().mean().item()
        assert layer.weight.dtype == torch.bfloat16
    assert moved[True] == pytest.approx(-100 * 1e-4, rel=0.1)
    assert abs(moved[False]) < 0.2 * abs(moved[True])


def test_gradients_of_many_forwards_gather_in_float32() -> None:
    layer = bfloat16_layer()
    updater = Updater(layer, OptimizerConfig(max_grad_norm=None))
    for scale in (256.0, *[1.0] * 64):  # in bfloat16, 256 + 1 is 256
        layer(torch.full((1, 3), scale, dtype=torch.bfloat16)).sum().backward()
    assert updater.step(1e-4) == pytest.approx((256 + 64) * math.sqrt(6), rel=1e-6)


def test_a_state_goes_back_with_masters_and_moments() -> None:
    def trained(steps: int, updater: Updater, layer: nn.Linear) -> Tensor:
        for _ in range(steps):
            layer(torch.ones(1, 3, dtype=torch.bfloat16)).square().sum().backward()
            updater.step(1e-3)
        return next(iter(updater.state().values())).clone()

    layer = bfloat16_layer()
    updater = Updater(layer, OptimizerConfig())
    trained(3, updater, layer)
    saved = {name: value.clone() for name, value in updater.state().items()}
    assert saved["model/weight"].dtype == torch.float32
    expected = trained(2, updater, layer)
    other = bfloat16_layer()
    resumed = Updater(other, OptimizerConfig())
    resumed.load_state(saved)
    assert torch.equal(trained(2, resumed, other), expected)
    assert torch.equal(other.weight, layer.weight)


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


def test_a_run_is_as_long_as_its_epochs_and_no_longer_than_max_steps() -> None:
    assert total_steps(10, 4, epochs=1, max_steps=None) == 3
    assert total_steps(10, 4, epochs=2.5, max_steps=None) == 8
    assert total_steps(10, 4, epochs=0.1, max_steps=None) == 1
    assert total_steps(100, 1, epochs=0.07, max_steps=None) == 7  # 0.07 * 100 is above 7
    assert total_steps(6, 1, epochs=5 / 6, max_steps=None) == 5
    assert total_steps(10, 4, epochs=1, max_steps=2) == 2
    assert total_steps(10, 4, epochs=1, max_steps=9) == 3


@pytest.mark.parametrize(
    ("later", "sizes", "half", "whole"),
    [
        ({}, [4, 4, 2, 4, 4, 2, 4], 2, 3),
        ({2: 1}, [4, 4, 1, 1, 1, 1, 1], 2, 4),
        ({1: 2, 4: 7}, [4, 2, 2, 2, 7, 3, 7], 2, 4),
        ({4: 7}, [4, 4, 2, 4, 6, 7, 3], 2, 3),
    ],
)
def test_sizes_that_change_still_take_every_example_once_an_epoch(
    later: dict[int, int], sizes: list[int], half: int, whole: int
) -> None:
    batches = [batch_indices(10, 4, step, 3, later) for step in range(len(sizes))]
    assert list(map(len, batches)) == sizes
    epochs = [math.floor(epochs_of(10, 4, step, later) + 1e-9) for step in range(len(sizes))]
    for epoch in range(epochs[-1]):
        taken = [i for b, e in zip(batches, epochs, strict=True) if e == epoch for i in b]
        assert sorted(taken) == list(range(10))
    assert total_steps(10, 4, 0.5, None, later) == half
    assert total_steps(10, 4, 1, None, later) == whole


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"max_steps": 0},
        {"max_steps": 1.5},
        {"seed": -1},
        {"tokens_per_forward": 0},
        {"keep_last": 0},
        {"checkpoint_every_seconds": 0.0},
        {"dtype": "float16"},
        {"attention": "flash"},
        {"keep_best": "loss", "eval_every_steps": 1},
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must"):
        TrainConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "adafactor"}, {"algorithm": "sgd"}, {"eight_bit": True},
     {"algorithm": "lion", "eight_bit": True}, {"algorithm": "muon"}, {"own": torch.optim.NAdam}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_optimizer_resumes_with_the_same_bits(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    def begun() -> tuple[nn.Module, Updater]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64, bias=False)).to(dtype)
        own = settings.get("own")
        return model, Updater(model, own or OptimizerConfig(1e-3, weight_decay=0.1, **settings))

    def train(model: nn.Module, updater: Updater) -> dict[str, Tensor]:
        for number in range(3):
            x = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
            (model(x.to(dtype)) - 1).square().mean().backward()
            updater.step(1e-3)
        return {name: value.clone() for name, value in updater.state().items()}

    model, updater = begun()
    saved = train(model, updater)
    expected = train(model, updater)
    assert not torch.equal(saved["model/0.weight"], expected["model/0.weight"])
    model, resumed = begun()
    resumed.load_state(saved)
    actual = train(model, resumed)
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_muon_moves_as_torch_s_which_rounds_to_bfloat16() -> None:
    for shape in ((64, 64), (32, 96), (96, 32)):
        torch.manual_seed(0)
        weight = torch.randn(shape)
        ours = {"0.weight": nn.Parameter(weight.clone())}
        theirs = nn.Parameter(weight.clone())
        muon = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
        (mine,) = OptimizerConfig(0.1, algorithm="muon", weight_decay=0.1).build(ours)  # pyright: ignore[reportArgumentType]
        for _ in range(3):
            theirs.grad = torch.randn(shape)
            ours["0.weight"].grad = theirs.grad.clone()
            before = theirs.detach().clone()
            muon.step()
            mine.step()
            moved = theirs.detach() - before
            assert (ours["0.weight"].detach() - before - moved).norm() < 0.05 * moved.norm()


def test_parts_have_rates_of_their_own_or_are_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    config = OptimizerConfig(max_grad_norm=None, rates={r"1\.": 0.5, r"0\.bias": 0})
    freeze(model, config)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    updater = Updater(model, config)
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        parameter.grad = torch.ones_like(parameter)
    updater.step(0.1)
    moved = {n: (before[n] - p.detach()).mean().item() for n, p in model.named_parameters()}
    expected = {"0.weight": 0.1, "0.bias": 0.0, "1.weight": 0.05, "1.bias": 0.05}
    assert moved == pytest.approx(expected, rel=1e-5)
    for rates, said in (({"lm_head": 1.0}, "in no trained parameter"), ({".": 0.0}, "freezes all")):
        with pytest.raises(ValueError, match=said):
            freeze(nn.Linear(2, 2), OptimizerConfig(rates=rates))
