"""`backend=torchax` beside torch, and what it refuses.

Most of it needs an environment of its own (see docs/tpu.md), and is skipped elsewhere.
"""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch

pytest.importorskip("jax", reason="the extra temper-ml[jax] is not installed")

from test_jax_parity import FAMILIES, assert_same_step, objectives, oracle_model, reference
from test_jax_training import (
    CONFIG,
    OF_KILLED,
    goes_on_with_the_other,
    killed_runs_end_alike,
    train,
    twenty_steps_are_torch_s,
)
from tiny_models import demonstration_records, granite, llama, model_folder
from token_groups import pairs

from steps.jax_backend.backend_choice import training_choices
from steps.jax_backend.jax_trainer import JaxTrainer
from steps.jax_backend.torchax_engine.torchax_choice import TorchaxTraining
from steps.losses.dpo import Dpo
from steps.models.config import Dtype, LoraConfig
from steps.models.ranks import ALONE, Ranks
from steps.models.workplace import Workplace
from steps.training.config import OptimizerConfig, TrainConfig
from steps.training.objectives import preference_objective
from steps.training.policy import LANGUAGE_MODEL
from steps.training.recipes import run_sft

_IS_HERE = find_spec("torchax") is not None and torch.__version__.startswith("2.11.")
needs_torchax = pytest.mark.skipif(not _IS_HERE, reason="torchax with torch 2.11 is not installed")
TORCHAX = TorchaxTraining()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy", lambda: llama(tied=False))


@pytest.mark.skipif(_IS_HERE, reason="torchax with torch 2.11 is installed")
def test_without_torchax_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    assert training_choices("dpo")["dpo.backend"]["torchax"] is TorchaxTraining
    assert "torchax" in TorchaxTraining.needs_packages  # the plan of a run asks for these
    with pytest.raises(ValueError, match=r"needs torch 2\.11, .* install 'temper-ml\[torchax\]'"):
        TORCHAX.open_policy(tmp_path, TrainConfig(), ALONE, False, LANGUAGE_MODEL)


def trainer_of(folder: Path, monkeypatch: pytest.MonkeyPatch, budget: int = 256) -> JaxTrainer:
    """In float64 throughout, as torch is within `oracle.in_float64`."""
    from steps.jax_backend.torchax_engine import torchax_model
    from steps.jax_backend.torchax_engine.torchax_policy import TorchaxScorer

    call_torch = torchax_model.call_torch

    def call(function: Any, *arguments: Any) -> Any:
        def in_float64(*arguments: Any) -> Any:
            with oracle.in_float64():
                return function(*arguments)

        return call_torch(in_float64, *arguments)

    monkeypatch.setattr(torchax_model, "call_torch", call)
    return JaxTrainer(TorchaxScorer(folder, Dtype.float64, budget), OptimizerConfig())


@needs_torchax
@pytest.mark.parametrize("family", FAMILIES)
def test_logps_losses_and_gradients_equal_torch_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    folder, groups = model_folder(tmp_path, FAMILIES[family]), pairs()
    trainer = trainer_of(folder, monkeypatch)
    objective = preference_objective(groups, Dpo(beta=0.5, nll_weight=0.3), reference(groups))
    assert_same_step(trainer, oracle_model(folder), objective)
    trainer.close()


@needs_torchax
@pytest.mark.parametrize("budget", [32, 256])
def test_every_kind_of_loss_has_torch_s_gradient_however_the_batch_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    folder = model_folder(tmp_path, FAMILIES["qwen2"])
    trainer, model = trainer_of(folder, monkeypatch, budget), oracle_model(folder)
    for objective in objectives().values():
        assert_same_step(trainer, model, objective)
    trainer.close()


@needs_torchax
def test_twenty_steps_go_as_they_go_with_torch(policy: Path, tmp_path: Path) -> None:
    summary = twenty_steps_are_torch_s(policy, tmp_path, TORCHAX)
    assert "backend=torchax is experimental" in str(summary)


@needs_torchax
def test_a_run_begun_with_one_backend_goes_on_with_the_other(policy: Path, tmp_path: Path) -> None:
    goes_on_with_the_other(policy, tmp_path, TORCHAX)


@needs_torchax
def test_a_run_that_was_killed_ends_with_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, backend=TORCHAX, **OF_KILLED)
    killed_runs_end_alike(tmp_path, partial(train, policy, config))


@needs_torchax
@pytest.mark.parametrize(
    ("config", "ranks", "sentence"),
    [
        (TrainConfig(lora=LoraConfig()), ALONE, "has no adapters; set lora=null"),
        (TrainConfig(dtype=Dtype.bfloat16), ALONE, "has no bfloat16; set dtype=float32"),
        (TrainConfig(), Ranks(0, 2), "trains on one device, and the step has 2"),
    ],
)
def test_what_the_backend_lacks_is_refused(
    policy: Path, config: TrainConfig, ranks: Ranks, sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"backend=torchax {sentence}"):
        TORCHAX.open_policy(policy, config, ranks, True, LANGUAGE_MODEL)


@needs_torchax
def test_a_family_and_dropout_are_refused_by_name(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "granite", granite)
    with pytest.raises(ValueError, match=r"backend=torchax reads what .* family 'granite', only"):
        TORCHAX.open_policy(folder, TrainConfig(), ALONE, True, LANGUAGE_MODEL)

    def dropping() -> Any:
        model = llama()
        model.config.attention_dropout = 0.1
        return model

    folder = model_folder(tmp_path / "dropping", dropping)
    with pytest.raises(ValueError, match=r"drops nothing, .* asks for attention_dropout=0\.1"):
        run_sft(
            folder,
            demonstration_records(3),
            TrainConfig(backend=TORCHAX),
            Workplace(tmp_path / "out", tmp_path / "scratch"),
        )
