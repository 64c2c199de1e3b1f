"""The tokenizer of a model folder as metadata of a GGUF file.

GGUF contains no rules for splitting text, only the name of rules in llama.cpp (``ggml.pre``). So
only a byte-level BPE whose splitting rules have such a name can be written. The rules are compared
completely, because a wrong name would give other tokens without any warning.

llama.cpp ends a completion at the tokens ``eos``, ``eot`` and ``eom`` of the metadata, and at
tokens whose texts it knows, such as ``<|im_end|>`` (``special_eog_ids`` in
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, Keys, TokenType
from transformers import GenerationConfig

from steps.data.rows.reasons import MalformedRow
from steps.data.tokens.encoding import LLAMA, QWEN, SPLIT
from steps.data.tokens.rendering import Chat, chat_format, load_bare_tokenizer, render
from steps.export.gguf_kinds import require_byte_level
from steps.generation.sampling import as_list

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
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    _add_ends(writer, tokenizer, folder)
    written = list(tokenizer("a")["input_ids"])
    begins = bool(written) and written[0] == tokenizer.bos_token_id
    writer.add_add_bos_token(begins and _chats_begin_with_bos(tokenizer))
    writer.add_add_eos_token(bool(written) and written[-1] == tokenizer.eos_token_id)
    writer.add_add_space_prefix(False)
    _add_templates(writer, tokenizer)


def _add_ends(writer: GGUFWriter, tokenizer: Any, folder: Path) -> None:
    """Add the tokens that end a completion: the end of sequence; the end of an answer in the chat
    template, which training on chats teaches; and one more that the generation config names."""
    ends = [tokenizer.eos_token_id]
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.chat_template:
        last = tokenizer.get_vocab().get(chat_format(tokenizer).last)
        if last is not None:
            writer.add_eot_token_id(last)
            ends.append(last)
    if (folder / "generation_config.json").is_file():
        named = as_list(GenerationConfig.from_pretrained(folder).eos_token_id)
        if others := [end for end in named if end not in ends]:
            writer.add_eom_token_id(others[0])


def _chats_begin_with_bos(tokenizer: Any) -> bool:
    """Whether a chat has the BOS that the tokenizer adds to other texts. Training encodes what the
    template writes and adds nothing; llama.cpp adds a BOS to chats too, if it adds one at all."""
    if not tokenizer.chat_template:
        return True
    try:
        text = render(chat_format(tokenizer), Chat(({"role": "user", "content": "a"},)))
    except MalformedRow:
        return True
    return text.startswith(tokenizer.bos_token)


def _add_templates(writer: GGUFWriter, tokenizer: Any) -> None:
    templates = tokenizer.chat_template
    if not templates:
        return
    named = dict(templates) if isinstance(templates, Mapping) else {"default": templates}
    if tokenizer.bos_token is None:  # then llama.cpp takes token 11 for it, transformers no text
        named = {name: _WITHOUT_BOS + t if "bos_token" in t else t for name, t in named.items()}
    if "default" in named:
        writer.add_chat_template(named.pop("default"))
    for name, template in named.items():
        writer.add_string(Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name), template)
    if named:
        writer.add_array(Keys.Tokenizer.CHAT_TEMPLATES, sorted(named))


_WITHOUT_BOS = "{%- set bos_token = '' -%}"


def _name_of_rules(described: Mapping[str, Any]) -> str:
    """llama.cpp's name of the rules by which a tokenizer splits text.

    Raises:
        ValueError: the rules have no known name.
    """
    model, normalizer = described["model"], described["normalizer"]
    splits = described["pre_tokenizer"] or {"type": "none"}
    require_byte_level(model)
    for token in described["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise ValueError(
                f"a tokenizer whose token {token['content']} takes white space with it, or matches "
                "whole words only, is not written as GGUF: llama.cpp would not"
            )
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
