"""Single completions with a verdict, as KTO learns from (Ethayarajh et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    check_conversation,
    found,
    merged,
    prompt_messages,
    read_system,
    response_messages,
    show,
    template_kwargs,
    tools,
    weight,
    with_system,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import UnpairedRow


@dataclass(frozen=True)
class UnpairedFormat:
    """`prompt` and `completion` are strings or messages; `label` is true for a good completion.

    `weight` must be there where it is named.
    """

    prompt: str = "prompt"
    completion: str = "completion"
    label: str = "label"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    weight: str | None = None
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"

    makes: ClassVar[type] = UnpairedRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "UnpairedFormat | None":
        """The format with its usual field names, if `record` has all three."""
        there = all(record.get(name) is not None for name in ("prompt", "completion", "label"))
        return cls() if there else None

    def parse(self, record: Mapping[str, Any], row: str) -> UnpairedRow:
        """The completion that `record` describes, labelled `row`.

        Raises:
            MalformedRow: prompt and completion are no conversation, or there is no verdict.
        """
        given = prompt_messages(found(record, self.prompt), self.prompt)
        prompt = with_system(given, read_system(record, self.system_field))
        answer = response_messages(found(record, self.completion), self.completion, "no completion")
        if self.turns == "merged":
            prompt, answer = merged(prompt), merged(answer)
        check_conversation((*prompt, *answer), f"{self.prompt} + {self.completion}", self.turns)
        return UnpairedRow(
            row,
            with_system(prompt, self.system),
            answer,
            _label(found(record, self.label), self.label),
            tools(record, self.tools),
            template_kwargs(record, self.template_kwargs),
            weight(record, self.weight),
        )


_LABELS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}


def _label(value: Any, field: str) -> bool:
    if value is None:
        raise MalformedRow("no label", f"{field} is missing")
    spelled = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if (label := _LABELS.get(spelled.strip().lower())) is None:
        raise MalformedRow(
            "label not a boolean", f"{field} is {show(value)}, expected true or false, 1 or 0"
        )
    return label
