"""The shapes of Llamas that benchmarks measure on devices, or count without one."""

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
