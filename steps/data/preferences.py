"""One preference record becomes one `PreferencePair`, or a `MalformedRow` that says why not.

The model: a record holds two conversations with the same prompt. A conversation is a list of
messages (an optional system message, then user and assistant in turn, ending with the assistant);
its last message is the response and everything before it is the prompt. How a record spells its
conversations is settled in `_conversation`; what makes a valid pair is settled in `_pair`, which
knows nothing of spellings.

Spellings understood, `chosen` and `rejected` each:

* a list of messages that starts with the prompt (UltraFeedback binarized, Cui et al. 2023),
  with or without a `prompt` field of its own;
* a list with only the turns after `prompt`, or the response as a plain string, in which case
  `prompt` is a string (one user message) or a list of messages.
"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

Reason = Literal[
    # reading
    "broken JSON",
    "not an object",
    # parsing
    "no prompt",
    "no chosen",
    "no rejected",
    "empty conversation",
    "empty response",
    "wrong role order",
    "unknown role",
    "content not a string",
    "not valid Unicode",
    "score not a number",
    "different prompts",
    "identical responses",
    # tokenising
    "template refuses the conversation",
    "template does not extend the prompt",
    "prompt is not a token prefix",
    "end-of-turn inside the response",
    "prompt too long",
    "no room for the response",
    "identical after truncation",
]
"""Why a row is left out: stable strings, counted in reports and written to `dropped.parquet`."""

ROLES = ("system", "user", "assistant")


class Message(TypedDict):
    """One turn of a conversation; `role` is one of `ROLES`."""

    role: str
    content: str


@dataclass(frozen=True)
class PreferencePair:
    """Two responses to one prompt; `chosen` is the preferred one."""

    row: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    score_chosen: float | None
    score_rejected: float | None


@dataclass(frozen=True)
class DroppedRow:
    """A row that was left out of `split`: the file in which a user looks up what is missing."""

    split: str
    row: str
    reason: str
    detail: str


class MalformedRow(ValueError):
    """A row that cannot be used. `reason` is one of `Reason`, `detail` names field and finding."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def parse_pair(record: Mapping[str, Any], row: str) -> PreferencePair:
    """The pair that `record` describes, labelled `row`.

    Raises:
        MalformedRow: the record is no usable pair; the reasons are listed under "parsing" above.
    """
    prompt = _explicit_prompt(record)
    chosen = _conversation(record, "chosen", prompt)
    rejected = _conversation(record, "rejected", prompt)
    return _pair(row, chosen, rejected, _score(record, "chosen"), _score(record, "rejected"))


def _pair(
    row: str,
    chosen: Sequence[Message],
    rejected: Sequence[Message],
    score_chosen: float | None,
    score_rejected: float | None,
) -> PreferencePair:
    _check_turns("chosen", chosen)
    _check_turns("rejected", rejected)
    if chosen[:-1] != rejected[:-1]:
        raise MalformedRow(
            "different prompts", "the messages before the last differ between chosen and rejected"
        )
    if chosen[-1] == rejected[-1]:
        raise MalformedRow("identical responses", "chosen and rejected hold the same text")
    return PreferencePair(
        row=row,
        prompt=tuple(chosen[:-1]),
        chosen=chosen[-1]["content"],
        rejected=rejected[-1]["content"],
        score_chosen=score_chosen,
        score_rejected=score_rejected,
    )


def _check_turns(side: str, conversation: Sequence[Message]) -> None:
    roles = [message["role"] for message in conversation]
    turns = roles[1:] if roles[0] == "system" else roles
    if turns == ["assistant"]:
        raise MalformedRow("no prompt", f"{side} holds no user message, and there is no prompt")
    if not turns or turns != ["user", "assistant"] * (len(turns) // 2):
        raise MalformedRow(
            "wrong role order",
            f"{side} has {', '.join(roles)}; expected an optional system message, then user and "
            "assistant in turn, ending with assistant",
        )
    if not conversation[-1]["content"].strip():
        raise MalformedRow("empty response", f"{side}: the last message is blank")
    if not conversation[-2]["content"].strip():
        raise MalformedRow("no prompt", f"{side}: the last user message is blank")


def _explicit_prompt(record: Mapping[str, Any]) -> list[Message] | None:
    value = record.get("prompt")
    if value is None:
        return None
    if _is_list(value):
        if not value:
            raise MalformedRow("no prompt", "prompt is an empty list")
        return _messages(value, "prompt")
    return [{"role": "user", "content": _text(value, "prompt")}]


def _conversation(
    record: Mapping[str, Any], side: Literal["chosen", "rejected"], prompt: list[Message] | None
) -> list[Message]:
    value = record.get(side)
    if value is None:
        raise MalformedRow("no chosen" if side == "chosen" else "no rejected", f"{side} is missing")
    if not _is_list(value):
        response: Message = {"role": "assistant", "content": _text(value, side)}
        return [*(prompt or []), response]
    if not value:
        raise MalformedRow("empty conversation", f"{side} is an empty list")
    messages = _messages(value, side)
    if prompt is None or messages[: len(prompt)] == prompt:
        return messages
    if messages[0]["role"] == "assistant":
        return [*prompt, *messages]
    raise MalformedRow("different prompts", f"{side} does not start with the messages of prompt")


def _messages(value: Sequence[Any], field: str) -> list[Message]:
    return [_message(item, f"{field}[{index}]") for index, item in enumerate(value)]


def _message(item: Any, field: str) -> Message:
    if not isinstance(item, Mapping):
        raise MalformedRow(
            "content not a string", f"{field} is {_show(item)}, expected role and content"
        )
    role = item.get("role")
    if role not in ROLES:
        raise MalformedRow(
            "unknown role", f"{field}.role is {_show(role)}, expected one of {', '.join(ROLES)}"
        )
    return {"role": role, "content": _text(item.get("content"), f"{field}.content")}


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise MalformedRow("content not a string", f"{field} is {_show(value)}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedRow("not valid Unicode", f"{field}: {error}") from None
    return value


def _score(record: Mapping[str, Any], side: str) -> float | None:
    field = f"score_{side}"
    value = record.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedRow("score not a number", f"{field} is {_show(value)}")
    try:
        score = float(value)
    except OverflowError:
        raise MalformedRow("score not a number", f"{field} is out of range") from None
    if math.isnan(score):  # how tables written from data frames spell a missing number
        return None
    return score


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _show(value: Any) -> str:
    """A short description that survives being written to a file, whatever the value holds."""
    return f"{type(value).__name__} {reprlib.repr(value)}" if value is not None else "missing"
