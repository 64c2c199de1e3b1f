"""Preference pairs: two conversations that share a prompt, in the spellings people have.

`chosen` and `rejected` are each

* a list of messages that starts with the prompt (UltraFeedback binarized, Cui et al. 2023; Tulu 3;
  Skywork), with or without a `prompt` field of its own;
* a list of the turns after `prompt`, or the response as a plain string, in which case `prompt` is
  a string (one user message) or a list of messages (TRL's conversational and standard formats).

What both sides share is the prompt. They part at an assistant message: after it a side may go on
for several turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    check_conversation,
    check_question,
    prompt_messages,
    read_system,
    response_messages,
    score,
    template_kwargs,
    tools,
    weight,
    with_system,
)
from steps.data.reasons import MalformedRow, Reason
from steps.data.rows import Messages, PreferenceRow


@dataclass(frozen=True)
class PreferenceFormat:
    """Names of fields; `system_field` holds a system prompt, `system` is given to all without one.

    Only `chosen` and `rejected` must be there, and `weight` where it is named: nothing is taken for
    a weight by its name alone.
    """

    prompt: str = "prompt"
    chosen: str = "chosen"
    rejected: str = "rejected"
    score_chosen: str = "score_chosen"
    score_rejected: str = "score_rejected"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    weight: str | None = None
    system_field: str | None = "system"
    system: str | None = None

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "PreferenceFormat | None":
        """The format with its usual field names, if `record` looks like it."""
        sides = [record.get("chosen"), record.get("rejected")]
        only_text = all(isinstance(side, str) for side in sides) and record.get("prompt") is None
        return None if sides == [None, None] or only_text else cls()

    def parse(self, record: Mapping[str, Any], row: str) -> PreferenceRow:
        """The pair that `record` describes, labelled `row`.

        Raises:
            MalformedRow: the record is no usable pair.
        """
        value = record.get(self.prompt)
        prompt = None if value is None else prompt_messages(value, self.prompt)
        own_system = read_system(record, self.system_field)
        sides: dict[str, Messages] = {}
        fields: tuple[tuple[str, Reason], ...] = (
            (self.chosen, "no chosen"),
            (self.rejected, "no rejected"),
        )
        for field, missing in fields:
            given = response_messages(record.get(field), field, missing)
            whole = given if prompt is None else _after(prompt, given, field, self.prompt)
            sides[field] = with_system(whole, own_system)
        return paired(
            row,
            sides[self.chosen],
            sides[self.rejected],
            names=(self.chosen, self.rejected),
            system=self.system,
            tools=tools(record, self.tools),
            template_kwargs=template_kwargs(record, self.template_kwargs),
            score_chosen=score(record, self.score_chosen),
            score_rejected=score(record, self.score_rejected),
            weight=weight(record, self.weight),
        )


def paired(
    row: str,
    chosen: Messages,
    rejected: Messages,
    names: tuple[str, str] = ("chosen", "rejected"),
    system: str | None = None,
    **other: Any,
) -> PreferenceRow:
    """Two whole conversations as a pair, parted where they first differ.

    Raises:
        MalformedRow: one of them is no conversation, or they do not part at an assistant message.
    """
    for side, name in zip((chosen, rejected), names, strict=True):
        check_conversation(side, name)
    if chosen == rejected:
        raise MalformedRow("identical responses", "chosen and rejected hold the same text")
    shared = _shared_messages(chosen, rejected)
    parted = (*chosen[shared : shared + 1], *rejected[shared : shared + 1])
    if [message["role"] for message in parted] != ["assistant", "assistant"]:
        raise MalformedRow(
            "different prompts",
            f"the first messages in which {names[0]} and {names[1]} differ (number {shared + 1}) "
            "are not both the assistant's",
        )
    prompt = chosen[:shared]
    check_question(prompt, names[0])
    return PreferenceRow(
        row, with_system(prompt, system), chosen[shared:], rejected[shared:], **other
    )


def _shared_messages(one: Messages, other: Messages) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


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
