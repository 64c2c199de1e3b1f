"""A speaker without a model, whose answers go on until nobody reads them."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from steps.data.rows.rows import Message
from steps.generation.config import SamplingConfig
from steps.serving.replies import Enough, Hear

GO_ON, FAIL = "go on", "fail"
"""Questions: the answer to one has no end, the answer to the other fails after a piece."""


class HeldSpeaker:
    """Answers any other question with the question.

    Attributes:
        read: the questions that it has read.
    """

    has_template = True
    tokenizer: Any = None

    def __init__(self, *_: Any, **settings: Any) -> None:
        self.read: list[str] = []

    def prompt_of(self, messages: Sequence[Message]) -> list[int]:
        return self.tokens_of(messages[-1]["content"])

    def tokens_of(self, text: str) -> list[int]:
        self.read.append(text)
        return list(text.encode())

    def room_after(self, ids: Sequence[int], least: int = 1) -> int:
        return 2**31

    def write(
        self, ids: Sequence[int], drawing: SamplingConfig, hear: Hear, continues: bool = False
    ) -> bool:
        question = bytes(ids).decode()
        with suppress(Enough):
            hear(question, None)
            while question == GO_ON:
                time.sleep(0.01)
                hear("", None)
            if question == FAIL:
                raise RuntimeError("the model is broken")
        return True
