"""What a model answers to a request, while a thread lets it write, with the names of its tokens.

The model answers one request at a time; others wait for their turn. If a client leaves, its answer
ends with the next token.
"""

import asyncio
import re
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from steps.generation.sampling import decoded
from steps.serving.openai_requests import Asked, CompletionAsked
from steps.serving.replies import Enough, Speaker

LEAST = -9999.0
"""Stands for the log-probability of an impossible token, as at OpenAI: JSON has no infinity."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BEFORE = 4
"""How many of the tokens before it may change a token's text."""

Told = TypeVar("Told")
Tell = Callable[[Told], None]


class Left(Exception):
    """Nobody waits for the answer any more."""


class Turns:
    """Lets one thread use a model, for one request after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")

    async def do(self, work: Callable[[], Told]) -> Told:
        """What `work` gives in its turn."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def each(self, work: Callable[[Tell[Told]], None]) -> AsyncGenerator[Told]:
        """What `work` tells in its turn, as soon as it is told; if nobody listens, that raises
        `Left`."""
        loop, left = asyncio.get_running_loop(), threading.Event()
        told: asyncio.Queue[Any] = asyncio.Queue()
        end = object()

        def tell(item: Any) -> None:
            if left.is_set():
                raise Left
            loop.call_soon_threadsafe(told.put_nowait, item)

        def work_and_end() -> None:
            try:
                with suppress(Left):
                    if not left.is_set():
                        work(tell)
            finally:
                loop.call_soon_threadsafe(told.put_nowait, end)

        done = loop.run_in_executor(self._thread, work_and_end)
        try:
            while (item := await told.get()) is not end:
                yield item
            await done
        finally:
            left.set()


@dataclass(frozen=True)
class Token:
    """A token in a text.

    share: its part of the text in UTF-8; that of a special token may be empty.
    logp: the model's log-probability at temperature 1; None for the first token of all.
    likeliest: the likeliest tokens in its place, without such tokens of their own.
    """

    id: int
    name: str
    share: bytes
    logp: float | None = None
    likeliest: Sequence["Token"] = ()


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, or all of it.

    tokens: those that were drawn, if their log-probabilities are asked for.
    ids: of the tokens that were drawn.
    finish: why the answer ended, `stop` or `length`, if this is its end.
    """

    choice: int
    text: str
    tokens: Sequence[Token] = ()
    ids: Sequence[int] = ()
    finish: str | None = None


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one answer as one."""
    tokens = [token for piece in pieces for token in piece.tokens]
    ids = [token for piece in pieces for token in piece.ids]
    text = "".join(piece.text for piece in pieces)
    return Piece(pieces[0].choice, text, tokens, ids, pieces[-1].finish)


def write_answers(
    speaker: Speaker, prompts: Sequence[list[int]], asked: Asked, tell: Tell[Piece]
) -> None:
    """Tell the pieces of all answers, `asked.n` for each prompt, one answer after the other."""
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    count = asked.n or 1
    for choice in range(len(prompts) * count):
        _write(speaker, prompts[choice // count], asked, choice, seed + choice, tell)


def _write(
    speaker: Speaker, prompt: list[int], asked: Asked, choice: int, seed: int, tell: Tell[Piece]
) -> None:
    tokenizer, top, seen = speaker.tokenizer, asked.likeliest, list[int]()
    if isinstance(asked, CompletionAsked):
        seen += prompt
        if asked.echo:
            given = asked.prompts[choice // (asked.n or 1)]
            text = given if isinstance(given, str) else decoded(tokenizer, given, special=True)
            tell(Piece(choice, text, [] if top is None else _scored(speaker, prompt, top)))
    stops = _Stops(asked.stop or [])

    def hear(text: str, drawn: tuple[int, Tensor] | None) -> None:
        ids, tokens = [drawn[0]] if drawn else [], list[Token]()
        if drawn and top is not None:
            tokens.append(_token(tokenizer, seen, *drawn, top))
            seen.append(drawn[0])
        tell(Piece(choice, stops.passed(text), tokens, ids))
        if stops.found:
            raise Enough

    ended = False
    if asked.most_tokens:  # else the prompt is to be scored
        continues = isinstance(asked, CompletionAsked)
        ended = speaker.write(prompt, asked.drawing(seed), hear, continues)
    tell(Piece(choice, stops.held, finish="stop" if stops.found or ended else "length"))


def _scored(speaker: Speaker, prompt: list[int], top: int) -> list[Token]:
    rows = [None, *speaker.logits_of(prompt)]
    return [
        _token(speaker.tokenizer, prompt[:at], token, rows[at], top)
        for at, token in enumerate(prompt)
    ]


def _token(
    tokenizer: PreTrainedTokenizerBase,
    before: Sequence[int],
    token: int,
    logits: Tensor | None,
    top: int,
) -> Token:
    """A token behind others, with as many of the likeliest in its place. `logits` are [V]."""

    def named(token: int, logp: float | None, likeliest: Sequence[Token] = ()) -> Token:
        share = _share(tokenizer, before[-_BEFORE:], token)
        said = share or decoded(tokenizer, [token], special=True).encode()
        try:
            name = said.decode()
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in said)
        return Token(token, name, share, logp, likeliest)

    if logits is None:
        return named(token, None)
    logps = logits.float().log_softmax(-1).clamp(min=LEAST)
    best = logps.topk(min(top, len(logps)))
    ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return named(token, logps[token].item(), [named(*one) for one in ranked])


def _share(tokenizer: PreTrainedTokenizerBase, before: Sequence[int], token: int) -> bytes:
    name = str(tokenizer.convert_ids_to_tokens(token))
    if byte := _BYTE.fullmatch(name):
        return bytes.fromhex(byte[1])
    if "\ufffd" in decoded(tokenizer, [token], special=True) and set(name) <= _BYTE_OF.keys():
        return bytes(_BYTE_OF[letter] for letter in name)  # a part of a character
    return decoded(tokenizer, [*before, token])[len(decoded(tokenizer, before)) :].encode()


class _Stops:
    """Passes text on up to a stop text, and holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.found = stops, "", False

    def passed(self, text: str) -> str:
        text = self.held + text
        places = [text.find(stop) for stop in self.stops if stop in text]
        self.found = bool(places)
        begins = (
            at for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in self.stops)
        )
        end = min(places) if places else next(begins, len(text))
        self.held = "" if self.found else text[end:]
        return text[:end]
