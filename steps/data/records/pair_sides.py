"""The two sides of a preference pair as whole conversations, from one record.

A side may repeat the prompt, or be what comes after it; the prompt may stand in a field of its own,
be the beginning of one side only, or be lists of as many texts as the sides.
"""

from collections.abc import Mapping
from typing import Any

from steps.data.records.conversations import question, read_system, response_messages, with_system
from steps.data.records.record_fields import found, texts_in
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages
from steps.shared.common_prefix import shared_length


def whole_sides(
    record: Mapping[str, Any],
    names: tuple[str, str, str],
    input_field: str | None,
    system_field: str | None,
) -> tuple[Messages, Messages]:
    """The chosen and the rejected conversation, each under the record's own system prompt.

    Args:
        names: the fields of the prompt, the chosen and the rejected side.
        input_field: a field whose text is appended to the prompt.

    Raises:
        MalformedRow: a side is missing, is no conversation, or does not start with the prompt.
    """
    said = found(record, names[0])
    prompt, several = None, _several_turns(record, names, said)
    if several is None and said is not None:
        prompt = question(record, names[0], input_field)
    record = several or record
    own_system = read_system(record, system_field)
    values = [found(record, name) for name in names[1:]]
    chosen = response_messages(values[0], names[1], "no chosen")
    rejected = response_messages(values[1], names[2], "no rejected")
    if prompt is None:
        prompt = _prompt_of_one_side([isinstance(v, str) for v in values], chosen, rejected)
    if prompt is not None and _is_told_again(found(record, names[0]), chosen, rejected):
        prompt = None
    if prompt is not None:
        chosen = _after(prompt, chosen, names[1], names[0])
        rejected = _after(prompt, rejected, names[2], names[0])
    return with_system(chosen, own_system), with_system(rejected, own_system)


def _several_turns(
    record: Mapping[str, Any], names: tuple[str, str, str], said: Any
) -> Mapping[str, Any] | None:
    """The record with whole conversations as sides, if prompt and sides are lists of as many
    texts: the questions, and the answers of either side."""
    asked = texts_in(said)
    if asked is None:
        return None
    sides = [texts_in(found(record, name)) for name in names[1:]]
    if any(side is None or len(side) != len(asked) for side in sides):
        return None
    whole = {
        name: [
            {"role": role, "content": said}
            for turn in zip(asked, side or (), strict=True)
            for role, said in zip(("user", "assistant"), turn, strict=True)
        ]
        for name, side in zip(names[1:], sides, strict=True)
    }
    return {**record, **whole}


def _is_told_again(said: Any, chosen: Messages, rejected: Messages) -> bool:
    """Whether both sides are whole conversations and the prompt, a single text, repeats a user
    message that they share (as in Capybara)."""
    if not isinstance(said, str) or "assistant" in (chosen[0]["role"], rejected[0]["role"]):
        return False
    shared = chosen[: shared_length(chosen, rejected)]
    asked = [m["content"].strip() for m in shared if m["role"] == "user"]
    return any(text and (text in said or said.strip() in text) for text in asked)


def _prompt_of_one_side(texts: list[bool], one: Messages, other: Messages) -> Messages | None:
    """The prompt, if one side is a whole conversation and the other only the text of an answer."""
    if texts[0] == texts[1]:
        return None
    return (other if texts[0] else one)[:-1] or None


def _after(prompt: Messages, given: Messages, field: str, prompt_field: str) -> Messages:
    """The whole conversation: `given` may repeat the prompt, with or without a system message."""
    if given[: len(prompt)] == prompt:
        return given
    if given[0]["role"] == "assistant":
        return (*prompt, *given)
    if prompt[0]["role"] == "system" and given[: len(prompt) - 1] == prompt[1:]:
        return (prompt[0], *given)
    if given[0]["role"] == "system" and given[1 : len(prompt) + 1] == prompt:
        return given
    raise MalformedRow(
        "different prompts", f"{field} does not start with the messages of {prompt_field}"
    )
