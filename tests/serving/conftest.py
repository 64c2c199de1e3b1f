"""A model that chats, of 200 thousand random weights, and a store in which one was trained."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from serving_steps import handed_over, tuned
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline import Store, adopt, run
from steps.data.rows.arithmetic import write_tokenizer
from steps.data.tokens.rendering import load_tokenizer
from steps.kinds import Model
from steps.models.folders import save_model


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    folder.mkdir()
    write_tokenizer(folder)
    tokenizer: Any = load_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=96,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_model(LlamaForCausalLM(config), folder)
    return folder


@pytest.fixture(scope="session")
def trained(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Holds the results ``tuned`` and ``export`` of a run."""
    store = Store(str(tmp_path_factory.mktemp("trained") / "store"))
    model = tuned(adopt(str(chat_model), Model))
    roots = {"tuned": model, "export": handed_over(model)}
    run(roots, store, console=Console(file=io.StringIO()))
    return store
