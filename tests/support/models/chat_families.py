"""Chat families as the tests know them: templates, small real tokenizers, and a slow reference.

The reference knows each family's format by itself, in Python and without the template: it says of
every character whether it is trained on, and of every token how many characters it holds, by what
the token is made of. It shares no code with what it judges.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parent / "templates"

SENTENCES = (
    "What is the capital of France? The capital of France is Paris, on the Seine.",
    "Please write a short note about the weather: it is sunny and warm today!\n\nThank you.",
    "def add(a, b):\n    return a + b\n\nprint(add(2, 40))  # 42",
    "Wie geht es dir? Es geht mir gut. Ça va très bien, merci. 東京は日本の首都です。",
    "user assistant system model think tool call name arguments parameters",
)

Message = Mapping[str, Any]
Piece = tuple[str, bool]
"""Text, and whether it is trained on."""


@dataclass(frozen=True)
class Case:
    """A conversation that ends with an assistant's message."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Family:
    """A tokenizer with its template, and how the reference writes a conversation.

    `refuses`: the cases that the family cannot do, and the reason for which they are dropped.
    """

    name: str
    tokenizer: PreTrainedTokenizerFast
    pieces: Callable[[Case, bool], Iterator[Piece]]
    refuses: Mapping[str, str]

    def characters(self, case: Case, every_turn: bool) -> tuple[str, list[bool]]:
        """The text, and for each of its characters whether it is trained on."""
        pieces = list(self.pieces(case, every_turn))
        text = "".join(text for text, _ in pieces)
        return text, [trained for text, trained in pieces for _ in text]

    def tokens(self, case: Case, every_turn: bool) -> tuple[list[int], list[bool], int]:
        """All ids, which are trained on, and how many are half in and half out."""
        text, trained = self.characters(case, every_turn)
        by_byte = [flag for c, flag in zip(text, trained, strict=True) for _ in c.encode()]
        data = text.encode()
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        mask, merged, at = [], 0, 0
        for token in ids:
            size = len(token_bytes(self.tokenizer, token))
            flags, held = by_byte[at : at + size], data[at : at + size]
            at += size
            mask.append(all(flags) or is_first_word(held, flags))
            merged += any(flags) and not all(flags)
        assert at == len(by_byte), "the reference lost its place in the text"
        return ids, mask, merged


def is_first_word(held: bytes, trained: Sequence[bool]) -> bool:
    """A token of white space that is not trained on, and then of words that are."""
    start = list(trained).index(True) if any(trained) else len(held)
    words = held[start:].decode(errors="replace")
    return not held[:start].strip() and all(trained[start:]) and bool(words.strip())


def token_bytes(tokenizer: PreTrainedTokenizerFast, token: int) -> bytes:
    """The bytes of text that a token stands for."""
    piece = tokenizer.convert_ids_to_tokens(token)
    assert isinstance(piece, str)
    if token in tokenizer.added_tokens_decoder:
        return piece.encode()
    if piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:-1], 16)])
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
        return bytes(BYTES[character] for character in piece)
    return piece.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = {chr(byte): byte for byte in printable}
    return stand_ins | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTES = _byte_alphabet()


# --- tokenizers ----------------------------------------------------------------------------------

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen cut text before merging."""


def byte_level(
    special: Sequence[str], plain: Sequence[str] = (), words: str | None = _WORDS
) -> Any:
    """A byte-level BPE, trained here; `plain` tokens are added without being special."""
    core = Tokenizer(models.BPE())
    if words is None:
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    else:
        core.normalizer = normalizers.NFC()  # pyright: ignore
        core.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore
            [
                pre_tokenizers.Split(Regex(words), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    core.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(SENTENCES, trainer)
    core.add_tokens(list(plain))
    return core


def sentence_piece(special: Sequence[str], metaspace: bool) -> Any:
    """A BPE over characters with spaces as ▁ and a fall back to bytes: Gemma's, or Mistral's."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    if metaspace:
        core.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)  # pyright: ignore
    else:
        core.normalizer = normalizers.Replace(" ", "▁")  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *special], show_progress=False
    )
    words = [word for sentence in SENTENCES for word in sentence.replace(" ", " \0").split("\0")]
    core.train_from_iterator(words, trainer)
    data = json.loads(core.to_str())
    vocabulary = data["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    data["model"]["byte_fallback"] = True
    core = Tokenizer.from_str(json.dumps(data))
    core.decoder = decoders.Sequence(  # pyright: ignore
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return core


def with_template(core: Any, name: str, eos: str, bos: str | None = None) -> Any:
    template = (TEMPLATES / f"{name}.jinja").read_text().removesuffix("\n")
    return with_core(core, template, eos, bos)


def with_core(core: Any, template: str, eos: str, bos: str | None = None) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=eos,
        bos_token=bos,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


# --- the reference -------------------------------------------------------------------------------


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def wanted(case: Case, every_turn: bool) -> list[bool]:
    """For each message, whether it is to be trained on."""
    last = len(case.messages) - 1
    return [
        message["role"] == "assistant" and (every_turn or index == last)
        for index, message in enumerate(case.messages)
    ]


def chatml(case: Case, every_turn: bool) -> Iterator[Piece]:
    for message, trained in zip(case.messages, wanted(case, every_turn), strict=True):
        yield f"<|im_start|>{message['role']}\n", False
        yield f"{message['content']}<|im_end|>", trained
        yield "\n", False


def smollm2(case: Case, every_turn: bool) -> Iterator[Piece]:
    if case.messages[0]["role"] != "system":
        system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
        yield f"<|im_start|>system\n{system}<|im_end|>\n", False
    yield from chatml(case, every_turn)


def llama3(case: Case, every_turn: bool) -> Iterator[Piece]:
    def head(role: str) -> Piece:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n", False

    yield "<|begin_of_text|>", False
    yield head("system")
    turns = list(zip(case.messages, wanted(case, every_turn), strict=True))
    system = turns.pop(0)[0]["content"].strip() if turns[0][0]["role"] == "system" else ""
    yield "Environment: ipython\n" if case.tools else "", False
    date = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
    yield f"{date}{system}<|eot_id|>", False
    for index, (message, trained) in enumerate(turns):
        yield head("ipython" if message["role"] == "tool" else message["role"])
        if index == 0 and case.tools:
            yield "".join(f"{dumps(tool, 4)}\n\n" for tool in case.tools), False
        text = message["content"].strip()
        if message.get("tool_calls"):
            call = message["tool_calls"][0]["function"]
            text = f'{{"name": "{call["name"]}", "parameters": {dumps(call["arguments"])}}}'
        yield f"{text}<|eot_id|>", trained


def qwen_calls(message: Message, after_text: bool) -> str:
    calls = []
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"]["name"], dumps(call["function"]["arguments"])
        body = f'{{"name": "{name}", "arguments": {arguments}}}'
        calls.append(f"<tool_call>\n{body}\n</tool_call>")
    return ("\n" if calls and after_text else "") + "\n".join(calls)


def qwen_tool_result(messages: Sequence[Message], index: int) -> Piece:
    def is_tool(position: int) -> bool:
        return position < len(messages) and messages[position]["role"] == "tool"

    start = "" if is_tool(index - 1) else "<|im_start|>user"
    end = "" if is_tool(index + 1) else "<|im_end|>\n"
    return f"{start}\n<tool_response>\n{messages[index]['content']}\n</tool_response>{end}", False


def qwen2_5(case: Case, every_turn: bool) -> Iterator[Piece]:
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    turns = list(zip(case.messages, wanted(case, every_turn), strict=True))
    if turns[0][0]["role"] == "system":
        system = turns.pop(0)[0]["content"]
    yield f"<|im_start|>system\n{system}", False
    if case.tools:
        listed = "".join(f"\n{dumps(tool)}" for tool in case.tools)
        yield f"\n\n# Tools\n\n<tools>{listed}\n</tools>", False
    yield "<|im_end|>\n", False
    messages = [message for message, _ in turns]
    for index, (message, trained) in enumerate(turns):
        if message["role"] == "tool":
            yield qwen_tool_result(messages, index)
            continue
        yield f"<|im_start|>{message['role']}\n", False
        calls = qwen_calls(message, after_text=bool(message["content"]))
        yield f"{message['content']}{calls}<|im_end|>", trained
        yield "\n", False


def qwen3(case: Case, every_turn: bool) -> Iterator[Piece]:
    turns = list(zip(case.messages, wanted(case, every_turn), strict=True))
    system = turns.pop(0)[0]["content"] if turns[0][0]["role"] == "system" else None
    if case.tools:
        listed = "".join(f"\n{dumps(tool)}" for tool in case.tools)
        before = f"{system}\n\n" if system is not None else ""
        yield f"<|im_start|>system\n{before}# Tools\n\n<tools>{listed}\n</tools><|im_end|>\n", False
    elif system is not None:
        yield f"<|im_start|>system\n{system}<|im_end|>\n", False
    messages = [message for message, _ in turns]
    question = max(i for i, message in enumerate(messages) if message["role"] == "user")
    for index, (message, trained) in enumerate(turns):
        if message["role"] == "tool":
            yield qwen_tool_result(messages, index)
            continue
        yield f"<|im_start|>{message['role']}\n", False
        content, reasoning = message["content"], message.get("reasoning_content", "")
        if message["role"] == "assistant":
            if not reasoning and "</think>" in content:
                reasoning = content[: content.index("</think>")].rstrip("\n")
                reasoning = reasoning[reasoning.rfind("<think>") + 7 :].lstrip("\n")
                content = content[content.rindex("</think>") + 8 :].lstrip("\n")
            last = index == len(turns) - 1
            if index > question and (last or reasoning):
                off = (case.template_kwargs or {}).get("enable_thinking") is False
                yield f"<think>\n{reasoning.strip(chr(10))}\n</think>\n\n", trained and not off
                content = content.lstrip("\n")
        yield f"{content}{qwen_calls(message, after_text=bool(content))}<|im_end|>", trained
        yield "\n", False


def gemma(case: Case, every_turn: bool) -> Iterator[Piece]:
    yield "<bos>", False
    for message, trained in zip(case.messages, wanted(case, every_turn), strict=True):
        role = "model" if message["role"] == "assistant" else message["role"]
        yield f"<start_of_turn>{role}\n", False
        yield f"{message['content'].strip()}<end_of_turn>", trained
        yield "\n", False


def mistral(case: Case, every_turn: bool) -> Iterator[Piece]:
    yield "<s>", False
    turns = list(zip(case.messages, wanted(case, every_turn), strict=True))
    question = max(i for i, (message, _) in enumerate(turns) if message["role"] == "user")
    for index, (message, trained) in enumerate(turns):
        text = message["content"]
        if message["role"] == "user":
            if case.tools and index == question:
                yield f"[AVAILABLE_TOOLS] {dumps(list(case.tools))}[/AVAILABLE_TOOLS]", False
            yield f"[INST] {text}[/INST]", False
        elif message["role"] == "tool":
            yield f'[TOOL_RESULTS] {{"content": {dumps(text)}}}[/TOOL_RESULTS]', False
        elif message.get("tool_calls"):
            calls = ", ".join(dumps(call["function"]) for call in message["tool_calls"])
            yield f"[TOOL_CALLS] [{calls}]</s>", trained
        else:
            yield f" {text}</s>", trained


NOT_FOUND = "assistant turn not found in the rendered text"
NO_CALLS = {"a call last": NOT_FOUND, "tools, all_turns": NOT_FOUND}


@cache
def families() -> dict[str, Family]:
    turn = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    headers = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
               "<|eot_id|>"]  # fmt: skip
    qwen = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    instruct = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
                "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]  # fmt: skip
    gemma_turns = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
    smol = byte_level(turn, words=None)
    return {
        name: Family(name, tokenizer, pieces, refuses)
        for name, tokenizer, pieces, refuses in (
            ("chatml", with_template(smol, "chatml", "<|im_end|>"), chatml, NO_CALLS),
            ("smollm2", with_template(smol, "smollm2", "<|im_end|>"), smollm2, NO_CALLS),
            (
                "chatml_generation",
                with_template(smol, "chatml_generation", "<|im_end|>"),
                chatml,
                NO_CALLS,
            ),
            (
                "llama3",
                with_template(byte_level(headers), "llama3", "<|eot_id|>", "<|begin_of_text|>"),
                llama3,
                {},
            ),
            (
                "qwen2_5",
                with_template(byte_level(turn, qwen[:2]), "qwen2_5", "<|im_end|>"),
                qwen2_5,
                {},
            ),
            ("qwen3", with_template(byte_level(turn, qwen), "qwen3", "<|im_end|>"), qwen3, {}),
            (
                "gemma",
                with_template(sentence_piece(gemma_turns, False), "gemma", "<eos>", "<bos>"),
                gemma,
                {
                    "system": "template refuses the conversation",
                    "tools": "template refuses the conversation",
                    "a call last": NOT_FOUND,
                },
            ),
            (
                "mistral",
                with_template(sentence_piece(instruct, True), "mistral", "</s>", "<s>"),
                mistral,
                {"system": "template does not extend the prompt"},
            ),
        )
    }
