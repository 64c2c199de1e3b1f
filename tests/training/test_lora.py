"""Adapters: little is trained, the base is the reference, and what comes out is a plain model."""

import math
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_models import (
    demonstration_records,
    folder_bytes,
    gpt2,
    llama,
    log_of,
    model_folder,
    pair_records,
)
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.architectures import tiny
from steps.functional_backend.functional_choice import FunctionalTraining
from steps.jax_backend.backend_choice import JaxTraining
from steps.models import activation_checkpointing
from steps.models.adapters import add_adapter, merge_adapter, merged_weights, save_adapter
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.models.folders import load_model
from steps.models.workplace import Workplace
from steps.scoring.config import Attention
from steps.scoring.reference import run_reference
from steps.training.config import DpoConfig, OptimizerConfig, TrainConfig
from steps.training.recipes import run_dpo, run_sft

FAST = OptimizerConfig(learning_rate=3e-2)
LORA = LoraConfig(r=4, alpha=8.0)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "policy")


def dpo(policy: Path, config: DpoConfig, work: Path) -> list[dict]:
    records = pair_records(8)
    run_reference(policy, records, config.reference(), Workplace(work / "r", work / "rs"))
    run_dpo(policy, records, work / "r", config, Workplace(work / "model", work / "s"))
    return log_of(work / "model")


@pytest.mark.parametrize(
    ("dtype", "dropout", "dora"),
    [
        (Dtype.float32, 0.0, False),
        (Dtype.float64, 0.3, False),
        (Dtype.bfloat16, 0.3, False),
        (Dtype.float32, 0.0, True),
        (Dtype.bfloat16, 0.3, True),
    ],
)
def test_dpo_starts_from_the_base_and_moves(
    policy: Path, tmp_path: Path, dtype: Dtype, dropout: float, dora: bool
) -> None:
    lora = LoraConfig(r=4, alpha=8.0, dropout=dropout, dora=dora)
    config = DpoConfig(batch_size=4, epochs=4, dtype=dtype, optimizer=FAST, lora=lora)
    log = dpo(policy, config, tmp_path)
    assert log[0]["loss"] == math.log(2)
    assert log[0]["rewards/margins"] == 0
    assert log[0]["grad_norm"] > 0
    assert log[1]["loss"] != math.log(2)
    assert log[-1]["rewards/margins"] > 0


@pytest.mark.parametrize(
    ("targets", "dora"),
    [([], False), (["embed_tokens"], False), (["lm_head", "q_proj"], False), ([], True)],
)
def test_the_merged_model_scores_as_the_adapted_one_did(
    tmp_path: Path, targets: list[str], dora: bool
) -> None:
    """By the evaluation after the last step, and the reference of what was saved."""
    policy = model_folder(tmp_path / "policy", partial(llama, tied=False))
    records = demonstration_records(6)
    lora = replace(LORA, target_modules=targets, dora=dora)
    config = TrainConfig(batch_size=6, max_steps=3, optimizer=FAST, lora=lora, eval_every_steps=3)
    run_sft(policy, records, config, Workplace(tmp_path / "m", tmp_path / "s"), held_out=records)
    last = log_of(tmp_path / "m")[-1]
    merged = TrainConfig(batch_size=6, max_steps=1)
    summary = run_sft(tmp_path / "m", records, merged, Workplace(tmp_path / "n", tmp_path / "t"))
    assert summary["first"]["loss"] == pytest.approx(last["eval_loss"], rel=1e-5)


def test_rslora_multiplies_by_the_root_of_the_rank_and_peft_knows_it(
    policy: Path, tmp_path: Path
) -> None:
    config = TrainConfig(batch_size=6, epochs=2, optimizer=FAST, lora=replace(LORA, rslora=True))
    records, others = demonstration_records(6), replace(config, lora=LoraConfig(r=4, alpha=16.0))
    for name, each in (("m", config), ("n", others)):
        run_sft(policy, records, each, Workplace(tmp_path / name, tmp_path / f"{name}-s"))
    assert log_of(tmp_path / "m") == log_of(tmp_path / "n")
    merged = load_file(tmp_path / "m/model.safetensors")
    base = AutoModelForCausalLM.from_pretrained(policy)
    adapted = PeftModel.from_pretrained(base, tmp_path / "m/adapter").merge_and_unload()
    for name, weight in merged.items():
        torch.testing.assert_close(adapted.state_dict()[name], weight)


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_a_bfloat16_model_is_merged_in_float32_and_rounding_is_told(
    policy: Path, size: float
) -> None:
    model = load_model(policy, Dtype.bfloat16)
    names = [name for name, _ in model.named_parameters() if name.endswith("q_proj.weight")]
    before = {name: model.get_parameter(name).detach().double() for name in names}
    adapted = add_adapter(model, LORA, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    changes = {}
    for name in names:
        module = model.get_submodule(name.removesuffix(".weight"))
        a, b = (getattr(module, side)["default"].weight.double() for side in ("lora_A", "lora_B"))
        changes[name] = (b @ a).detach() * LORA.alpha / LORA.r
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        beside = merged_weights(model)
        merged = merge_adapter(adapted)
    for name in names:
        weight = merged.get_parameter(name)
        assert weight.dtype is torch.bfloat16
        assert torch.equal(weight, beside[name])
        nearest = (before[name] + changes[name]).bfloat16()
        assert (weight != nearest).float().mean() < 0.01  # ties of the float32 sum
    assert any("rounding the merged" in f"{one.message}" for one in told) is (size < 1)


@pytest.mark.parametrize("rslora", [False, True])
def test_adapters_of_experts_count_and_are_merged_like_others(tmp_path: Path, rslora: bool) -> None:
    policy = model_folder(tmp_path / "policy", lambda: tiny("qwen3_moe"))
    model, lora = load_model(policy).eval(), replace(LORA, rslora=rslora)
    adapted = add_adapter(model, lora, seed=0)
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
    assert {layer.scaling["default"] for layer in layers} == {lora.scale}
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expected, beside = model(ids).logits, merged_weights(model)
        save_adapter(adapted, tmp_path / "adapter", "digest")
        loaded = PeftModel.from_pretrained(load_model(policy), tmp_path / "adapter").eval()
        assert torch.allclose(loaded(ids).logits, expected, atol=1e-4)
        merged = merge_adapter(adapted)
        assert torch.allclose(merged(ids).logits, expected, atol=1e-4)
    assert {name for name, _ in merged.named_parameters()} == beside.keys()
    for name, parameter in merged.named_parameters():
        assert torch.allclose(parameter, beside[name], atol=1e-6), name


@pytest.mark.parametrize(
    ("backend", "checkpointing", "dora"),
    [
        (None, ActivationCheckpointing.selective, False),
        (FunctionalTraining(), ActivationCheckpointing.full, True),
        *(
            pytest.param(backend, how, dora, marks=pytest.mark.attack)
            for backend in (None, FunctionalTraining())
            for how in ActivationCheckpointing
            for dora in (False, True)
        ),
    ],
)
def test_what_adapters_drop_does_not_depend_on_the_forwards_that_read_the_pairs(
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: FunctionalTraining | None,
    checkpointing: ActivationCheckpointing,
    dora: bool,
) -> None:
    monkeypatch.setattr(activation_checkpointing, "LEAST_INPUT", 0)
    config = DpoConfig(
        batch_size=4,
        dtype=Dtype.float64,
        optimizer=FAST,
        activation_checkpointing=checkpointing,
        backend=backend,
    )
    lora = replace(LORA, dora=dora)
    dropping = replace(config, lora=replace(lora, dropout=0.3))
    first = dpo(policy, dropping, tmp_path / "first")
    assert first != dpo(policy, replace(config, lora=lora), tmp_path / "without")
    for tokens, attention in [(1, "auto"), (40, "auto"), (1, "padded"), (1024, "padded")]:
        changed = replace(dropping, tokens_per_forward=tokens, attention=Attention(attention))
        log = dpo(policy, changed, tmp_path / f"{attention} {tokens}")
        for step, expected in zip(log, first, strict=True):
            assert step == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "beside"),
    [({}, set()), ({"dora": True, "modules_to_save": ["norm"]}, {"model.norm.weight"})],
)
def test_a_checkpoint_holds_what_is_trained_alone_and_resumes_to_the_bit(
    policy: Path, tmp_path: Path, settings: dict[str, Any], beside: set[str]
) -> None:
    records, lora = demonstration_records(6), LoraConfig(dropout=0.2, **settings)
    config = TrainConfig(batch_size=2, optimizer=FAST, lora=lora, checkpoint_every_steps=1)

    class Interrupted(Exception):
        pass

    def interrupt(done: int, total: int, metrics: object) -> None:
        if done == 2:
            raise Interrupted

    place = Workplace(tmp_path / "m", tmp_path / "s")
    with pytest.raises(Interrupted):
        run_sft(policy, records, config, replace(place, on_progress=interrupt))
    (checkpoint,) = (tmp_path / "s/checkpoints").glob("step-*")
    with safe_open(checkpoint / "state.safetensors", framework="pt") as file:
        names = list(file.keys())
    others = {name.rpartition("/")[2] for name in names if "lora_" not in name}
    assert others == beside < {name.rpartition("/")[2] for name in names}
    run_sft(policy, records, config, place)
    run_sft(policy, records, config, Workplace(tmp_path / "whole", tmp_path / "t"))
    assert folder_bytes(tmp_path / "m") == folder_bytes(tmp_path / "whole")


@pytest.mark.parametrize("tied", [False, True])
def test_modules_to_save_are_trained_and_saved_with_the_adapters(
    tmp_path: Path, tied: bool
) -> None:
    policy = model_folder(tmp_path / "policy", partial(llama, tied=tied))
    lora = replace(LORA, target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])
    log = dpo(policy, DpoConfig(batch_size=4, epochs=4, optimizer=FAST, lora=lora), tmp_path)
    assert log[0]["loss"] == math.log(2)
    assert log[-1]["loss"] < log[0]["loss"]
    before, after = (
        load_file(folder / "model.safetensors") for folder in (policy, tmp_path / "model")
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    named = ("q_proj", "embed_tokens", "lm_head")
    assert changed == {name for name in before if any(each in name for each in named)}
    ids = torch.arange(20)[None]
    base = AutoModelForCausalLM.from_pretrained(policy)
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(base, tmp_path / "model/adapter")(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "model")(ids).logits
    torch.testing.assert_close(adapted, merged, rtol=1e-4, atol=1e-4)


def test_the_sampler_has_modules_to_save_too_and_linear_ones_get_no_adapter(policy: Path) -> None:
    model = load_model(policy)
    lora = replace(LORA, modules_to_save=["layers.0.mlp", "norm"])
    adapted = add_adapter(model, lora, seed=0)
    moved(model)
    beside, merged = merged_weights(model), merge_adapter(adapted)
    assert {name for name, _ in merged.named_parameters()} == beside.keys()
    assert all(torch.equal(p, beside[name]) for name, p in merged.named_parameters())
    trained = {name for name, p in merged.named_parameters() if p.requires_grad}
    assert "model.norm.weight" in trained
    assert {n for n in trained if n != "model.norm.weight"} == {
        f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")
    }


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_of_a_matrix_that_is_head_and_embeddings_is_refused(
    policy: Path, tmp_path: Path, target: str
) -> None:
    """Merged it would change both, and the model saved would not be the one that was trained."""
    lora = LoraConfig(target_modules=["q_proj", target])
    with pytest.raises(ValueError, match=f"target_modules names {target}, .* are one matrix"):
        add_adapter(load_model(policy), lora, seed=0)
    untied = model_folder(tmp_path / "untied", lambda: llama(tied=False, layers=1))
    model = load_model(untied)
    add_adapter(model, lora, seed=0)
    assert any(target in name for name, p in model.named_parameters() if p.requires_grad)


@torch.no_grad()
def moved(model: PreTrainedModel) -> None:
    """Draw new values for all that is trained."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.normal_(std=0.1)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_a_layer_with_magnitudes_has_the_values_and_gradients_of_its_definition(
    architecture: str,
) -> None:
    """In float64, with biases, and with weights that are transposed."""
    model = tiny(architecture).double()
    add_adapter(model, LoraConfig(r=3, alpha=6.0, rslora=True, dora=True), seed=0)
    moved(model)
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "lora_A")]
    assert len(layers) > 3
    for layer in layers:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        beyond = layer.lora_magnitude_vector["default"].weight
        w = layer.base_layer.weight
        w = w.t() if architecture == "gpt2" else w
        x = torch.randn(5, w.shape[1], dtype=torch.float64, requires_grad=True)
        v = w + 6.0 / 3**0.5 * b @ a
        scale = (w.norm(dim=1) + beyond) / v.detach().norm(dim=1)
        expected = torch.nn.functional.linear(x, scale[:, None] * v, layer.base_layer.bias)
        found = layer(x)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
        weighed = torch.randn_like(expected)
        gradients = [
            torch.autograd.grad((each * weighed).sum(), [x, a, b, beyond])
            for each in (found, expected)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("dtype", [Dtype.float32, Dtype.bfloat16])
def test_a_layer_with_magnitudes_is_merged_once_rounded(tmp_path: Path, dtype: Dtype) -> None:
    model = load_model(model_folder(tmp_path / "policy", gpt2), dtype)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        model.get_parameter("transformer.h.0.mlp.c_fc.weight")[:, :2] = 0  # rows without a norm
        before = model(ids).logits
        adapted = add_adapter(model, replace(LORA, dora=True), seed=0)
        assert torch.equal(model(ids).logits, before)
        moved(model)
        expected, beside = model(ids).logits, merged_weights(model)
        changed = {
            name: _exactly(module)
            for name, module in model.named_modules()
            if hasattr(module, "lora_A")
        }
        merged = merge_adapter(adapted)
    assert {name for name, _ in merged.named_parameters()} == beside.keys()
    assert all(torch.equal(p, beside[name]) for name, p in merged.named_parameters())
    for name, exact in changed.items():
        weight = merged.get_parameter(f"{name}.weight")
        assert (weight != exact.to(weight.dtype)).float().mean() < 0.02 or dtype is Dtype.float32
        torch.testing.assert_close(weight.double(), exact, rtol=2**-8, atol=1e-5)
    close = 1e-4 if dtype is Dtype.float32 else 0.1
    torch.testing.assert_close(merged(ids).logits, expected, rtol=close, atol=close)


def _exactly(layer: Any) -> torch.Tensor:
    """The merged weight of one of GPT-2's layers in float64, by its definition."""
    a, b = (side["default"].weight.double() for side in (layer.lora_A, layer.lora_B))
    w = layer.base_layer.weight.double().t()
    v = w + LORA.alpha / LORA.r * b @ a
    beyond = layer.lora_magnitude_vector["default"].weight.double()
    return ((w.norm(dim=1) + beyond) / v.norm(dim=1) * v.t()).detach()


@pytest.mark.parametrize("dora", [False, True])
def test_peft_loads_the_adapter_beside_the_base(policy: Path, tmp_path: Path, dora: bool) -> None:
    config = TrainConfig(batch_size=6, epochs=3, optimizer=FAST, lora=replace(LORA, dora=dora))
    records = demonstration_records(6)
    for name in ("m", "n"):
        run_sft(policy, records, config, Workplace(tmp_path / name, tmp_path / f"{name}-s"))
    assert folder_bytes(tmp_path / "m/adapter") == folder_bytes(tmp_path / "n/adapter")
    assert str(tmp_path) not in (tmp_path / "m/adapter/adapter_config.json").read_text()
    base = AutoModelForCausalLM.from_pretrained(policy)
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        untrained = base(tokens).logits
        adapted = PeftModel.from_pretrained(base, tmp_path / "m/adapter")(tokens).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "m")(tokens).logits
    torch.testing.assert_close(adapted, merged, rtol=1e-4, atol=1e-4)
    assert (merged - untrained).abs().max() > 0.1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"lora": replace(LORA, quantization=Quantization.nf4), "dtype": "float64"}, "lora.quant"),
        ({"optimizer": replace(FAST, eight_bit=True), "dtype": "float64"}, "optimizer.eight_bit"),
        ({"optimizer": replace(FAST, eight_bit=True), "backend": FunctionalTraining()}, "backend="),
        ({"lora": replace(LORA, dora=True), "backend": JaxTraining()}, "lora.dora needs backend="),
        (
            {"lora": replace(LORA, modules_to_save=["norm"]), "backend": JaxTraining()},
            "lora.modules_to_save needs backend=",
        ),
    ],
)
def test_what_bitsandbytes_or_a_backend_cannot_do_is_refused(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        TrainConfig(**settings)
