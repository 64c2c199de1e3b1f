"""Settings of a config that change how a model attends, turns, scales or drops, at their borders:
values are those of the model's own forward of each sequence alone, or the model is refused.

`benchmarks/architectures.py` looks at every architecture, with one config each.
"""

from typing import Any

import pytest
import torch
from peft import LoraConfig

from benchmarks.architectures import HELD_OUT, TRAINING, examine, tiny
from benchmarks.float64 import in_float64

LONGEST = max(group.longest_sequence for group in [*TRAINING, *HELD_OUT]) + 1
"""Tokens of the longest sequence, with its last."""


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


def longrope(limit: int) -> dict[str, Any]:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    turned = rope("longrope", factor=8.0, original_max_position_embeddings=limit, **factors)
    return {**turned, "original_max_position_embeddings": limit}


WINDOWS = [
    (architecture, {name: reach}, "packed")
    for architecture, name in [
        ("mistral", "sliding_window"),
        ("gemma3_text", "sliding_window"),
        ("gpt_oss", "sliding_window"),
        ("qwen2_moe", "sliding_window"),
        ("llama4_text", "attention_chunk_size"),
    ]
    for reach in ((1, 2, 1000) if architecture == "mistral" else (2,))
]
TURNS = [
    *(
        ("llama", {"max_position_embeddings": limit, **rope("dynamic", factor=4.0)}, how)
        for limit, how in ((LONGEST, "packed"), (LONGEST - 1, "alone"))
    ),
    *(("phi3", longrope(limit), how) for limit, how in ((LONGEST, "packed"), (26, "alone"))),
    ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=20), "packed"),
    (
        "llama",
        rope(
            "llama3",
            factor=4.0,
            original_max_position_embeddings=20,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
        "packed",
    ),
    ("phi", {"partial_rotary_factor": 0.25, "qk_layernorm": True}, "packed"),
    ("gpt_neox", {"rotary_pct": 0.5, "use_parallel_residual": False}, "packed"),
    (
        "llama4_text",
        {"attn_temperature_tuning": True, "floor_scale": 4, "no_rope_layers": [0, 1]},
        "batched",
    ),
]
HEADS = [
    ("llama", {"head_dim": 10, "num_key_value_heads": 1}, "packed"),
    ("gpt2", {"n_embd": 40, "n_head": 8, "scale_attn_by_inverse_layer_idx": True}, "packed"),
    ("falcon", {"alibi": True}, "batched"),
    ("mpt", {"attn_config": {"alibi": True, "clip_qkv": 0.2}}, "batched"),
    ("olmo", {"clip_qkv": 0.3}, "packed"),
]
SCALES = [
    ("gemma2", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0}, "packed"),
    ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}, "packed"),
    ("cohere", {"logit_scale": 3.0, "use_qk_norm": True}, "packed"),
    ("granite", {"embedding_multiplier": 7.0, "logits_scaling": 5.0}, "packed"),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}, "packed"),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 16}, "packed"),
    ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}, "packed"),
]
EXPERTS = [
    (
        "deepseek_v3",
        {"n_shared_experts": 2, "n_group": 2, "num_experts_per_tok": 1, "first_k_dense_replace": 0},
        "packed",
    ),
    ("qwen3_moe", {"norm_topk_prob": False, "output_router_logits": True}, "packed"),
    ("mixtral", {"router_jitter_noise": 0.3, "sliding_window": 5}, "packed"),
]
NOT_CAUSAL = [
    ("llama", {"is_causal": False}, "refused"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "refused"),
    ("bert", {"is_decoder": False}, "refused"),
]


@pytest.mark.parametrize(
    ("architecture", "settings", "how"),
    [*WINDOWS, *TURNS, *HEADS, *SCALES, *EXPERTS, *NOT_CAUSAL],
    ids=str,
)
def test_a_config_is_read_as_the_model_s_own_forward_reads_it(
    architecture: str, settings: dict[str, Any], how: str
) -> None:
    with in_float64():
        outcome = examine(tiny(architecture, **settings))
    assert outcome.result == how
    assert not outcome.is_wrong, outcome


ADAPTERS: dict[str, dict[str, Any]] = {
    "DoRA": {"use_dora": True, "target_modules": ["q_proj", "down_proj"]},
    "rsLoRA": {"use_rslora": True, "target_modules": "all-linear"},
    "head and embeddings": {"target_modules": ["embed_tokens", "lm_head"]},
    "modules kept whole": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "trained tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6, 7]},
}


@pytest.mark.parametrize("of", ADAPTERS)
def test_adapters_of_every_kind_get_the_gradients_of_plain_forwards(of: str) -> None:
    model = tiny("llama", tie_word_embeddings=False)
    model.add_adapter(LoraConfig(r=4, **ADAPTERS[of]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter += 0.2 * torch.randn_like(parameter)
    torch.nn.Module.to(model, dtype=torch.float64)
    with in_float64():
        outcome = examine(model)
    assert (outcome.result, outcome.is_wrong) == ("packed", False)
