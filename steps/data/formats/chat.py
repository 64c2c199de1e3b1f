"""One conversation a record, for supervised fine-tuning."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import ChatRecords
from steps.data.records.conversations import (
    THOUGHTS,
    conversation,
    history,
    question,
    read_system,
    response_messages,
    unpacked,
    with_system,
)
from steps.data.records.one_message import listed_calls
from steps.data.records.record_fields import (
    are_texts,
    as_written,
    for_template,
    found,
    is_list,
    text,
)
from steps.data.records.trained_turns import TRAINED
from steps.data.rows.rows import ConversationRow, Messages
from steps.data.rows.turn_order import ordered

_USUAL_NAMES = (
    "messages", "conversations", "conversation", "contents", "dialogue", "dialog", "chat", "data",
)  # fmt: skip
_QUESTIONS = ("prompt", "instruction", "question", "query", "problem", "inputs", "input")
_RESPONSES = (
    "completion", "response", "output", "solution", "generated_solution", "answer", "answers",
    "target", "targets",
)  # fmt: skip
"""Columns that hold a question and its answer; one of each alone decides."""

_PAIRED = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("problem", "solution"),
)
"""Usual pairs of them; one pair alone decides whatever other columns there are."""

_COMPLETE = ("prompt", "input", "inputs")
"""Questions to which another column adds nothing."""

_WHOLE = re.compile(f"{THOUGHTS.pattern}|attempt|generations|respons|definition", re.IGNORECASE)
"""Names of columns next to which an answer or a solution may be only a part of what is learnt."""


@dataclass(frozen=True)
class ChatFormat(ChatRecords):
    """A list of messages in the field `messages`, or of texts of user and assistant in turn, or one
    text with the marks of the speakers (`### Human:`, `USER:`).

    `trained` is the key of a message that says whether that is trained on.
    """

    messages: str = "messages"
    trained: str = TRAINED

    makes: ClassVar[type] = ConversationRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        names = [name for name in _USUAL_NAMES if is_list(unpacked(record.get(name)))]
        return cls(messages=names[0]) if len(names) == 1 else None

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        whole = conversation(record, self.messages, self.trained, self.system_field)
        turns = ordered(whole, self.messages, self.turns, may_end_open=True)
        return ConversationRow(row, with_system(turns, self.system), **for_template(record, self))


@dataclass(frozen=True)
class CompletionFormat(ChatRecords):
    """A prompt (a string or messages) and its completion (a string or messages).

    `input` is text that is appended to the prompt after a line break (as in Alpaca), `history` what
    was said before: messages, or questions with their answers. `reasoning` is a text that the
    completion has as its reasoning. A completion may be a list of tool calls, in the column
    `answers` also as JSON text.
    """

    prompt: str = "prompt"
    completion: str = "completion"
    input: str | None = None
    history: str = "history"
    reasoning: str | None = None

    makes: ClassVar[type] = ConversationRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        if record.get("label") is not None:
            return None
        answered = [name for name in _RESPONSES if record.get(name)]
        if {"answer", "solution"} <= set(answered):  # the answer is the result of the solution
            answered.remove("answer")
        pairs = [(q, a) for q, a in _PAIRED if record.get(q) and a in answered]
        pairs = pairs or [(q, a) for q in asked_in(record) for a in answered]
        if len(pairs) != 1:
            return None
        prompt, completion = pairs[0]
        if completion != "completion" and ChatFormat.detected(record) is not None:
            return None
        if not _is_completion(record, completion) or (prompt == "prompt" and "context" in record):
            return None
        return cls(prompt, completion, None if prompt in _COMPLETE else "input")

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        prompt = question(record, self.prompt, self.input)
        before = history(found(record, self.history), self.history)
        turns = (*before, *prompt, *self._answer(record))
        turns = with_system(turns, read_system(record, self.system_field))
        turns = ordered(turns, f"{self.prompt} + {self.completion}", self.turns)
        return ConversationRow(row, with_system(turns, self.system), **for_template(record, self))

    def _answer(self, record: Mapping[str, Any]) -> Messages:
        value = found(record, self.completion)
        may_call = self.completion == "answers" or not isinstance(as_written(value), str)
        if may_call and (calls := listed_calls(value)) is not None:
            answer: Messages = ({"role": "assistant", "content": "", "tool_calls": calls},)
        else:
            answer = response_messages(value, self.completion, "no completion")
        if self.reasoning is None or (thought := found(record, self.reasoning)) is None:
            return answer
        if are_texts(thought := as_written(thought)) and len(thought) == 1:
            thought = thought[0]
        *before, last = answer
        return (*before, {**last, "reasoning_content": text(thought, self.reasoning)})


def asked_in(record: Mapping[str, Any]) -> list[str]:
    """The columns that hold a question; `input` beside an instruction only adds to it."""
    asked = [name for name in _QUESTIONS if record.get(name)]
    return [name for name in asked if name != "input" or "instruction" not in asked]


def _is_completion(record: Mapping[str, Any], name: str) -> bool:
    """Whether a column is an answer, and no other column may be more of it."""
    partial = name in ("answer", "answers", "solution", "targets", "target")
    if partial and any(_WHOLE.search(str(other)) for other in record):
        return False
    return name != "answers" or listed_calls(record[name]) is not None
