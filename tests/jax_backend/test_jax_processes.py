"""One run over two processes, each with processors of its own, as over two hosts of a slice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from rank_processes import run_ranks
from safetensors.torch import load_file
from tiny_models import llama, log_of, model_folder, pair_records
from waiting import leaving_at

from steps.jax_backend.backend_choice import JaxTraining
from steps.losses.dpo import Dpo
from steps.models.ranks import ALONE, Ranks, together
from steps.models.workplace import Left, Workplace
from steps.reward_models.config import RewardConfig
from steps.reward_models.reward_training import run_reward_training
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig
from steps.training.recipes import run_dpo

pytestmark = pytest.mark.slow

RECORDS = pair_records(16)
SETTINGS: dict[str, Any] = {
    "batch_size": 8,
    "tokens_per_forward": 64,
    "epochs": 2,
    "checkpoint_every_steps": 2,
    "optimizer": OptimizerConfig(learning_rate=1e-3),
}


def config(devices: int) -> DpoConfig:
    loss = Dpo(beta=0.5, nll_weight=0.1)
    return DpoConfig(loss=loss, backend=JaxTraining(devices=devices), **SETTINGS)


def train_rewards(
    policy: Path, work: Path, devices: int, ranks: Ranks, leave_after: int = 0
) -> None:
    settings = RewardConfig(backend=JaxTraining(devices=devices), **SETTINGS)
    run_reward_training(policy, RECORDS, settings, training_place(work, ranks, leave_after))


def training_place(work: Path, ranks: Ranks, leave_after: int) -> Workplace:
    """The last process is told to leave after so many steps."""
    stopping = leaving_at(leave_after if ranks.index == ranks.count - 1 else None)
    return Workplace(work / "model", work / "scratch", ranks=ranks, stopping=stopping)


def train(policy: Path, work: Path, devices: int, ranks: Ranks, leave_after: int = 0) -> None:
    """Reference and training."""
    place = Workplace(work / "reference", work / "reference-scratch", ranks=ranks)
    if not (work / "reference").exists():
        run_reference(policy, RECORDS, config(devices).reference(), place)
        ranks.wait()
    place = training_place(work, ranks, leave_after)
    run_dpo(policy, RECORDS, work / "reference", config(devices), place)


def train_as_a_rank(train: Callable[..., None], policy: Path, work: Path, leave_after: int) -> None:
    with together() as ranks:
        try:
            train(policy, work, 2, ranks, leave_after)
            assert leave_after == 0
        except Left:
            assert leave_after > 0
        assert jax.process_count() == 2


@pytest.mark.parametrize("train", [train, pytest.param(train_rewards, marks=pytest.mark.attack)])
def test_two_processes_train_what_one_does_and_go_on_where_they_left(
    tmp_path: Path, train: Callable[..., None]
) -> None:
    policy = model_folder(tmp_path / "policy", lambda: llama(tied=False))
    both, alone = tmp_path / "both", tmp_path / "alone"
    assert run_ranks(train_as_a_rank, train, policy, both, 3) == [0, 0]
    assert not (both / "model").exists()
    assert run_ranks(train_as_a_rank, train, policy, both, 0) == [0, 0]
    assert len(jax.devices()) == 8  # for later tests, too: a run that comes first makes only its 4
    train(policy, alone, 4, ALONE)
    logs = [log_of(work / "model") for work in (both, alone)]
    for ours, expected in zip(*logs, strict=True):
        assert ours == pytest.approx(expected, rel=1e-5, abs=1e-5)
    ours, expected = (load_file(work / "model/model.safetensors") for work in (both, alone))
    assert ours.keys() == expected.keys()
    before = load_file(policy / "model.safetensors")
    for name in expected:
        moved = (expected[name] - before.get(name, 0)).norm()  # a new head of scores begins with 0
        assert (ours[name] - expected[name]).norm() <= 1e-3 * moved, name
