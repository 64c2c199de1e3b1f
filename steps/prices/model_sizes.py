"""The sizes of a model: ``parameters``, ``hidden``, ``layers``, ``feed_forward``, ``vocabulary``,
``tied``, ``bytes`` of its folder, and its whole ``config``. Of a mixture of experts,
``feed_forward`` is what a token reads in a layer, and ``idle`` are the parameters that it does not
read.

They come from a config.json or from the header of a GGUF file. For a model on the Hub, they come
from the config in the cache of downloads, or from a small table in this module.
"""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pipeline import HubModel
from pipeline.price.estimator import Made, Sizes
from steps.models.config import Dtype, Quantization

BYTES = {Dtype.float32: 4, Dtype.bfloat16: 2, Dtype.float64: 8}
"""The size of a number of each dtype."""
_ROUNDED = {Quantization.nf4: 0.5 + 4 / 64, Quantization.nf4_double: 0.5 + 1 / 64 + 4 / (64 * 256)}
"""Bytes of a weight of 4 bits, with its share of a block's scale."""
TOKENIZER_BYTES_A_TOKEN = 75
"""The size of a ``tokenizer.json`` per token: 72 for SmolLM2, 71 for Llama 3, 75 for Qwen 2.5."""

_HUB: Mapping[str, Mapping[str, Any]] = {  # values from each model's config.json
    "meta-llama/Llama-3.1-8B": {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "intermediate_size": 14336, "vocab_size": 128256, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
}  # fmt: skip


def of_folder(made: Made) -> Sizes:
    """The sizes of a model folder that a step has made."""
    config = json.loads(made.read("config.json") or b"{}")
    if not config:  # the model of an online run is in a part
        return {}
    counted = made.manifest.metrics.get("parameters")
    found = of_config(config)
    return {**found, "parameters": counted or found["parameters"], "bytes": made.manifest.size}


def of_config(config: Mapping[str, Any]) -> Sizes:
    """The sizes of a decoder whose layers are attention and a gated feed-forward block, or a
    mixture of such blocks; empty for a config with other names of sizes."""
    text = config.get("text_config", config)
    try:
        hidden, layers = text["hidden_size"], text["num_hidden_layers"]
        wide, vocabulary = text["intermediate_size"], text["vocab_size"]
        heads = text["num_attention_heads"]
    except KeyError:
        return {}
    size = text.get("head_dim") or hidden // heads
    keys = size * text.get("num_key_value_heads", heads)
    tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)))
    layer = 2 * hidden * (size * heads + keys) + 2 * hidden
    mixture = _mixture(text, layers)
    if mixture is not None:
        wide = mixture.used
    blocks = 3 * hidden * (wide if mixture is None else mixture.stored)
    routers = 0 if mixture is None else hidden * mixture.routed
    embeddings = vocabulary * hidden * (1 if tied else 2)
    return {
        "parameters": round(layers * (layer + blocks + routers)) + hidden + embeddings,
        "idle": 0 if mixture is None else 3 * hidden * layers * (mixture.stored - mixture.used),
        "hidden": hidden,
        "layers": layers,
        "feed_forward": wide,
        "vocabulary": vocabulary,
        "keys": keys,
        "tied": tied,
        "config": dict(config) if "model_type" in config else {},
    }


class _Mixture(NamedTuple):
    """Means over all layers, some of which may have no experts.

    stored, used: the widths of the blocks of a layer, and of those that a token reads.
    routed: the number of experts among which a router chooses.
    """

    stored: float
    used: float
    routed: float


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k")
_EVERY = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")


def _mixture(text: Mapping[str, Any], layers: int) -> _Mixture | None:
    """The experts of a config; None if it has none, or names them otherwise."""

    def said(*names: str) -> int:
        values = (text.get(name) for name in names)
        return next((value for value in values if isinstance(value, int) and value), 0)

    experts, chosen, wide = said(*_EXPERTS), said(*_CHOSEN), text["intermediate_size"]
    if not experts or not chosen:
        return None
    each = said("moe_intermediate_size") or wide
    shared = said("shared_expert_intermediate_size") or each * said("n_shared_experts")
    without = said("first_k_dense_replace") or len(text.get("mlp_only_layers") or ())
    share = (layers - without) / layers / (said(*_EVERY) or 1)

    def mean(of_mixture: float) -> float:
        return share * of_mixture + (1 - share) * wide

    return _Mixture(mean(experts * each + shared), mean(chosen * each + shared), share * experts)


def of_path(path: Path) -> Sizes:
    """The sizes of a model on this machine: a folder or a GGUF file."""
    if path.is_dir():
        return of_config(json.loads((path / "config.json").read_bytes()))
    with path.open("rb") as file:
        return of_config(_gguf_config(file))


def of_hub(source: HubModel) -> Sizes:
    """The sizes of a model on the Hub; empty if its config is neither cached nor in the table."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source.repo, "config.json", revision=source.revision)
    if isinstance(cached, str):
        return of_config(json.loads(Path(cached).read_bytes()))
    return of_config(_HUB.get(source.repo, {}))


def folder_bytes(sizes: Sizes, dtype: Dtype) -> float | None:
    """The size of a folder with the model's weights and tokenizer; None if it is unknown."""
    if "parameters" not in sizes:
        return None
    tokenizer = sizes.get("vocabulary", 0) * TOKENIZER_BYTES_A_TOKEN
    return sizes["parameters"] * BYTES[dtype] + tokenizer


def weights_bytes(sizes: Sizes, dtype: Dtype, quantization: Quantization | None) -> float:
    """The bytes of a model's weights on a device. Head and embeddings are not rounded; norms, which
    are not either, are too small to count."""
    rounded = 0.0 if quantization is None else body(sizes)
    kept = (sizes["parameters"] - rounded) * BYTES[dtype]
    return kept + (0.0 if quantization is None else rounded * _ROUNDED[quantization])


def body(sizes: Sizes) -> float:
    """The number of parameters without embedding and head."""
    tables = 1 if sizes["tied"] else 2
    return sizes["parameters"] - tables * sizes["vocabulary"] * sizes["hidden"]


def read_body(sizes: Sizes) -> float:
    """The parameters of the body that a token reads: all, except experts not chosen for it."""
    return body(sizes) - sizes.get("idle", 0)


def of_reward_model(sizes: Sizes) -> Sizes:
    """The sizes of a model whose head gives one score."""
    if not sizes.get("parameters"):
        return sizes
    embeddings = sizes["vocabulary"] * sizes["hidden"]
    return {**sizes, "parameters": body(sizes) + embeddings + sizes["hidden"], "tied": True}


# --- GGUF -------------------------------------------------------------------------------------
# The gguf library reads the whole vocabulary, which takes seconds; the sizes come before it.

_GGUF_NAMES = {
    "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}  # fmt: skip
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _LIST = 8, 9
_MOST_TEXT = 2**20


def _gguf_config(file: BinaryIO) -> dict[str, Any]:
    """The sizes in the header of a GGUF file, under the names of a config.json.

    Raises:
        ValueError, struct.error: the file is not a GGUF file.
    """
    if file.read(4) != b"GGUF":
        raise ValueError("no GGUF file")
    _, _, count = struct.unpack("<IQQ", file.read(20))
    config: dict[str, Any] = {}
    for _ in range(count):
        key = _gguf_text(file)
        if key.startswith("tokenizer."):
            break
        value = _gguf_value(file, _gguf_number(file, "I"))
        if (name := _GGUF_NAMES.get(key.partition(".")[2])) is not None:
            config[name] = value
    return config


def _gguf_value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _gguf_text(file)
    if kind == _LIST:
        of, length = _gguf_number(file, "I"), _gguf_number(file, "Q")
        return [_gguf_value(file, of) for _ in range(length)]
    return _gguf_number(file, _NUMBERS[kind])


def _gguf_number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _gguf_text(file: BinaryIO) -> str:
    length = _gguf_number(file, "Q")
    if length > _MOST_TEXT:
        raise ValueError("no GGUF file")
    return file.read(length).decode(errors="replace")
