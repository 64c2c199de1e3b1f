"""The tokenizer of a model folder as metadata of a GGUF file.

GGUF contains no rules for splitting text, only the name of rules in llama.cpp (``ggml.pre``). So
only a byte-level BPE whose splitting rules have such a name can be written. The rules are compared
completely, because a wrong name would give other tokens without any warning.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType

from steps.data.tokens.encoding import LLAMA, QWEN, SPLIT
from steps.data.tokens.rendering import load_bare_tokenizer
from steps.export.gguf_kinds import require_byte_level

_GPT2 = {"type": "ByteLevel", "use_regex": True}
_BYTES = {"type": "ByteLevel", "use_regex": False}


def _split(pattern: str) -> list[Mapping[str, Any]]:
    return [SPLIT | {"pattern": {"Regex": pattern}}, _BYTES]


_RULES: Mapping[str, list[Mapping[str, Any]]] = {
    "gpt-2": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "llama-bpe": _split(LLAMA),
    "qwen2": _split(QWEN),
}
"""The splitting rules before BPE, in the format of ``tokenizer.json``, by llama.cpp's names."""


def add_tokenizer(writer: GGUFWriter, folder: Path, vocabulary: int) -> None:
    """Add the tokens, merges, special tokens and chat template of a folder.

    Args:
        vocabulary: the number of the model's tokens. Tokens that the tokenizer lacks are marked as
            unused.

    Raises:
        ValueError: the tokenizer is not of a supported kind, or has more tokens than the model.
    """
    tokenizer: Any = load_bare_tokenizer(folder)
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    rules = _name_of_rules(described)
    merges = [" ".join(pair) for pair in described["model"]["merges"]]
    ids = {number: token for token, number in tokenizer.get_vocab().items()}
    if max(ids) >= vocabulary:
        raise ValueError(f"token {max(ids)} is none of the model's {vocabulary}; resize the model")
    kinds = {
        token["id"]: TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        for token in described["added_tokens"]
    }
    numbers = range(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rules)
    writer.add_token_list([ids.get(number, f"[PAD{number}]") for number in numbers])
    writer.add_token_types(
        [kinds.get(n, TokenType.NORMAL if n in ids else TokenType.UNUSED) for n in numbers]
    )
    writer.add_token_merges(merges)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.eos_token_id is not None:
        writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    written = list(tokenizer("a")["input_ids"])
    writer.add_add_bos_token(bool(written) and written[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(bool(written) and written[-1] == tokenizer.eos_token_id)
    writer.add_add_space_prefix(False)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _name_of_rules(described: Mapping[str, Any]) -> str:
    """llama.cpp's name of the rules by which a tokenizer splits text.

    Raises:
        ValueError: the rules have no known name.
    """
    model, normalizer = described["model"], described["normalizer"]
    splits = described["pre_tokenizer"] or {"type": "none"}
    require_byte_level(model)
    if model.get("unk_token"):
        raise ValueError(
            "a tokenizer with an unknown token is not written as GGUF: only byte-level BPE"
        )
    if not model["merges"]:  # GGUF has no empty lists, and llama.cpp reads no BPE without merges
        raise ValueError("a tokenizer without merges is not written as GGUF: nothing reads it")
    if normalizer is not None and normalizer["type"] != "NFC":
        raise ValueError(f"a tokenizer that normalises text ({normalizer['type']}) is not written "
                         "as GGUF: llama.cpp would not")  # fmt: skip
    found: Any = splits["pretokenizers"] if splits["type"] == "Sequence" else [splits]
    # only llama-bpe keeps a word that is a token without merging its parts
    names = ["llama-bpe"] if model.get("ignore_merges") else [n for n in _RULES if n != "llama-bpe"]
    for name in names:
        if len(found) == len(_RULES[name]) and all(map(_is, found, _RULES[name])):
            return name
    raise ValueError(f"llama.cpp has no name that is known here for how the tokenizer splits text "
                     f"({json.dumps(splits)[:200]}); named are {', '.join(_RULES)}")  # fmt: skip


def _is(found: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    """Whether a rule equals a known rule in everything that affects where text is split."""
    same = all(found.get(name) == value for name, value in rule.items())
    return same and not found.get("add_prefix_space", False)
