"""Prompts for a model to answer, with the right answer where the record has one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    check_prompt,
    found,
    merged,
    prompt_messages,
    read_system,
    template_kwargs,
    text,
    tools,
    with_system,
)
from steps.data.rows.rows import PromptRow

_ANSWERS = ("answer", "reward_model.ground_truth", "ground_truth")


@dataclass(frozen=True)
class PromptFormat:
    """`prompt` is a string (one user message) or messages that end with the user's.

    `answer` is a string or a whole number, and may be absent.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"

    makes: ClassVar[type] = PromptRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "PromptFormat | None":
        """The format with its usual field names, if `record` has a prompt."""
        if record.get("prompt") is None:
            return None
        answers = (name for name in _ANSWERS if found(record, name) is not None)
        return cls(answer=next(answers, "answer"))

    def parse(self, record: Mapping[str, Any], row: str) -> PromptRow:
        """The prompt that `record` describes, labelled `row`.

        Raises:
            MalformedRow: the record holds nothing that could be answered.
        """
        given = prompt_messages(found(record, self.prompt), self.prompt)
        prompt = with_system(given, read_system(record, self.system_field))
        prompt = merged(prompt) if self.turns == "merged" else prompt
        check_prompt(prompt, self.prompt, self.turns)
        return PromptRow(
            row,
            with_system(prompt, self.system),
            _answer(found(record, self.answer), self.answer),
            tools(record, self.tools),
            template_kwargs(record, self.template_kwargs),
        )


def _answer(value: Any, field: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return text(value, field, "answer not a string")
