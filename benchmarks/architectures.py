"""Which architectures are packed, batched, read alone or refused, and whether the results are
right. The benchmark compares logps and gradients of a tiny random float64 model of every text
architecture in transformers with the model's own forward of each sequence alone.

    python benchmarks/architectures.py                  all, and writes architectures.md beside it
    python benchmarks/architectures.py qwen3_next mpt   these

Windows, chunks and the original lengths of rotations are shorter than the sequences, and held-out
rows are longer than training rows, to reveal errors that depend on length.
"""

import argparse
import random
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from benchmarks.float64 import in_float64
from steps.models.folders import own_attention
from steps.models.positions import forget_lengths
from steps.scoring.architectures.pack_layouts import plan_forwards
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import forward_backward, token_logps
from steps.scoring.packing import make_pack
from steps.scoring.parity import check_packing

VOCABULARY, WINDOW, POSITIONS = 97, 12, 256
LOGPS, GRADIENTS = 1e-7, 1e-6
"""The tolerances for rounding, relative to the largest logp and to a parameter's gradient."""

_NAMES: dict[Any, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    POSITIONS: "max_position_embeddings n_positions max_seq_len",
    32: "hidden_size n_embd d_model word_embed_proj_dim lru_width",
    48: "intermediate_size n_inner d_ff ffn_dim decoder_ffn_dim encoder_ffn_dim "
    "shared_intermediate_size",
    24: "moe_intermediate_size shared_expert_intermediate_size",
    2: "num_hidden_layers n_layer n_layers decoder_layers num_key_value_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads "
    "encoder_attention_heads rotary_dim",
    8: "head_dim attention_head_dim query_pre_attn_scalar hidden_size_per_layer_input",
    WINDOW: "sliding_window attention_chunk_size attention_window_size",
}
"""The names of a size in different configs."""
_SIZES: dict[str, Any] = {
    **{name: size for size, names in _NAMES.items() for name in names.split()},
    "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "encoder_layers": 1, "use_sliding_window": True, "max_window_layers": 0,
    "sliding_window_pattern": 2,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
    # latent attention
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    # recurrences and convolutions
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_d_ssm": 64,
    "mamba_num_heads": 4, "mamba_head_dim": 16, "mamba_chunk_size": 8, "mamba_n_groups": 1,
    "mamba_expand": 2, "chunk_size": 8, "state_size": 8, "ssm_state_size": 8, "n_groups": 1,
    "use_mamba_kernels": False, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "block_types": ["recurrent", "attention"],
    "conv_L_cache": 3,
}  # fmt: skip
"""Settings for tiny models; each config gets those that it has."""

_LATENT = {"num_key_value_heads": 4}
_SPARSE = {**_LATENT, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 8}
_DECODER = {"is_decoder": True}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(["axk1", "axk2", "deepseek_v2", "deepseek_v3", "dots3_note_text"], _LATENT),
    **dict.fromkeys(["glm4_moe_lite", "minicpm3", "youtu"], _LATENT),
    **dict.fromkeys(["deepseek_v32", "glm_moe_dsa"], _SPARSE),
    **dict.fromkeys(["bert", "camembert", "data2vec-text", "electra", "ernie"], _DECODER),
    **dict.fromkeys(["megatron-bert", "rembert", "roberta", "roberta-prelayernorm"], _DECODER),
    **dict.fromkeys(["roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl"], _DECODER),
    "dbrx": {
        "ffn_config": {
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "hidden_size": 32,
        },
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    },
    "longcat_flash": {
        **_LATENT,
        "num_layers": 1,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 24,
        "zero_expert_num": 2,
        "moe_topk": 2,
    },
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
    "xmod": {"default_language": "en_XX", **_DECODER},
    "gpt_neo": {
        "num_layers": 2,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
        "hidden_size": 32,
    },
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
    **dict.fromkeys(["lfm2", "lfm2_moe"], _CONVOLUTIONS),
    **dict.fromkeys(["minimax", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], _LINEAR),
    "gemma3n_text": {
        "num_hidden_layers": 3,
        "num_kv_shared_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "activation_sparsity_pattern": [0.0] * 3,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "mpt": {"max_seq_len": POSITIONS},
}
"""Further settings that some architectures need."""


@dataclass(frozen=True)
class Outcome:
    """The result for an architecture. logps, gradients: the relative errors; None if nothing was
    computed."""

    architecture: str
    result: str
    why: str | None = None
    logps: float | None = None
    gradients: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether a result differs from the model's own."""
        if self.logps is None or self.gradients is None:
            return False
        return not (self.logps <= LOGPS and self.gradients <= GRADIENTS)


def tiny(architecture: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A random float64 model whose biases, norms and sinks are random too."""
    kind: Any = CONFIG_MAPPING[architecture]
    known = set(kind().to_dict()) | set(getattr(kind, "attribute_map", {}))
    chosen = {name: value for name, value in _SIZES.items() if name in known}
    config = kind(**{**chosen, **_OWN.get(architecture, {}), **settings})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not parameter.any():
                parameter += 0.2 * torch.randn_like(parameter)
    return model


def pairs(lengths: Iterable[tuple[int, int, int]], seed: int = 0) -> list[TokenGroup]:
    """Pairs of random tokens: a prompt and two responses of these lengths."""
    draw = random.Random(seed)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, VOCABULARY) for _ in range(length))

    return [
        TokenGroup(f"{n}", f"{n}", ids(p), (TokenResponse(ids(c)), TokenResponse(ids(r))))
        for n, (p, c, r) in enumerate(lengths)
    ]


TRAINING = pairs([(14, 9, 12), (4, 3, 22), (20, 1, 2), (2, 1, 1), (5, 17, 6), (3, 8, 8)])
HELD_OUT = pairs([(7, 40, 4), (1, 5, 2)], seed=1)


def examine(
    model: PreTrainedModel,
    training: Sequence[TokenGroup] = TRAINING,
    held_out: Sequence[TokenGroup] = HELD_OUT,
) -> Outcome:
    """How `model` reads these rows, and the error relative to its own forward."""
    name = model.config.model_type
    model.set_attn_implementation(own_attention(model))
    every = [*training, *held_out]
    plain = _plain(model, training, graph=True)
    expected = [[logps.detach() for logps in group] for group in plain] + _plain(model, held_out)
    wanted = _gradients(model, lambda: _loss(plain))
    try:
        with torch.no_grad():
            packing = check_packing(model, every)
    except ValueError as error:
        return Outcome(name, "refused", str(error))
    actual = {}
    for members in plan_forwards(packing.layout, every, 100):
        pack = make_pack([every[i] for i in members])
        parts = token_logps(model, pack).split(pack.num_scored.tolist())
        actual |= {i: parts[2 * n : 2 * n + 2] for n, i in enumerate(members)}
    off = max(
        (mine - own).abs().max().item()
        for i, group in enumerate(expected)
        for mine, own in zip(actual[i], group, strict=True)
    )
    largest = max(own.abs().max().item() for group in expected for own in group)

    def backward() -> None:
        for members in plan_forwards(packing.layout, training, 60):
            pack = make_pack([training[i] for i in members])
            forward_backward(model, pack, lambda logps, _: (_of_pairs(logps.sums()), {}))

    ours = _gradients(model, backward)
    return Outcome(name, packing.layout, packing.notice, off / largest, _relative(ours, wanted))


def _plain(
    model: PreTrainedModel, groups: Sequence[TokenGroup], graph: bool = False
) -> list[list[Tensor]]:
    """The logps of every response's tokens by the model's own forward of it alone."""
    found = []
    with torch.set_grad_enabled(graph):
        for group in groups:
            found.append([])
            for response in group.responses:
                ids = torch.tensor([*group.prompt_ids, *response.ids])
                forget_lengths(model)
                logps = model(input_ids=ids[None], use_cache=False).logits[0].log_softmax(dim=-1)
                first = len(group.prompt_ids)
                found[-1].append(logps[first - 1 : -1].gather(1, ids[first:, None])[:, 0])
    return found


def _of_pairs(logps: Tensor) -> Tensor:
    """A loss that is not linear in the logps [n, 2] and needs no reference."""
    return torch.nn.functional.softplus(-0.1 * (logps[:, 0] - logps[:, 1])) - 0.01 * logps[:, 0]


def _loss(logps: list[list[Tensor]]) -> None:
    sums = torch.stack([torch.stack([tokens.sum() for tokens in group]) for group in logps])
    _of_pairs(sums).sum().backward()


def _gradients(model: PreTrainedModel, backward: Any) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    backward()
    found = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    model.zero_grad(set_to_none=True)
    return found


def _relative(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest relative difference of a parameter's gradient. Very small gradients are compared
    relative to a thousandth of the whole gradient."""
    least = 1e-3 * torch.stack([g.norm() for g in theirs.values()]).norm()
    off = [
        (ours[name] - gradient).norm() / torch.maximum(gradient.norm(), least)
        for name, gradient in theirs.items()
    ]
    return torch.stack(off).max().item()  # NaN if any is, unlike Python's max


_TYPES = """
afmoe apertus arcee aria_text axk1 axk2 bailing_hybrid bamba bart beam bert bert-generation
big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small bloom camembert codegen cohere
cohere2 cohere2_moe cpmant ctrl cwm data2vec-text dbrx deepseek_v2 deepseek_v3 deepseek_v32
deepseek_v4 diffllama doge dots1 dots3_note_text electra ernie ernie4_5 ernie4_5_moe exaone4
exaone_moe falcon falcon_h1 falcon_mamba flex_olmo flint gemma gemma2 gemma3_text gemma3n_text
gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_bigcode
gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa granitemoe granitemoe_swa
granitemoehybrid granitemoeshared helium hrm_text hunyuan_v1_dense hunyuan_v1_moe hy_v3 hy_v4
hyperclovax inkling_text jais2 jamba jetmoe kolibri1 laguna lfm2 lfm2_moe lfm3 llama llama4_text
longcat_flash mamba mamba2 marian mbart megatron-bert mellum mimo_v2_flash minicpm3 minimax
minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral modernbert-decoder moshi mpt
mvp nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai-gpt opt pegasus
persimmon phi phi3 phimoe plbart prophetnet qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text
qwen3_moe qwen3_next qwen4_exp_text recurrent_gemma rembert roberta roberta-prelayernorm roc_bert
roformer rwkv seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma whisper xlm
xlm-roberta xlm-roberta-xl xlnet xlstm xmod youtu zamba2 zaya
"""
ARCHITECTURES = _TYPES.split()
"""Every type of `AutoModelForCausalLM` that reads only text and can be made small, without types
that equal another one (gpt-sw3 is a GPT-2)."""

_MIXED = {"nemotron_h"}
"""This type creates float32 tensors, so it runs in mixed precision and not fully in float64."""


def examined(architecture: str) -> Outcome:
    """`examine` of a tiny model of this type, in float64 throughout."""
    with nullcontext() if architecture in _MIXED else in_float64():
        return replace(examine(tiny(architecture)), architecture=architecture)


PAGE = Path(__file__).with_suffix(".md")


def page(outcomes: Sequence[Outcome]) -> str:
    """The page of the site that lists every architecture."""
    lines = [
        "# How each architecture is read",
        "`python benchmarks/architectures.py` has written this page. It compares a tiny random "
        f"float64 model of each text architecture of transformers {transformers.__version__} that "
        "can be made small with plain forwards. [Models](../docs/models.md) explains the words. "
        "Errors are relative: of the largest logp, and of a parameter's gradient.",
        table(outcomes),
        "Refused are models that are not causal, or that depend on a sequence's length.",
    ]
    return "\n\n".join(lines) + "\n"


def table(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table of how each architecture is read, and of its errors."""
    lines = ["| read | types | | logps off by | gradients off by |", "|---|--:|---|--:|--:|"]
    for result in ("packed", "batched", "alone", "refused", "failed"):
        found = [outcome for outcome in outcomes if outcome.result == result]
        names = " ".join(outcome.architecture for outcome in found)
        logps, gradients = (
            max((x for x in values if x is not None), default=None)
            for values in ([o.logps for o in found], [o.gradients for o in found])
        )
        errors = " | ".join("" if x is None else f"{x:.0e}" for x in (logps, gradients))
        lines += [f"| {result} | {len(found)} | {names} | {errors} |"] if found else []
    return "\n".join(lines)


def main() -> None:
    """Print architectures that are not packed, with the reason, and then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES)
    wanted = parser.parse_args().architectures
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    outcomes = []
    for name in wanted:
        try:
            outcomes.append(examined(name))
        except Exception as error:
            outcomes.append(Outcome(name, "failed", f"{type(error).__name__}: {error}"))
        outcome = outcomes[-1]
        if outcome.why is not None or outcome.is_wrong:
            print(f"{name}: {'WRONG, ' if outcome.is_wrong else ''}{outcome.why}", flush=True)
    print(f"\n{table(outcomes)}\n\n{sum(o.is_wrong for o in outcomes)} are wrong.")
    print(f"{len(wanted)} types, {time.process_time():.0f} CPU seconds.")
    if wanted == ARCHITECTURES:
        PAGE.write_text(page(outcomes), "utf-8")
    sys.exit(any(o.is_wrong or o.result == "failed" for o in outcomes))


if __name__ == "__main__":
    main()
