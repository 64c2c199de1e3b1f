"""The log-probabilities of `temper serve`: their tokens lie where they say in the answer's text."""

import json
import math
from contextlib import suppress
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from steps.serving.openai_app import completion_logprobs
from steps.serving.openai_requests import CompletionAsked
from steps.serving.replies import Enough, OnPiece, Speaker, Written
from steps.serving.served_answers import Piece, write_answers
from steps.serving.token_texts import Pieces


def byte_level() -> PreTrainedTokenizerFast:
    """Like GPT-2's, with a first token `<s>`."""
    words = ["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "Ġw"]
    bare = Tokenizer(
        models.BPE({word: at for at, word in enumerate(words)}, [("h", "e"), ("Ġ", "w")])
    )
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    bare.decoder = decoders.ByteLevel()  # pyright: ignore
    return _beginning(bare)


def byte_fallback() -> PreTrainedTokenizerFast:
    """Like Llama 2's, with a first token `<s>`."""
    words = ["<s>", "<unk>", "▁", *"helowrd", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: at for at, word in enumerate(words)}
    bare = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    bare.pre_tokenizer = pre_tokenizers.Metaspace()  # pyright: ignore
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    bare.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])  # pyright: ignore
    return _beginning(bare)


def _beginning(bare: Tokenizer) -> PreTrainedTokenizerFast:
    bare.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])  # pyright: ignore
    return PreTrainedTokenizerFast(tokenizer_object=bare, bos_token="<s>")


TOKENIZERS = {"byte level": byte_level, "byte fallback": byte_fallback}


class Reciting:
    """Writes the tokens of a text, with a random model.

    Attributes:
        logits: of the first tokens, whatever the model says.
    """

    has_template = False

    def __init__(self, tokenizer: Any, says: str = "", logits: tuple[float, ...] = ()) -> None:
        self.tokenizer, self.says = tokenizer, tokenizer(says).input_ids[1:] if says else []
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(config)

        def replace(head: Any, read: Any, found: torch.Tensor) -> torch.Tensor:
            found[..., : len(logits)] = torch.tensor(logits)
            return found

        self.model.lm_head.register_forward_hook(replace)

    def logits_of(self, ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]

    def write(
        self, ids: list[int], drawing: Any, on_piece: OnPiece, on_token: Any, continues: bool
    ) -> Written:
        pieces, drawn = Pieces(self.tokenizer, ids if continues else ()), list[int]()
        with suppress(Enough):
            for token in self.says:
                on_token(token, self.logits_of([*ids, *drawn])[-1])
                drawn.append(token)
                on_piece(pieces.add(token))
            on_piece(pieces.end())
        return Written("", drawn, ended=False)


def complete(speaker: Reciting, prompt: str | list[int], **fields: Any) -> tuple[str, Any]:
    """The text of an answer and its log-probabilities."""
    given = {"model": "model", "prompt": prompt, "logprobs": 3, "echo": True, **fields}
    asked = CompletionAsked(**given)
    tokens: Any = speaker.tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt
    pieces: list[Piece] = []
    write_answers(cast(Speaker, speaker), [tokens], asked, pieces.append, lambda: False)
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    return whole.text, completion_logprobs(whole, asked)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("as_ids", [True, False])
def test_each_token_is_where_it_says_in_the_text(kind: str, as_ids: bool) -> None:
    tokenizer = TOKENIZERS[kind]()
    prompt: Any = "hello wor\nld\n🎉 é wo"
    speaker = Reciting(tokenizer, "rld\n🎉 é hello")
    if as_ids:
        prompt = tokenizer(prompt).input_ids
    text, logprobs = complete(speaker, prompt)
    assert text.endswith("é hello")
    assert text.startswith("<s>" if as_ids else "hello")
    assert logprobs["tokens"][0] == "<s>"
    whole = ""
    found = list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))
    for token, offset in found[not as_ids :]:
        if token.startswith("bytes:"):
            assert text[offset] in "🎉é"
        else:
            assert text[offset:].startswith(token)
            whole += token
    assert whole == text.replace("🎉", "").replace("é", "")
    assert [token for token, _ in found if token.startswith("bytes:")][:6] == [
        "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8e", "bytes:\\x89", "bytes:\\xc3", "bytes:\\xa9",
    ]  # fmt: skip
    _, plain = complete(speaker, prompt, echo=False)
    count = len(speaker.says)
    assert plain["tokens"] == logprobs["tokens"][-count:]
    assert plain["text_offset"] == logprobs["text_offset"][-count:]


def test_bytes_that_are_no_text_leave_the_later_tokens_in_place() -> None:
    tokenizer = byte_level()
    names = ["<s>", "h", "ð", "w", "ð", "<s>", "e"]
    ids: Any = [tokenizer.convert_tokens_to_ids(name) for name in names]
    text, logprobs = complete(Reciting(tokenizer), ids, max_tokens=0)
    assert text == "<s>h\ufffdw\ufffd<s>e"
    assert logprobs["tokens"] == ["<s>", "h", "bytes:\\xf0", "w", "bytes:\\xf0", "<s>", "e"]
    assert logprobs["text_offset"] == [0, 3, 4, 5, 6, 7, 10]


def test_parts_of_characters_have_names_of_their_own_among_the_likeliest() -> None:
    _, logprobs = complete(Reciting(byte_level()), "hello 🎉", max_tokens=0, logprobs=20)
    for likeliest in logprobs["top_logprobs"][1:]:
        assert len(likeliest) >= 20


@pytest.mark.parametrize("echo", [True, False])
def test_a_stop_text_cuts_text_and_tokens(echo: bool) -> None:
    speaker = Reciting(byte_level(), "hello world")
    text, logprobs = complete(speaker, "wo", echo=echo, stop="wor")
    assert text == ("wohello " if echo else "hello ")
    assert "".join(logprobs["tokens"][echo:]) == text + "w"  # one token: the space and the w
    assert {len(values) for values in logprobs.values()} == {len(logprobs["tokens"])}
    text, logprobs = complete(speaker, "wo", echo=echo, stop="h")
    assert logprobs["tokens"] == (["<s>", "w", "o"] if echo else [])


def test_what_cannot_be_is_a_number_of_json_and_a_broken_model_is_told() -> None:
    tokenizer = byte_level()
    speaker = Reciting(tokenizer, logits=(-math.inf,))
    _, logprobs = complete(speaker, [5, 0, 6], max_tokens=0)
    json.dumps(logprobs, allow_nan=False)
    assert logprobs["token_logprobs"][1] == logprobs["top_logprobs"][1]["<s>"] == -9999
    with pytest.raises(FloatingPointError, match="logits are not numbers"):
        complete(Reciting(tokenizer, logits=(math.nan,)), [5, 6], max_tokens=0)
