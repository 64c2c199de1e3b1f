"""Adapters over weights of 4 bits, and AdamW with a state of 8: what is trained and saved."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import (
    demonstration_records,
    folder_bytes,
    gpt2,
    llama,
    model_folder,
    pair_records,
)
from transformers import PreTrainedModel

from steps.losses.base import ReferenceLoss
from steps.losses.dpo import Dpo
from steps.losses.with_reference.tdpo import Tdpo
from steps.models.config import Dtype, LoraConfig, Quantization
from steps.models.folders import load_model, save_model
from steps.models.quantized import put_rounded_weights
from steps.models.workplace import Workplace
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig, TrainConfig
from steps.training.recipes import run_dpo, run_sft

functional: Any = pytest.importorskip("bitsandbytes.functional")

FAST = OptimizerConfig(learning_rate=3e-2)
NF4 = LoraConfig(r=4, alpha=8.0, quantization=Quantization.nf4_double)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy")


def rounded(policy: Path, folder: Path, dtype: Dtype) -> Path:
    """A folder of the weights that the layers of a rounded policy compute with."""
    plain = load_model(policy, dtype)
    put_rounded_weights(load_model(policy, dtype, quantization=NF4.quantization), plain)
    save_model(plain, folder, tokenizer_from=policy)
    return folder


def dpo(policy: Path, config: DpoConfig, work: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summary of a run, and the weights that it saves."""
    records = pair_records(8)
    run_reference(policy, records, config.reference(), Workplace(work / "r", work / "rs"))
    place = Workplace(work / "model", work / "s")
    summary = run_dpo(policy, records, work / "r", config, place)
    return summary, load_file(work / "model/model.safetensors")


@pytest.mark.parametrize(
    ("build", "dtype", "loss", "dora"),
    [
        (gpt2, Dtype.float32, Dpo(), False),
        (llama, Dtype.bfloat16, Dpo(), False),
        # whose reference is the rounded model without adapters
        (llama, Dtype.float32, Tdpo(), False),
        (gpt2, Dtype.float32, Dpo(), True),
    ],
    ids=["gpt2", "llama", "tdpo", "magnitudes"],
)
def test_a_run_over_rounded_weights_is_that_of_a_model_which_has_these_weights(
    tmp_path: Path,
    build: Callable[[], PreTrainedModel],
    dtype: Dtype,
    loss: ReferenceLoss,
    dora: bool,
) -> None:
    policy, lora = model_folder(tmp_path / "policy", build), replace(NF4, dora=dora)
    config = DpoConfig(batch_size=4, epochs=2, dtype=dtype, optimizer=FAST, lora=lora, loss=loss)
    found, weights = dpo(policy, config, tmp_path / "four")
    assert found["first"]["loss"] == math.log(2)
    assert found["first"].get("kl/rejected", 0) == 0
    (notice,) = found["notices"]
    assert "rounded to 4 bits (nf4_double)" in notice
    assert "packed" not in notice
    plain = replace(config, lora=replace(lora, quantization=None))
    folder = rounded(policy, tmp_path / "rounded", dtype)
    expected, others = dpo(folder, plain, tmp_path / "plain")
    close = 1e-4 if dtype is Dtype.float32 else 5e-2
    assert found["final"]["loss"] == pytest.approx(expected["final"]["loss"], rel=close)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert weight.dtype is others[name].dtype
        assert torch.allclose(weight, others[name], atol=close), name
    described = json.loads((tmp_path / "four/model/config.json").read_text())
    assert "quantization_config" not in described


def test_modules_to_save_have_all_bits_and_a_reference_of_their_own(
    policy: Path, tmp_path: Path
) -> None:
    """TDPO's reference is the rounded model, too, with embeddings as they were."""
    lora = replace(NF4, modules_to_save=["embed_tokens", "lm_head"])
    config = DpoConfig(batch_size=4, epochs=2, optimizer=FAST, lora=lora, loss=Tdpo())
    found, weights = dpo(policy, config, tmp_path / "four")
    assert found["first"]["loss"] == math.log(2)
    assert found["first"]["kl/rejected"] == 0 < found["final"]["kl/rejected"]
    before = load_file(policy / "model.safetensors")
    assert not torch.equal(
        weights["model.embed_tokens.weight"], before["model.embed_tokens.weight"]
    )
    with pytest.raises(ValueError, match="names up_proj, whose weights have 4 bits"):
        dpo(policy, replace(config, lora=replace(NF4, modules_to_save=["up_proj"])), tmp_path / "n")


def test_a_reference_of_other_weights_is_refused(policy: Path, tmp_path: Path) -> None:
    config = DpoConfig(lora=NF4, batch_size=4)
    other = replace(config.reference(), quantization=None)
    run_reference(policy, pair_records(8), other, Workplace(tmp_path / "r", tmp_path / "rs"))
    place = Workplace(tmp_path / "model", tmp_path / "s")
    with pytest.raises(ValueError, match="compute it again with quantization=nf4_double"):
        run_dpo(policy, pair_records(8), tmp_path / "r", config, place)


@pytest.mark.parametrize(
    "config",
    [
        TrainConfig(lora=replace(NF4, dropout=0.2), dtype=Dtype.bfloat16),
        TrainConfig(optimizer=replace(FAST, eight_bit=True)),
    ],
    ids=["four bits", "optimizer"],
)
def test_a_killed_run_goes_on_to_the_bit(policy: Path, tmp_path: Path, config: TrainConfig) -> None:
    config = replace(config, batch_size=2, checkpoint_every_steps=1)
    records = demonstration_records(6)

    class Killed(Exception):
        pass

    def kill(done: int, total: int, metrics: object) -> None:
        if done == 2:
            raise Killed

    place = Workplace(tmp_path / "m", tmp_path / "s")
    with pytest.raises(Killed):
        run_sft(policy, records, config, replace(place, on_progress=kill))
    run_sft(policy, records, config, place)
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "t"))
    assert folder_bytes(tmp_path / "m") == folder_bytes(tmp_path / "whole")
