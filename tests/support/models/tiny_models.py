"""Tiny random models and token records, built from configs alone, for the training tests."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from steps.data.rows.jsonl import read_json_lines
from steps.data.rows.parquet import write_rows

VOCABULARY = 64  # more than the 50 likeliest tokens that `generate` keeps by default
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "initializer_range": 0.3,
}


def llama(
    dropout: float = 0.0,
    tied: bool = True,
    intermediate: int = 32,
    positions: int = 2048,
    layers: int = SIZES["num_hidden_layers"],
) -> PreTrainedModel:
    sizes: dict[str, Any] = {**SIZES, "intermediate_size": intermediate}
    sizes |= {"max_position_embeddings": positions, "num_hidden_layers": layers}
    config = LlamaConfig(**sizes, attention_dropout=dropout, tie_word_embeddings=tied)
    return LlamaForCausalLM(config)


def shallow() -> PreTrainedModel:
    """Of one layer, for what happens around a model: how it reads needs a second layer, where other
    tokens' hidden states count, too."""
    return llama(layers=1)


def uneven() -> PreTrainedModel:
    """Of some matrices, two ranks cannot have equally many rows."""
    return llama(intermediate=31)


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=2,
            n_head=4,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
            initializer_range=0.3,
        )
    )


def gemma2() -> PreTrainedModel:
    """Soft-caps attention scores and logits, and slides its window, tightly enough to matter."""
    config = Gemma2Config(
        **SIZES,
        head_dim=4,
        query_pre_attn_scalar=4,
        sliding_window=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    )
    return Gemma2ForCausalLM(config)


def granite() -> PreTrainedModel:
    config = GraniteConfig(
        **SIZES, logits_scaling=4.0, embedding_multiplier=3.0, residual_multiplier=0.5
    )
    return GraniteForCausalLM(config)


ARCHITECTURES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "gpt2": gpt2,
    "gemma2": gemma2,
    "granite": granite,
}


def model_folder(path: Path, build: Callable[[], PreTrainedModel] = shallow, seed: int = 0) -> Path:
    """A model with random weights, saved as the folder a step would be given."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        build().save_pretrained(path)
    return path


def pair_records(count: int, seed: int = 0) -> list[dict]:
    """Rows of a tokens artifact, of many lengths; the i-th has the row label `data:i`."""
    draw = random.Random(seed)
    records = []
    for i in range(count):
        prompt, chosen, rejected = (_ids(draw, shortest) for shortest in (2, 1, 1))
        digest = hashlib.sha256(repr((prompt, chosen, rejected)).encode()).hexdigest()
        records.append(
            {
                "row": f"data:{i}",
                "pair_id": digest[:16],
                "prompt_ids": prompt,
                "chosen_ids": chosen,
                "rejected_ids": rejected,
            }
        )
    return records


def unpaired_records(pairs: list[dict], every: int = 3) -> list[dict]:
    """The chosen response of each pair, labelled good; of every so many pairs the first one's
    rejected response, labelled bad."""
    return [
        {
            "row": pair["row"],
            "completion_id": pair["pair_id"],
            "prompt_ids": pair["prompt_ids"],
            "completion_ids": pair["chosen_ids" if i % every else "rejected_ids"],
            "label": bool(i % every),
        }
        for i, pair in enumerate(pairs)
    ]


def demonstration_records(count: int, seed: int = 0) -> list[dict]:
    draw = random.Random(seed)
    return [
        {"row": f"data:{i}", "prompt_ids": _ids(draw, 2), "response_ids": _ids(draw, 1)}
        for i in range(count)
    ]


def token_files(folder: Path, schema: pa.Schema, records: list[dict[str, Any]]) -> Path:
    """Token files as the tokenising steps write them, all of every response scored."""
    for record in records:
        for name in [name for name in record if name.endswith("_ids")]:
            record[name.replace("_ids", "_mask")] = [name != "prompt_ids"] * len(record[name])
        record |= {name: None for name in schema.names if name not in record}
        for field in schema:
            if record[field.name] is None and not field.nullable:
                record[field.name] = [] if pa.types.is_list(field.type) else 0
    write_rows(folder / "tokens-00000.parquet", schema, records)
    return folder


SPECIAL = ["<user>", "<assistant>", "<end>", "<tool>"]
_TEMPLATE = (
    "{% for tool in tools or [] %}<tool> {{ tool.function.name }} {% endfor %}{{ style or '' }}"
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def word_tokenizer(backwards: bool = False) -> PreTrainedTokenizerFast:
    """Words `w0`, `w1` and so on, or the other way round, and a chat template."""
    words = [f"w{i}" for i in range(VOCABULARY - len(SPECIAL))]
    words = SPECIAL + (words[::-1] if backwards else words)
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="w0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<end>",
        additional_special_tokens=SPECIAL,
        chat_template=_TEMPLATE,
    )


def log_of(folder: Path) -> list[dict[str, Any]]:
    """The metrics that a run has written into its folder, a record for each step."""
    return read_json_lines(folder / "metrics.jsonl")


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _ids(draw: random.Random, shortest: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(draw.randint(shortest, 12))]
