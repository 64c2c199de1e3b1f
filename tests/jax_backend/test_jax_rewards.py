"""Reward models with `backend=jax` and `backend=functional`, beside torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

import token_groups
from safetensors.torch import load_file, save_file
from test_jax_parity import FAMILIES, assert_same_step
from tiny_models import folder_bytes, llama, log_of, model_folder, pair_records
from waiting import leaving_at

from steps.functional_backend.functional_choice import FunctionalTraining
from steps.functional_backend.functional_trainer import gradient_of
from steps.jax_backend.backend_choice import JaxTraining
from steps.jax_backend.jax_scorer import JaxScorer
from steps.jax_backend.jax_trainer import JaxTrainer
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import save_model
from steps.models.value_head import value_head
from steps.models.workplace import Left, Workplace, ignore_progress
from steps.reward_models.bradley_terry import BradleyTerry
from steps.reward_models.classifier import start_reward_model
from steps.reward_models.config import RewardConfig
from steps.reward_models.head_scores import backward_values
from steps.reward_models.reward_training import (
    REWARD_MODEL,
    reward_objective,
    run_reward_training,
)
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import as_whole
from steps.scoring.packing import make_pack
from steps.training.config import OptimizerConfig

JAX = JaxTraining(devices=1)
LOSS = BradleyTerry(center_rewards_coefficient=0.05, margin_per_score=0.5)
CONFIG = RewardConfig(
    batch_size=4,
    epochs=10,
    max_steps=9,
    tokens_per_forward=512,  # all batches have one shape, which is compiled once
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=3, weight_decay=0.1),
    loss=LOSS,
)
RECORDS = [
    {**record, "score_chosen": float(number % 5), "score_rejected": 1.0}
    for number, record in enumerate(pair_records(12))
]
FEW = [
    pytest.param(name, marks=() if name == "gemma2" else pytest.mark.attack) for name in FAMILIES
]


def objective() -> Any:
    """Of pairs of all lengths, with margins; one weighs more."""
    groups = [as_whole(pair) for pair in token_groups.pairs()]
    groups[1] = replace(groups[1], weight=2.5)
    margins = torch.linspace(-1, 1, len(groups), dtype=torch.float64)
    return reward_objective((groups, margins), LOSS)


@pytest.mark.parametrize("family", FEW)
def test_scores_losses_and_gradients_equal_torch_s_however_the_batch_is_cut(
    tmp_path: Path, family: str
) -> None:
    """With a head that has learnt something, from the folder of a reward model."""
    model_folder(tmp_path / "init", FAMILIES[family])
    learnt = start_reward_model(tmp_path / "init", Dtype.float32)
    torch.nn.init.normal_(value_head(learnt).weight)
    save_model(learnt, tmp_path / "reward")
    model = start_reward_model(tmp_path / "reward", Dtype.float64).eval()
    use_packed_attention(model)
    kind = REWARD_MODEL.kind
    for budget in (32, 256):
        scorer = JaxScorer(tmp_path / "reward", Dtype.float64, budget, devices=1, kind=kind)
        trainer = JaxTrainer(scorer, OptimizerConfig())
        assert_same_step(trainer, model, objective(), backward_values)
        trainer.close()

    loss, pack = objective().batch_loss(range(9), None), make_pack(objective().groups)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with oracle.in_float64():
        _, pure = gradient_of(model, weights, pack, lambda x, n: loss(x, torch.arange(9)[n]))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert (pure[name] - parameter.grad).norm() <= 1e-8, name


def run(
    init: Path,
    work: Path,
    stop: int | None = None,
    on_progress: Any = ignore_progress,
    **settings: Any,
) -> list[dict]:
    """A run, to its end or until it is stopped; its log."""
    place = Workplace(work / "model", work / "scratch", on_progress, leaving_at(stop))
    run_reward_training(init, RECORDS, replace(CONFIG, **settings), place)
    return log_of(work / "model")


def assert_same_run(log: list[dict], expected: list[dict]) -> None:
    assert len(log) == len(expected) == 9
    for ours, theirs in zip(log, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("lora", [pytest.param(None, marks=pytest.mark.attack), LoraConfig(r=4)])
def test_steps_are_those_of_torch_though_backends_take_turns(
    tmp_path: Path, lora: LoraConfig | None
) -> None:
    """Begun on torch, gone on with in JAX, and ended with `torch.func`."""
    init = model_folder(tmp_path / "init", lambda: llama(tied=False))
    expected = run(init, tmp_path / "torch", lora=lora)
    work, often = tmp_path / "turns", {"lora": lora, "checkpoint_every_steps": 1}
    for backend, stop in ((None, 3), (JAX, 3)):
        with pytest.raises(Left):
            run(init, work, stop, backend=backend, **often)
    log = run(init, work, backend=FunctionalTraining(), **often)
    assert_same_run(log, expected)
    assert_same_run(run(init, tmp_path / "jax", backend=JAX, lora=lora), expected)

    made = {name: folder_bytes(tmp_path / name / "model") for name in ("torch", "jax")}
    assert made["torch"].keys() == made["jax"].keys()
    assert made["torch"]["config.json"] == made["jax"]["config.json"]
    theirs, ours = (load_file(tmp_path / f"{name}/model/model.safetensors") for name in made)
    before = load_file(init / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        moved = (value - before.get(name, torch.zeros_like(value))).norm()
        assert (ours[name] - value).norm() <= 2e-2 * moved + 1e-7, name


def test_a_decoder_that_differs_is_found_although_a_new_head_scores_everything_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steps.jax_backend import jax_scorer

    right = jax_scorer.read_architecture
    monkeypatch.setattr(
        jax_scorer, "read_architecture", lambda folder: replace(right(folder), norm_epsilon=0.5)
    )
    init = model_folder(tmp_path / "init")
    with pytest.raises(ValueError, match=r"does not compute what .*LlamaForSequenceClassification"):
        run(init, tmp_path / "run", backend=JAX)


@pytest.mark.parametrize("backend", [JAX, FunctionalTraining()])
def test_a_head_with_a_bias_is_refused_by_every_backend(tmp_path: Path, backend: Any) -> None:
    init = model_folder(tmp_path / "init")
    file = init / "model.safetensors"
    save_file(load_file(file) | {"score.bias": torch.ones(1)}, file, {"format": "pt"})
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    with pytest.raises(ValueError, match=r"has score\.bias, and a reward model's head"):
        run_reward_training(init, RECORDS, replace(CONFIG, backend=backend), place)
