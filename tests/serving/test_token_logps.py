"""The log-probabilities of `temper serve`: the bytes of their tokens are the answer's text."""

import math
from contextlib import suppress
from typing import Any, cast

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from steps.serving.openai_app import completion_logprobs
from steps.serving.openai_requests import CompletionAsked
from steps.serving.replies import Enough, Hear, Pieces, Speaker
from steps.serving.served_answers import Piece, joined, write_answers


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
    words = ["<s>", "<unk>", "▁", "▁a", *"helowrd", *(f"<0x{byte:02X}>" for byte in range(256))]
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
    """Writes the tokens of a text, with a random model that finds `<s>` impossible."""

    has_template = False

    def __init__(self, tokenizer: Any, says: str) -> None:
        self.tokenizer, self.says = tokenizer, tokenizer(says).input_ids[1:]
        torch.manual_seed(0)
        shape: Any = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=1, **shape)
        self.model = LlamaForCausalLM(config)

    def logits_of(self, ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0]
        return logits.index_fill(1, torch.tensor([0]), -math.inf)

    def write(self, ids: list[int], drawing: Any, hear: Hear, continues: bool) -> bool:
        pieces, drawn = Pieces(self.tokenizer, ids if continues else ()), list[int]()
        with suppress(Enough):
            for token in self.says:
                logits = self.logits_of([*ids, *drawn])[-1]
                drawn.append(token)
                hear(pieces.add(token), (token, logits))
            hear(pieces.end(), None)
        return False


def complete(speaker: Reciting, prompt: str | list[int], **fields: Any) -> tuple[Piece, Any]:
    """An answer and its log-probabilities."""
    asked = CompletionAsked(**{"model": "model", "prompt": prompt, "logprobs": 20, **fields})
    tokens: Any = speaker.tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt
    pieces: list[Piece] = []
    write_answers(cast(Speaker, speaker), [tokens], asked, pieces.append)
    whole = joined(pieces)
    return whole, completion_logprobs(whole, asked)


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("as_ids", [True, False])
def test_tokens_have_their_bytes_of_the_text_and_their_ids(kind: str, as_ids: bool) -> None:
    tokenizer = TOKENIZERS[kind]()
    text: Any = "hello wor\nld\n🎉 é wo"
    ids: Any = tokenizer(text).input_ids
    speaker = Reciting(tokenizer, "rld\n🎉 é hello")
    whole, logprobs = complete(speaker, ids if as_ids else text, echo=True)
    assert whole.text.startswith("<s>" if as_ids else "hello")
    said = whole.text.removeprefix("<s>")
    assert b"".join(token.share for token in whole.tokens).decode().lstrip() == said.lstrip()
    assert [token.id for token in whole.tokens] == [*ids, *speaker.says]
    assert list(whole.ids) == speaker.says
    assert logprobs["tokens"][0] == "<s>"
    assert [name for name in logprobs["tokens"] if name.startswith("bytes:")][:6] == [
        "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8e", "bytes:\\x89", "bytes:\\xc3", "bytes:\\xa9",
    ]  # fmt: skip
    for likeliest in logprobs["top_logprobs"][1:]:
        assert len(likeliest) >= 20  # names of their own, also of parts of characters


@pytest.mark.parametrize(
    ("stop", "said", "drawn"),
    [("wor", "hello ", "hello wor"), ("h", "", "h"), (["x", "o w"], "hell", "hello w")],
)
def test_a_stop_text_cuts_the_text_and_every_token_is_named(
    stop: Any, said: str, drawn: str
) -> None:
    """As at vLLM, so whoever trains finds a log-probability for each of the ids."""
    whole, logprobs = complete(Reciting(byte_level(), "hello world"), "wo", stop=stop)
    assert (whole.text, whole.finish) == (said, "stop")
    assert "".join(logprobs["tokens"]).startswith(drawn)
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(whole.ids)


@pytest.mark.parametrize(
    ("before", "names", "expected"),
    [
        ("", "▁a <0xE4> <s> ▁a", "a|||\ufffd a|"),
        ("", "▁ ▁a <0x41> <0xC3> <0xA9> ▁a", "| a|A||é| a|"),
        ("", "▁a <0xC3> <0xE4>", "a|||\ufffd\ufffd"),
        ("<s> ▁a", "▁a <s> ▁a", " a|| a|"),
    ],
)
def test_pieces_are_the_text_of_all_tokens(before: str, names: str, expected: str) -> None:
    tokenizer = byte_fallback()
    context, ids = (
        [tokenizer.convert_tokens_to_ids(name) for name in some.split()] for some in (before, names)
    )
    pieces: Any = Pieces(tokenizer, context)  # type: ignore[arg-type]
    assert [*map(pieces.add, ids), pieces.end()] == expected.split("|")
