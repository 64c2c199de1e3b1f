"""Which models and tokenizers a GGUF file can hold at all, as the files of a model folder say.

A plan asks before anything has run, so this module imports nothing that takes long to import.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def require_writable(folder: Path) -> None:
    """Look at the kinds of a folder's model and tokenizer; their settings are left to the writer.

    Raises:
        ValueError: no GGUF file can hold one of them.
        OSError: a file cannot be read.
    """
    require_model_type(json.loads((folder / "config.json").read_bytes()).get("model_type"))
    tokenizer = folder / "tokenizer.json"
    if tokenizer.is_file():  # a library can make one from other files
        require_byte_level(json.loads(tokenizer.read_bytes()).get("model") or {})


def require_model_type(kind: str | None) -> None:
    """Raise ValueError if no GGUF file can hold models of this type."""
    if kind not in MODEL_TYPES:
        raise ValueError(
            f"a {kind} model cannot be written as GGUF; these can: {', '.join(MODEL_TYPES)}"
        )


def require_byte_level(model: Mapping[str, Any]) -> None:
    """Raise ValueError unless this is a byte-level BPE, as ``tokenizer.json`` describes it."""
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        kind = "BPE with byte fallback" if model.get("byte_fallback") else model["type"]
        raise ValueError(f"a tokenizer of kind {kind} is not written as GGUF: only byte-level BPE")
