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
from typing import Any

from steps.serving.openai_requests import Asked, Prompt
from steps.serving.replies import Enough, Speaker, Written
from steps.serving.token_logps import logprobs_of, text_of


@dataclass(frozen=True)
class Piece:
    """A piece of an answer. The last one says why the answer ended (`stop` or `length`), how many
    tokens it has, and their log-probabilities if they are asked for."""

    choice: int
    text: str
    finish: str | None = None
    tokens: int = 0
    logprobs: dict[str, Any] | None = None


class Answers:
    """Lets one model answer the requests of many clients."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self._writing = ThreadPoolExecutor(1, "writing")
        self._reading = ThreadPoolExecutor(1, "reading")

    async def read(self, prompts: Callable[[], list[list[int]]], asked: Asked) -> list[list[int]]:
        """The tokens of prompts, each of which leaves room for an answer.

        Raises ValueError if one cannot be answered.
        """
        read = await asyncio.get_running_loop().run_in_executor(self._reading, prompts)
        for ids in read:
            self.speaker.room_after(ids, min(1, asked.most_tokens))
        return read

    async def write(self, prompts: Sequence[Sequence[int]], asked: Asked) -> AsyncGenerator[Piece]:
        """The pieces of all answers, `asked.n` for each prompt, one answer after the other."""
        loop = asyncio.get_running_loop()
        told: asyncio.Queue[Piece | None] = asyncio.Queue()
        left = threading.Event()

        def tell(piece: Piece | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, piece)

        def write_all() -> None:
            try:
                self._write_all(prompts, asked, tell, left)
            finally:
                tell(None)

        written = loop.run_in_executor(self._writing, write_all)
        try:
            while (piece := await told.get()) is not None:
                yield piece
            await written
        finally:
            left.set()

    def _write_all(
        self,
        prompts: Sequence[Sequence[int]],
        asked: Asked,
        tell: Callable[[Piece], None],
        left: threading.Event,
    ) -> None:
        seed = secrets.randbits(32) if asked.seed is None else asked.seed
        count = asked.n or 1
        for choice in range(len(prompts) * count):
            if left.is_set():
                return
            echoed = asked.echoed[choice // count] if asked.echoed else None
            if echoed is not None:
                known = isinstance(echoed, str)
                tell(Piece(choice, echoed if known else text_of(self.speaker, echoed)))
            until = _UntilStop(asked.stop or [])

            def hear(text: str, choice: int = choice, until: _UntilStop = until) -> None:
                if text := until.hear(text):
                    tell(Piece(choice, text))
                if until.found or left.is_set():
                    raise Enough

            prompt = prompts[choice // count]
            written = self._write(prompt, asked, seed + choice, hear)
            finish = "stop" if until.found or written.ended else "length"
            if left.is_set():
                return
            cut = until.passed if until.found else None
            logprobs = self._logprobs(prompt, written, asked, echoed, cut)
            tell(Piece(choice, until.held, finish, len(written.ids), logprobs))

    def _write(
        self, prompt: Sequence[int], asked: Asked, seed: int, hear: Callable[[str], None]
    ) -> Written:
        if asked.most_tokens == 0:  # the prompt is to be scored
            return Written("", [], ended=False)
        return self.speaker.write(prompt, asked.drawing(seed), hear, asked.continues)

    def _logprobs(
        self,
        prompt: Sequence[int],
        written: Written,
        asked: Asked,
        echoed: Prompt | None,
        cut: int | None,
    ) -> dict[str, Any] | None:
        if asked.likeliest is None:
            return None
        return logprobs_of(self.speaker, prompt, written.ids, asked.likeliest, echoed, cut)


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
