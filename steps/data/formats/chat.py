"""One conversation a record, for supervised fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    found,
    is_list,
    messages,
    ordered,
    prompt_messages,
    read_system,
    response_messages,
    show,
    template_kwargs,
    tools,
    with_system,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow

_USUAL_NAMES = ("messages", "conversations", "conversation")


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
        names = [name for name in _USUAL_NAMES if is_list(record.get(name))]
        return cls(messages=names[0]) if len(names) == 1 else None

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        """The conversation that `record` describes, labelled `row`.

        Raises:
            MalformedRow: the record is no conversation that ends in a response.
        """
        value = found(record, self.messages)
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
    """A prompt (a string or messages) and its completion (a string or messages)."""

    prompt: str = "prompt"
    completion: str = "completion"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"

    makes: ClassVar[type] = ConversationRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "CompletionFormat | None":
        """The format with its usual field names, if `record` looks like it."""
        there = record.get("prompt") is not None and record.get("completion") is not None
        return cls() if there and record.get("label") is None else None

    def parse(self, record: Mapping[str, Any], row: str) -> ConversationRow:
        """The conversation that `record` describes, labelled `row`.

        Raises:
            MalformedRow: prompt and completion are no conversation.
        """
        prompt = prompt_messages(found(record, self.prompt), self.prompt)
        answer = response_messages(found(record, self.completion), self.completion, "no completion")
        turns = with_system((*prompt, *answer), read_system(record, self.system_field))
        turns = ordered(turns, f"{self.prompt} + {self.completion}", self.turns)
        return ConversationRow(
            row,
            with_system(turns, self.system),
            tools(record, self.tools),
            template_kwargs(record, self.template_kwargs),
        )
