"""Compiled layers compute what they compute uncompiled, up to rounding, for packs of any size."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import gemma2, llama, model_folder, pair_records
from transformers import PreTrainedModel

from benchmarks.architectures import TRAINING, tiny
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.models.folders import load_model, save_model
from steps.models.workplace import Workplace
from steps.scoring.architectures import compiled_layers
from steps.scoring.architectures.compiled_layers import compile_layers
from steps.scoring.attention import use_packed_attention
from steps.scoring.config import Attention
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig, TrainConfig
from steps.training.recipes import run_dpo

CONFIG = DpoConfig(batch_size=4, optimizer=OptimizerConfig(learning_rate=1e-2))
PAIRS = pair_records(16)  # of many lengths, so in packs of many sizes


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's graphs, forward and backward, without the minute that kernels take."""
    torch.compiler.reset()
    eager = partial(torch.compile, dynamic=True, backend="aot_eager")
    monkeypatch.setattr(compiled_layers, "_compiled", eager)


def experts() -> PreTrainedModel:
    return tiny("qwen3_moe", vocab_size=64).float()


def trained(policy: Path, config: DpoConfig, folder: Path) -> tuple[dict[str, Any], list[float]]:
    """The summary of a run, and the losses of its steps."""
    place = Workplace(folder / "reference", folder / "r")
    run_reference(policy, PAIRS, config.reference(), place)
    place = Workplace(folder / "model", folder / "s")
    summary = run_dpo(policy, PAIRS, folder / "reference", config, place)
    lines = (folder / "model" / "metrics.jsonl").read_text().splitlines()
    return summary, [json.loads(line)["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (llama, {"activation_checkpointing": ActivationCheckpointing.full}),
        pytest.param(gemma2, {}, marks=pytest.mark.attack),
        pytest.param(llama, {"lora": LoraConfig(r=4)}, marks=pytest.mark.attack),
        pytest.param(experts, {}, marks=pytest.mark.attack),
    ],
)
def test_a_run_with_compiled_layers_is_one_without(
    tmp_path: Path, build: Callable[[], PreTrainedModel], settings: dict[str, Any]
) -> None:
    policy = model_folder(tmp_path / "policy", build)
    plain = replace(CONFIG, **settings)
    _, expected = trained(policy, plain, tmp_path / "plain")
    compiled = replace(plain, compile_layers=True)
    summary, found = trained(policy, compiled, tmp_path / "compiled")
    assert found == pytest.approx(expected, rel=1e-4)
    assert "notices" not in summary
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler of C++")
def test_inductor_takes_the_layers_of_a_model_that_was_loaded_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "vec_isa_ok", False)  # or it compiles programs to find out
    save_model(tiny("llama", num_hidden_layers=1).float(), tmp_path)
    model, pack = load_model(tmp_path, Dtype.float32), make_pack(TRAINING)
    use_packed_attention(model)
    expected = token_logps(model, pack)
    compile_layers(model, ActivationCheckpointing.none)
    torch.testing.assert_close(token_logps(model, pack), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"backend": FunctionalTraining()}, "compile_layers needs backend=null"),
        ({"attention": Attention.padded}, "compile_layers does not go with attention=padded"),
        ({"lora": LoraConfig(dropout=0.1)}, "compile_layers needs lora.dropout=0"),
        ({"lora": LoraConfig(quantization=Quantization.nf4)}, "not go with lora.quantization"),
    ],
)
def test_what_is_not_compiled_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(compile_layers=True, **settings)
