"""Adapters and dropout with `backend=jax`, beside torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

jax = pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from safetensors.torch import load_file
from test_jax_parity import assert_same_step, reference
from tiny_models import (
    VOCABULARY,
    demonstration_records,
    folder_bytes,
    llama,
    log_of,
    model_folder,
    pair_records,
)
from token_groups import pairs
from waiting import leaving_at

from steps.jax_backend.backend_choice import JaxTraining
from steps.jax_backend.jax_scorer import JaxScorer
from steps.jax_backend.jax_trainer import JaxPolicy, JaxTrainer
from steps.losses.dpo import Dpo
from steps.models.adapters import add_adapter
from steps.models.config import Dtype, LoraConfig
from steps.models.folders import load_model
from steps.models.ranks import ALONE
from steps.models.workplace import Left, Workplace
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import read_demonstrations, read_pairs
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.objectives import preference_objective, sft_objective
from steps.training.policy import LANGUAGE_MODEL
from steps.training.recipes import run_sft

LORA = LoraConfig(r=4, alpha=8.0)
FAST, SLOW = OptimizerConfig(learning_rate=3e-2), OptimizerConfig(learning_rate=1e-3)
JAX = JaxTraining(devices=1)


def adapted_model(folder: Path, lora: LoraConfig) -> tuple[Any, dict[str, torch.Tensor]]:
    """By torch, in float64, with adapters that have moved; and their parameters."""
    model = load_model(folder, Dtype.float64).eval()
    add_adapter(model, lora, seed=0)
    use_packed_attention(model)
    parameters: dict[str, torch.Tensor] = {
        name: p for name, p in model.named_parameters() if p.requires_grad
    }
    for parameter in parameters.values():
        parameter.data.normal_(std=0.3)
    return model, parameters


def trainer_of(folder: Path, lora: LoraConfig, parameters: Any, dtype: Dtype) -> JaxTrainer:
    scorer = JaxScorer(folder, dtype, 256, devices=1)
    scorer.adapt(lora)
    detached = {name: p.detach().to(scorer.dtype) for name, p in parameters.items()}
    return JaxTrainer(scorer, OptimizerConfig(), adapters=detached)


def test_adapters_have_torch_s_logps_and_gradients(tmp_path: Path) -> None:
    folder, groups = model_folder(tmp_path, lambda: llama(tied=False)), pairs()
    lora = replace(LORA, rslora=True)
    model, parameters = adapted_model(folder, lora)
    assert len(parameters) == 2 * 7 * 2
    trainer = trainer_of(folder, lora, parameters, Dtype.float64)
    objective = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference(groups))
    assert_same_step(trainer, model, objective)
    trainer.close()


def test_a_run_with_adapters_goes_as_with_torch_and_leaves_the_same_files(tmp_path: Path) -> None:
    policy, records = model_folder(tmp_path / "policy", llama), demonstration_records(6)
    logs = []
    for backend in (None, JAX):
        config = TrainConfig(batch_size=3, epochs=3, optimizer=SLOW, lora=LORA, backend=backend)
        work = tmp_path / str(backend and backend.name)
        run_sft(policy, records, config, Workplace(work / "model", work / "scratch"))
        logs.append(log_of(work / "model"))
    for theirs, ours in zip(*logs, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
    made = [folder_bytes(tmp_path / name / "model") for name in ("None", "jax")]
    assert made[0].keys() == made[1].keys()
    for file in ("model.safetensors", "adapter/adapter_model.safetensors"):
        theirs, ours = (load_file(tmp_path / name / "model" / file) for name in ("None", "jax"))
        for name in theirs:
            assert (ours[name] - theirs[name]).norm() <= 2e-2 * theirs[name].norm(), name


@pytest.mark.attack
def test_a_run_with_dropout_that_was_stopped_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """What is dropped follows from the seed and the step."""
    policy = model_folder(tmp_path / "policy", lambda: llama(dropout=0.2))
    records = demonstration_records(6)
    lora = LoraConfig(r=4, dropout=0.3)
    config = TrainConfig(
        batch_size=3, epochs=2, optimizer=FAST, lora=lora, backend=JAX, checkpoint_every_steps=1
    )
    place = Workplace(tmp_path / "model", tmp_path / "scratch")
    with pytest.raises(Left):
        run_sft(policy, records, config, replace(place, stopping=leaving_at(2)))
    run_sft(policy, records, config, place)
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "t"))
    assert folder_bytes(tmp_path / "model") == folder_bytes(tmp_path / "whole")


def test_dropout_acts_in_training_alone_and_is_another_at_every_step(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, lambda: llama(dropout=0.3))
    groups = read_pairs(pair_records(6), VOCABULARY)
    loss = preference_objective(groups, Dpo(), torch.zeros(6, 2)).batch_loss(range(6), None)
    trainer = JaxTrainer(JaxScorer(folder, Dtype.float32, 256, devices=1), FAST, dropout=True)
    plain = JaxTrainer(JaxScorer(folder, Dtype.float32, 256, devices=1), FAST)

    def logps(trainer: JaxTrainer, noise: int) -> torch.Tensor:
        return trainer.forward_backward(trainer.prepare(groups, noise), loss).result().logps

    without = logps(plain, 1)
    scored = trainer.logps(trainer.prepare(groups, 1)).result().sequences.view(-1, 2)
    torch.testing.assert_close(scored, without)
    assert torch.equal(logps(trainer, 1), logps(trainer, 1))
    assert not torch.isclose(logps(trainer, 1), without).any()
    assert not torch.isclose(logps(trainer, 1), logps(trainer, 2)).any()
    trainer.close()
    plain.close()


@pytest.mark.slow
def test_what_is_dropped_depends_on_no_number_of_devices(tmp_path: Path) -> None:
    """Which change the packs that lie beside a pack, and so its shape."""
    folder = model_folder(tmp_path, lambda: llama(dropout=0.3, tied=False))
    long = demonstration_records(1)[0] | {"prompt_ids": [5] * 90}
    groups = read_demonstrations([*demonstration_records(5), long], VOCABULARY)
    loss = sft_objective(groups).batch_loss(range(6), None)
    found = []
    for devices in (1, 4):
        policy = JaxPolicy(
            folder,
            TrainConfig(tokens_per_forward=64, lora=LoraConfig(r=4, dropout=0.3)),
            ALONE,
            dropout=True,
            role=LANGUAGE_MODEL,
            how=JaxTraining(devices=devices, check=False),
        )
        trainer = policy.trainer
        result = trainer.forward_backward(trainer.prepare(groups, noise=1), loss).result()
        found.append((result.logps, trainer.optim_step(1e-3).result()))
        trainer.close()
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-5)


def test_adapters_that_the_decoder_lacks_are_refused(tmp_path: Path) -> None:
    policy, records = (
        model_folder(tmp_path / "p", lambda: llama(tied=False)),
        demonstration_records(3),
    )
    place = Workplace(tmp_path / "out", tmp_path / "scratch")
    for target, fault in (
        ("lm_head", "cannot adapt lm_head"),
        ("layers.1.mlp.up_proj", "in all 2"),
    ):
        lora = LoraConfig(target_modules=[target])
        with pytest.raises(ValueError, match=fault):
            run_sft(policy, records, TrainConfig(lora=lora, backend=JAX), place)
