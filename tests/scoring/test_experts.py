"""Mixtures of experts: what a token becomes does not depend on what is read beside it."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import model_folder
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from steps.generation.engine import Request
from steps.generation.slots import SlotEngine
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.scoring.attention import use_packed_attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import token_logps
from steps.scoring.packing import make_pack

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2, "eos_token_id": 2,
}  # fmt: skip
MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 48, "head_dim": 16},
    "qwen2_moe": {  # a gate with one number a token
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
    },
    "gpt_oss": {"num_local_experts": 8, "head_dim": 16},  # transposed weights, biases, own gate
    "phimoe": {"num_local_experts": 8},
}


def some(draw: random.Random, most: int) -> tuple[int, ...]:
    return tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(3, most)))


def some_pairs(count: int = 12) -> list[TokenGroup]:
    draw = random.Random(0)
    return [
        TokenGroup(str(n), str(n), some(draw, 40), (TokenResponse(some(draw, 40)),) * 2)
        for n in range(count)
    ]


_OFTEN = ("qwen3_moe", "qwen2_moe", "gpt_oss")
"""These have all kinds of weights and gates; the others are for long searches."""


@pytest.fixture(
    params=[pytest.param(m, marks=() if m in _OFTEN else pytest.mark.attack) for m in MIXTURES]
)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    config = CONFIG_MAPPING[request.param](**SIZES, **MIXTURES[request.param])
    return model_folder(tmp_path, lambda: AutoModelForCausalLM.from_config(config))


@torch.no_grad()
def logps(model: PreTrainedModel, *packs: list[TokenGroup]) -> Tensor:
    return torch.cat([token_logps(model, make_pack(groups)) for groups in packs])


def test_a_pair_has_the_same_bits_in_any_pack(folder: Path) -> None:
    """So that rewards are exactly 0, and the loss of DPO's first step exactly ln 2."""
    model, pairs = load_model(folder), some_pairs()
    use_packed_attention(model)
    together = logps(model, pairs)
    assert logps(model, *([pair] for pair in pairs)).equal(together)
    assert logps(model, pairs[:5], pairs[5:]).equal(together)


def test_a_completion_has_the_same_bits_in_any_slots(folder: Path) -> None:
    model, draw = load_model(folder), random.Random(1)
    prompts = [some(draw, 20) for _ in range(6)]
    asked = [Request(str(n), k, ids, 6) for n, ids in enumerate(prompts) for k in range(4)]
    drawn = []
    for slots, requests in ((64, asked), (5, asked[::-1]), (1, asked[:3])):
        completions = SlotEngine(model, "", slots).sample(requests, "")
        drawn.append({(done.row, done.k): (done.ids, done.logps) for done in completions})
    many, few, one = drawn
    assert few == many
    assert one.items() <= many.items()


@pytest.mark.parametrize(("dtype", "digits"), [(Dtype.float32, 1e-5), (Dtype.float64, 1e-12)])
def test_experts_compute_as_in_transformers(folder: Path, dtype: Dtype, digits: float) -> None:
    ours = load_model(folder, dtype)
    theirs = load_model(folder, dtype)
    theirs.set_experts_implementation("eager")
    ids = torch.tensor([some(random.Random(2), 40)])
    gradients = []
    for model in (ours, theirs):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        gradients.append([loss, *(p.grad for p in model.parameters() if p.grad is not None)])
    for actual, expected in zip(*gradients, strict=True):
        assert_close(actual, expected, rtol=digits, atol=digits)
