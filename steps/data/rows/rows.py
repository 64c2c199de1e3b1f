"""The five kinds of rows, as frozen dataclasses, independent of the format of their files.

`row` is the label by which a person finds a row again: the record's own id, else `FILE:LINE`,
counted from one; no two rows of a source share one. `tools` and `template_kwargs` are handed to
the chat template as they are. What `images` of a message are, `steps.data.images` says. Which
checks a row has passed is said in `turn_order`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

ROLES = ("system", "user", "assistant", "tool")


class Message(TypedDict):
    """One turn of a conversation; `role` is one of `ROLES`, `content` may be empty. `trained`, in
    conversations for training, says whether an assistant's turn is trained on."""

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    reasoning_content: NotRequired[str]
    images: NotRequired[list[dict[str, Any]]]
    trained: NotRequired[bool]


EXTRA_KEYS = ("tool_calls", "name", "tool_call_id", "reasoning_content")
"""The keys that a message may have besides role and content; other keys are dropped."""

Messages = tuple[Message, ...]
Tools = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class PreferenceRow:
    """Two continuations of one prompt, of which `chosen` is preferred. Both end with the assistant.

    The prompt is their common beginning, up to the first assistant message in which they differ.
    Training multiplies the loss of a row by its weight; None means 1.
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
    """One conversation for training. It has an answer, and may go on after its last one.

    Either none of the assistant's messages says whether it is `trained`, or each.
    """

    row: str
    messages: Messages
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PromptRow:
    """A prompt for a model, with the right answer if it is known."""

    row: str
    prompt: Messages
    answer: str | None = None
    tools: Tools | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TaughtPromptRow(PromptRow):
    """A prompt that names who teaches its answers, where there are several `teacher`s."""

    teacher: str | None = None


@dataclass(frozen=True)
class UnpairedRow:
    """One completion of a prompt, labelled good or bad; it ends with the assistant.

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
