"""Tiny models with random weights of every architecture whose packing is tested.

Between them: grouped and multi-head attention, biases on queries and keys, norms of queries and
keys, sliding windows (of five tokens, so that they matter), layers that slide and layers that do
not, soft-capped scores and logits, scaled logits, scaled residuals, learned positions, layers
without any positions, partial rotation, parallel residuals, attention sinks, mixtures of experts;
heads tied, untied and with biases.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from tiny_models import SIZES, gemma2, gpt2, granite, llama
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from steps.models.folders import own_attention
from steps.shared.experts import use_padded_experts

WINDOW = 5
_SLIDING_AND_FULL = ["sliding_attention", "full_attention"]


def _family(model_type: str, **settings: Any) -> Callable[[], PreTrainedModel]:
    def build() -> PreTrainedModel:
        config = CONFIG_MAPPING[model_type](**SIZES, **settings)
        return AutoModelForCausalLM.from_config(config)

    return build


def _gpt_oss() -> PreTrainedModel:
    model = _family(
        "gpt_oss", head_dim=4, num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
        layer_types=_SLIDING_AND_FULL,
    )()  # fmt: skip
    use_padded_experts(model)  # as a model that is loaded
    return model


_BUILDERS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "llama-untied": lambda: llama(tied=False),
    "qwen2": _family(
        "qwen2",
        use_sliding_window=True,
        sliding_window=WINDOW,
        layer_types=_SLIDING_AND_FULL,
    ),
    "qwen3": _family("qwen3", head_dim=8),
    "gemma2": gemma2,
    "gemma3": _family(
        "gemma3_text",
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=WINDOW,
        layer_types=_SLIDING_AND_FULL,
    ),
    "gpt2": gpt2,
    "mistral": _family("mistral", head_dim=4, sliding_window=WINDOW),
    "olmo2": _family("olmo2"),
    "granite": granite,
    "cohere2": _family(
        "cohere2", logit_scale=0.5, sliding_window=WINDOW, layer_types=_SLIDING_AND_FULL
    ),
    "smollm3": _family("smollm3", no_rope_layers=[1, 0]),
    "phi3": _family("phi3"),
    "gpt_neox": _family("gpt_neox", attention_bias=True, rotary_pct=0.5),
    "phi": _family("phi"),
    "gpt_oss": _gpt_oss,
}


def _with_vectors(build: Callable[[], PreTrainedModel]) -> Callable[[], PreTrainedModel]:
    """Biases are made as zeros and norms as ones, and then do nothing that a test could see."""

    def random() -> PreTrainedModel:
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.2 * torch.randn_like(parameter)
        return model

    return random


FAMILIES = {name: _with_vectors(build) for name, build in _BUILDERS.items()}


def built(family: str) -> PreTrainedModel:
    """Always the same model of a family, with the attention that an engine of slots gives it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = FAMILIES[family]().eval()
    model.set_attn_implementation(own_attention(model))
    return model


_UNLIKE = ("llama", "gemma2", "gpt2", "smollm3", "phi", "gpt_oss")
_MIXTURES = ("llama-untied", "qwen3", "phi3")


def _searched(names: Iterable[str]) -> list[Any]:
    return [pytest.param(x, marks=pytest.mark.attack if x in names else ()) for x in FAMILIES]


UNLIKE = _searched(FAMILIES.keys() - _UNLIKE)
"""For what follows from how a model attends: six that attend unlike each other; the others are
for long searches."""
EVERY = _searched(_MIXTURES)
"""All; those whose every part is in some other family are for long searches."""
