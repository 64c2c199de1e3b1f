"""Models as folders: how one is read, and how one is written: equal weights give equal bytes.

The bytes of a written folder follow from the weights, the config and the installed version of
transformers (which signs config.json); no path and no time goes into them.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from steps.training.config import Dtype

_TOKENIZER_FILES = (
    "tokenizer*",
    "chat_template*",
    "additional_chat_templates/*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)


def load_model(path: Path | str, dtype: Dtype = Dtype.float32) -> PreTrainedModel:
    """The causal language model of a Hugging Face folder, on the GPU if there is one.

    Attention is SDPA, or the eager one where attention scores are soft-capped (Gemma 2), which SDPA
    cannot do. Raises FileNotFoundError for a folder that is missing or has no config.json.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        fault = "has no config.json" if folder.is_dir() else "does not exist"
        raise FileNotFoundError(f"model folder {folder} {fault}; import the model into it first")
    config = AutoConfig.from_pretrained(folder)
    soft_capped = getattr(config, "attn_logit_softcapping", None) is not None
    with _without_progress_bars():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation="eager" if soft_capped else "sdpa",
            local_files_only=True,
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return model.to(device)  # pyright: ignore[reportArgumentType]


def save_model(
    model: PreTrainedModel, path: Path | str, tokenizer_from: Path | str | None = None
) -> None:
    """Writes a Hugging Face folder: safetensors, configs, another folder's tokenizer files.

    Tied weights are stored once. Tokenizer files are copied as they are, chat template included.
    """
    folder = Path(path)
    with _without_progress_bars():
        model.save_pretrained(folder)
    if tokenizer_from is None:
        return
    source = Path(tokenizer_from)
    for file in {file for pattern in _TOKENIZER_FILES for file in source.glob(pattern)}:
        copy = folder / file.relative_to(source)
        if file.is_file():
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(file, copy)


def vocabulary_size(model: PreTrainedModel) -> int:
    """How many token ids the model can read."""
    return cast(torch.nn.Embedding, model.get_input_embeddings()).num_embeddings


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Dropout off inside the block; the model's mode is as before after it."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
