"""Pretrained models from where people publish them, as plain Hugging Face folders."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from steps.training.config import Dtype
from steps.training.models import save_model


def import_pretrained(
    source: str, output: Path, dtype: Dtype, chat_template: str | None, revision: str | None = None
) -> dict[str, Any]:
    """Write ``source`` (a Hub repository, a folder, or a ``.gguf`` file) as a folder at ``output``.

    Weights of a GGUF file are dequantised to ``dtype``. Returns the number of parameters.

    Raises:
        ValueError: the source holds no model, or no tokenizer with a chat template.
    """
    where: dict[str, Any] = {"revision": revision} if revision else {}
    quantized: dict[str, Any] = {}
    if source.endswith(".gguf"):
        where["gguf_file"] = Path(source).name
        quantized["quantization_config"] = GgufConfig(dequantize=True)
        source = str(Path(source).parent)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **where)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), **where, **quantized
        )
    except OSError as error:
        raise ValueError(f"cannot load a model from {source}: {error}") from error
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if not tokenizer.chat_template:
        raise ValueError(
            f"the tokenizer of {source} has no chat template; name a Jinja file with "
            "model.chat_template"
        )
    tokenizer.save_pretrained(output)
    save_model(model, output)
    return {"parameters": model.num_parameters(), "vocabulary": len(tokenizer)}
