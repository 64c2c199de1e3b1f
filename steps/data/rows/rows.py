"""What a row is once it has been read: five kinds, each a frozen dataclass, whatever the spelling.

`row` is the label by which a person finds a row again: the record's own id, else `FILE:LINE`,
counted from one; no two rows of a source share one. `tools` and `template_kwargs` are handed to
the chat template as they are. What `images` of a message are, `steps.data.images` says. Which
checks a row has passed is said in `formats.turns`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

ROLES = ("system", "user", "assistant", "tool")


class Message(TypedDict):
    """One turn of a conversation; `role` is one of `ROLES`, `content` may be empty."""

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    reasoning_content: NotRequired[str]
    images: NotRequired[list[dict[str, Any]]]


EXTRA_KEYS = ("tool_calls", "name", "tool_call_id", "reasoning_content")
"""The keys that a message may have besides role and content; any other is left out."""

Messages = tuple[Message, ...]
Tools = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class PreferenceRow:
    """Two continuations of one prompt, `chosen` the preferred one; both end in the assistant.

    The prompt is what they share, up to the first assistant message in which they differ. The loss
    of a row is multiplied by its weight in training; none means 1.
    """

    row: str
    prompt: Messages
    chosen: Messages
    rejected: Messages
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None
    score_chosen: float | None = None
    score_rejected: float | None = None
    weight: float | None = None


@dataclass(frozen=True)
class ConversationRow:
    """One conversation to learn from; it ends in the assistant."""

    row: str
    messages: Messages
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PromptRow:
    """What a model is to answer, and the right answer where it is known."""

    row: str
    prompt: Messages
    answer: str | None = None
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class UnpairedRow:
    """One completion of a prompt and whether it is a good one; it ends in the assistant.

    `weight` is as in `PreferenceRow`.
    """

    row: str
    prompt: Messages
    completion: Messages
    label: bool
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None
    weight: float | None = None


@dataclass(frozen=True)
class TextRow:
    """Plain text."""

    row: str
    text: str


Row = PreferenceRow | ConversationRow | PromptRow | UnpairedRow | TextRow
