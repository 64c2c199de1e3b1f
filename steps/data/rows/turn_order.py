"""Check that a sequence of messages is a conversation.

A conversation is an optional system message, then turns: the assistant answers a user message. It
may call tools, whose results come before its next message.
"""

from collections.abc import Sequence
from functools import lru_cache

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages
from steps.shared.common_prefix import shared_length

TURNS = ("alternating", "merged", "any")
"""How turns out of order are handled: drop the row; merge consecutive turns of one role; or accept
any order that ends with the assistant."""

FOLLOWERS = {
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
"""The roles that may follow each role."""


def ordered(conversation: Messages, field: str, turns: str, may_end_open: bool = False) -> Messages:
    """A conversation with a response, with turns out of order treated as `turns` says.

    Args:
        may_end_open: whether it may go on after its last response, with a question, say.

    Raises:
        MalformedRow: turns are out of order, or there is no response.
    """
    conversation = merged(conversation) if turns == "merged" else conversation
    check_conversation(conversation, field, turns, may_end_open)
    return conversation


def parted(
    chosen: Messages, rejected: Messages, names: tuple[str, str], turns: str
) -> tuple[Messages, Messages, Messages]:
    """The prompt that two conversations share, and what follows it in either.

    Raises:
        MalformedRow: one is not a valid conversation, or they first differ in messages that are not
            both the assistant's.
    """
    chosen, rejected = ordered(chosen, names[0], turns), ordered(rejected, names[1], turns)
    if chosen == rejected:
        raise MalformedRow("identical responses", "chosen and rejected hold the same text")
    shared = shared_length(chosen, rejected)
    parting = (*chosen[shared : shared + 1], *rejected[shared : shared + 1])
    if [message["role"] for message in parting] != ["assistant", "assistant"]:
        raise MalformedRow(
            "different prompts",
            f"the first messages in which {names[0]} and {names[1]} differ (number {shared + 1}) "
            "are not both the assistant's",
        )
    check_question(chosen[:shared], names[0])
    return chosen[:shared], chosen[shared:], rejected[shared:]


def merged(conversation: Messages) -> Messages:
    """A conversation in which consecutive turns of one role, but for tools, are one."""
    turns: list[Message] = []
    for message in conversation:
        last = turns[-1] if turns else None
        alike = last is not None and last["role"] == message["role"] != "tool"
        if last is None or not alike or not _can_be_one(last, message):
            turns.append(message)
            continue
        texts = (text for text in (last["content"], message["content"]) if text)
        turns[-1] = Message(**{**last, "content": "\n\n".join(texts)})
    return tuple(turns)


def _can_be_one(one: Message, other: Message) -> bool:
    """Whether two messages have texts alone, and both or neither are trained on."""
    plain = (one.keys() | other.keys()) <= {"role", "content", "trained"}
    return plain and one.get("trained") == other.get("trained")


def check_conversation(
    conversation: Messages, field: str, turns: str = TURNS[0], may_end_open: bool = False
) -> None:
    """Refuse messages out of order, and a conversation that does not end in a response, or, if it
    `may_end_open`, has none."""
    roles = [message["role"] for message in conversation]
    if roles in (["assistant"], ["system", "assistant"]):
        raise MalformedRow("no prompt", f"{field} holds no user message, and there is no prompt")
    _check_order(roles, field, turns)
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=0)
    is_answered = last == len(roles) - 1 or (may_end_open and "user" in roles[:last])
    if roles[last] != "assistant" or not is_answered:
        raise _wrong_order(roles, field, "the last message must be the assistant's")
    if is_blank(conversation[last]):
        raise MalformedRow("empty response", f"{field}: the last message is blank")
    check_question(conversation[:last], field)


def check_prompt(prompt: Messages, field: str, turns: str = TURNS[0]) -> None:
    """Refuse messages out of order, and a prompt that the assistant could not answer."""
    roles = [message["role"] for message in prompt]
    if "user" not in roles:
        raise MalformedRow("no prompt", f"{field} holds no user message")
    _check_order(roles, field, turns)
    if "assistant" not in FOLLOWERS[roles[-1]]:
        raise _wrong_order(roles, field, "the last message must be the user's or a tool's")
    check_question(prompt, field)


def check_question(prompt: Messages, field: str) -> None:
    """Refuse a prompt whose last user message is blank."""
    asked = [message for message in prompt if message["role"] == "user"]
    if not asked or is_blank(asked[-1]):
        raise MalformedRow("no prompt", f"{field}: the last user message is blank")


def _check_order(roles: Sequence[str], field: str, turns: str) -> None:
    if turns != "any" and (wrong := _out_of_order(tuple(roles))):
        before, role = wrong
        joins = role == before and turns != "merged"  # which does not join all
        how = "data.turns=merged joins them" if joins else "data.turns=any takes them"
        raise _wrong_order(roles, field, f"{role} comes after {before or 'nothing'}; {how}")


@lru_cache
def _out_of_order(roles: tuple[str, ...]) -> tuple[str | None, str] | None:
    """The first role that must not be where it is, after the one before it."""
    first = "user" if roles[0] != "system" else "system"
    followers = ({first}, *(FOLLOWERS[role] for role in roles[:-1]))
    pairs = zip((None, *roles), followers, roles, strict=False)
    return next(((before, role) for before, may, role in pairs if role not in may), None)


def _wrong_order(roles: Sequence[str], field: str, found: str) -> MalformedRow:
    listed = ", ".join(roles if len(roles) <= 12 else [*roles[:6], "…", *roles[-5:]])
    return MalformedRow("wrong role order", f"{field} has {listed}: {found}")


def is_blank(message: Message) -> bool:
    """Whether a message says nothing and calls no tool."""
    said = message["content"]
    return (not said or said.isspace()) and not message.get("tool_calls")
