"""One conversation a record, for supervised fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    found,
    is_list,
    messages,
    ordered,
    question,
    read_system,
    response_messages,
    show,
    template_kwargs,
    tools,
    unpacked,
    with_system,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow

_USUAL_NAMES = ("messages", "conversations", "conversation", "contents")
_ASKED_AND_ANSWERED = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("problem", "solution"),
)
"""Columns that hold a question and its answer; one pair of them alone decides."""


@dataclass(frozen=True)
class ChatFormat:
    """A list of messages in the field `messages`."""

    messages: str = "messages"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"

    makes: ClassVar[type] = ConversationRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "ChatFormat | None":
        """The format under whichever usual name the messages are found, if under one only."""
        names = [name for name in _USUAL_NAMES if is_list(unpacked(record.get(name)))]
        return cls(messages=names[0]) if len(names) == 1 else None

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        """The conversation that `record` describes, labelled `row`.

        Raises:
            MalformedRow: the record is no conversation that ends in a response.
        """
        value = unpacked(found(record, self.messages))
        if value is None:
            raise MalformedRow("no messages", f"{self.messages} is missing")
        if not is_list(value):
            raise MalformedRow("content not a string", f"{self.messages} is {show(value)}")
        if not value:
            raise MalformedRow("empty conversation", f"{self.messages} is an empty list")
        turns = with_system(messages(value, self.messages), read_system(record, self.system_field))
        turns = ordered(turns, self.messages, self.turns)
        return ConversationRow(
            row,
            with_system(turns, self.system),
            tools(record, self.tools),
            template_kwargs(record, self.template_kwargs),
        )


@dataclass(frozen=True)
class CompletionFormat:
    """A prompt (a string or messages) and its completion (a string or messages).

    `input` is text that is appended to the prompt after a line break (as in Alpaca).
    """

    prompt: str = "prompt"
    completion: str = "completion"
    input: str | None = None
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"

    makes: ClassVar[type] = ConversationRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "CompletionFormat | None":
        """The format with usual field names, if `record` looks like it in one way only."""
        if record.get("label") is not None:
            return None
        there = [
            names
            for names in _ASKED_AND_ANSWERED
            if all(record.get(name) is not None for name in names)
        ]
        if len(there) != 1 or "context" in record:
            return None
        ((prompt, completion),) = there
        if completion != "completion" and ChatFormat.detected(record) is not None:
            return None
        return cls(prompt, completion, "input" if prompt == "instruction" else None)

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        """The conversation that `record` describes, labelled `row`.

        Raises:
            MalformedRow: prompt and completion are no conversation.
        """
        prompt = question(record, self.prompt, self.input)
        answer = response_messages(found(record, self.completion), self.completion, "no completion")
        turns = with_system((*prompt, *answer), read_system(record, self.system_field))
        turns = ordered(turns, f"{self.prompt} + {self.completion}", self.turns)
        return ConversationRow(
            row,
            with_system(turns, self.system),
            tools(record, self.tools),
            template_kwargs(record, self.template_kwargs),
        )
