"""Single completions with a verdict, as KTO learns from (Ethayarajh et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.turns import (
    check_conversation,
    found,
    is_list,
    merged,
    prompt_messages,
    read_system,
    response_messages,
    show,
    template_kwargs,
    tools,
    unpacked,
    weight,
    with_system,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import UnpairedRow


@dataclass(frozen=True)
class UnpairedFormat:
    """`prompt` and `completion` are strings or messages; `label` is true for a good completion.

    Without a prompt, `completion` is a conversation, and its last turn is judged. `weight` must be
    there where it is named.
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
        """The format with usual field names, if `record` has all that it needs in one way only."""
        labels = [name for name in _VERDICTS if record.get(name) is not None]
        asked = record.get("prompt") is not None
        chats = () if asked else [n for n in _CHATS if is_list(unpacked(record.get(n)))]
        answers = ["completion"] if asked and record.get("completion") is not None else chats
        if len(labels) != 1 or len(answers) != 1:
            return None
        return cls(completion=answers[0], label=labels[0])

    def parse(self, record: Mapping[str, Any], row: str) -> UnpairedRow:
        """The completion that `record` describes, labelled `row`.

        Raises:
            MalformedRow: prompt and completion are no conversation, or there is no verdict.
        """
        answer = response_messages(found(record, self.completion), self.completion, "no completion")
        given = found(record, self.prompt)
        if given is None and len(answer) > 1 and answer[-1]["role"] == "assistant":
            *asked, last = answer
            given, answer = tuple(asked), (last,)
        else:
            given = prompt_messages(given, self.prompt)
        prompt = with_system(given, read_system(record, self.system_field))
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


_VERDICTS = ("label", "kto_tag")
_CHATS = ("messages", "conversations", "conversation")
_LABELS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "1", "1.0", "desirable", "chosen", "good", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "undesirable", "rejected", "bad", "no"), False),
}


def _label(value: Any, field: str) -> bool:
    if value is None:
        raise MalformedRow("no label", f"{field} is missing")
    spelled = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if (label := _LABELS.get(spelled.strip().lower())) is None:
        raise MalformedRow(
            "label not a boolean", f"{field} is {show(value)}, expected true or false, 1 or 0"
        )
    return label
