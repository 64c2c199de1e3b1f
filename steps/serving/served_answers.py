"""What a model answers to a request, while a thread lets it write.

The model answers one request at a time; others wait for their turn. If a client leaves, its answer
ends with the next token.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from steps.serving.openai_requests import Asked, CompletionAsked
from steps.serving.replies import Enough, Speaker
from steps.serving.token_texts import Reader, Token, text_of

Told = TypeVar("Told")
Tell = Callable[[Told], None]
HasLeft = Callable[[], bool]
"""Whether nobody waits for the answer any more."""


class Turns:
    """Lets one thread use a model, for one request after the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "model")

    async def do(self, work: Callable[[], Told]) -> Told:
        """What `work` gives in its turn."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def each(self, work: Callable[[Tell[Told], HasLeft], None]) -> AsyncGenerator[Told]:
        """What `work` tells in its turn, as soon as it is told."""
        loop, left = asyncio.get_running_loop(), threading.Event()
        told: asyncio.Queue[tuple[Told] | None] = asyncio.Queue()

        def tell(item: tuple[Told] | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, item)

        def work_and_end() -> None:
            try:
                work(lambda item: tell((item,)), left.is_set)
            finally:
                tell(None)

        done = loop.run_in_executor(self._thread, work_and_end)
        try:
            while (item := await told.get()) is not None:
                yield item[0]
            await done
        finally:
            left.set()


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, or all of it.

    tokens: those of the text, if their log-probabilities are asked for.
    ids: of the tokens that were drawn.
    finish: why the answer ended, `stop` or `length`, if this is its end.
    """

    choice: int
    text: str
    tokens: Sequence[Token] = ()
    ids: Sequence[int] = ()
    finish: str | None = None

    def __add__(self, other: "Piece") -> "Piece":
        text, tokens = self.text + other.text, [*self.tokens, *other.tokens]
        return Piece(self.choice, text, tokens, [*self.ids, *other.ids], other.finish)


def write_answers(
    speaker: Speaker,
    prompts: Sequence[Sequence[int]],
    asked: Asked,
    tell: Tell[Piece],
    has_left: HasLeft,
) -> None:
    """Tell the pieces of all answers, `asked.n` for each prompt, one answer after the other."""
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    count = asked.n or 1
    for choice in range(len(prompts) * count):
        if not has_left():
            at = choice // count
            _write(speaker, prompts[at], asked, choice, at, seed + choice, tell, has_left)


def _write(
    speaker: Speaker,
    prompt: Sequence[int],
    asked: Asked,
    choice: int,
    at: int,
    seed: int,
    tell: Tell[Piece],
    has_left: HasLeft,
) -> None:
    top, start, before = asked.likeliest, 0, list[int]()
    if isinstance(asked, CompletionAsked):
        given, before = asked.prompts[at], list(prompt)
        echoed = given if isinstance(given, str) else text_of(speaker.tokenizer, given)
        start = len(echoed)
        if asked.echo:
            is_text = isinstance(given, str)
            tokens = [] if top is None else _read(speaker, prompt, start, not is_text, top)
            tell(Piece(choice, echoed, tokens))
    reader, until = Reader(speaker.tokenizer, before, start), _UntilStop(asked.stop or [])
    tokens, ids = list[Token](), list[int]()

    def tell_more(text: str, finish: str | None = None) -> None:
        is_whole = finish is not None and not until.found
        told = [t for t in tokens if is_whole or t.place < start + until.passed]
        del tokens[: len(told)]
        tell(Piece(choice, text, told, ids.copy(), finish))
        ids.clear()

    def on_token(token: int, logits: Tensor) -> None:
        ids.append(token)
        tokens.extend([] if top is None else [reader.read(token, logits, top)])

    def on_piece(text: str) -> None:
        if text := until.hear(text):
            tell_more(text)
        if until.found or has_left():
            raise Enough

    ended = False
    if asked.most_tokens:  # else the prompt is to be scored
        drawing, continues = asked.drawing(seed), bool(before)
        ended = speaker.write(prompt, drawing, on_piece, on_token, continues).ended
    if not has_left():
        tell_more(until.held, "stop" if until.found or ended else "length")


def _read(
    speaker: Speaker, prompt: Sequence[int], length: int, special: bool, top: int
) -> list[Token]:
    """The tokens of a prompt, the text of which has this length."""
    reader = Reader(speaker.tokenizer, special=special, length=length)
    rows = [None, *speaker.logits_of(prompt)]
    return [reader.read(token, row, top) for token, row in zip(prompt, rows, strict=False)]


class _UntilStop:
    """Passes text on up to a stop text, and holds back what may be the beginning of one.

    Attributes:
        passed: the length of all text that was passed on.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.found, self.passed = stops, "", False, 0

    def hear(self, text: str) -> str:
        text = self._up_to_stop(self.held + text)
        self.passed += len(text)
        return text

    def _up_to_stop(self, text: str) -> str:
        if places := [text.find(stop) for stop in self.stops if stop in text]:
            self.held, self.found = "", True
            return text[: min(places)]
        longest = max(map(len, self.stops), default=1) - 1
        ends = (text[at:] for at in range(max(0, len(text) - longest), len(text)))
        begins = (end for end in ends if any(stop.startswith(end) for stop in self.stops))
        self.held = next(begins, "")
        return text.removesuffix(self.held)
