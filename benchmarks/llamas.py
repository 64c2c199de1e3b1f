"""The shapes of Llamas: some that benchmarks measure on devices, or count without one, and small
ones for processors."""

from typing import Any


def _shape(hidden: int, inner: int, layers: int, is_tied: bool, **others: Any) -> dict[str, Any]:
    return {
        "vocab_size": 128256, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8,
        "tie_word_embeddings": is_tied, **others,
    }  # fmt: skip


LLAMAS = {
    "1b": _shape(2048, 8192, 16, is_tied=True, head_dim=64),  # Llama 3.2 1B
    "8b": _shape(4096, 14336, 32, is_tied=False),  # Llama 3.1 8B
}

SMALL: dict[str, dict[str, Any]] = {
    # 15M with SmolLM2's 49,152 tokens: the head is larger than the rest
    "llama": {
        "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 14,
        "num_attention_heads": 6, "num_key_value_heads": 3,
    },
    # 42M with the same tokens, and as sure of them as a trained model: a teacher
    "teacher": {
        "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 14,
        "num_attention_heads": 6, "num_key_value_heads": 3, "initializer_range": 0.3,
    },
    # 14M with a tokenizer of 8,192 tokens: the head is a quarter
    "llama-14m": {
        "vocab_size": 8192, "hidden_size": 384, "intermediate_size": 960, "num_hidden_layers": 7,
        "num_attention_heads": 6, "num_key_value_heads": 3,
    },
}  # fmt: skip
"""Shapes of tied Llamas; without a `vocab_size`, with the tokenizer's."""
