"""Single completions with a verdict, as KTO learns from (Ethayarajh et al. 2024)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import ChatRecords
from steps.data.formats.chat import asked_in
from steps.data.records.conversations import (
    question,
    read_system,
    response_messages,
    unpacked,
    with_system,
)
from steps.data.records.record_fields import (
    for_template,
    found,
    is_list,
    is_number,
    score,
    show,
    weight,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import UnpairedRow
from steps.data.rows.turn_order import check_conversation, merged


@dataclass(frozen=True)
class UnpairedFormat(ChatRecords):
    """`prompt` and `completion` are strings or messages; `label` is true for a good completion.

    Without a prompt, `completion` is a conversation, and its last turn is judged. `weight` must be
    there where it is named. `input` is as in `CompletionFormat`. With `good`, a number, `label`
    holds ratings, and those from it on are good.
    """

    prompt: str = "prompt"
    completion: str = "completion"
    label: str = "label"
    input: str | None = None
    good: str | None = None
    weight: str | None = None

    makes: ClassVar[type] = UnpairedRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        labels = [name for name in _VERDICTS if record.get(name) is not None]
        asked = ["prompt"] if record.get("prompt") is not None else asked_in(record)
        chats = [] if asked else [n for n in _CHATS if is_list(unpacked(record.get(n)))]
        answers = [n for n in _ANSWERS if record.get(n) is not None] if asked else chats
        answers = answers[:1] if "completion" in answers else answers
        if len(labels) != 1 or len(answers) != 1 or len(asked) > 1:
            return None
        if not isinstance(record[labels[0]], bool) and _spelled(record[labels[0]]) not in _LABELS:
            return None
        prompt = asked[0] if asked else "prompt"
        return cls(prompt, answers[0], labels[0], "input" if prompt == "instruction" else None)

    def __post_init__(self) -> None:
        if self.good is not None and not _NUMBER.fullmatch(self.good):
            raise ValueError(f"data.fields.good is {self.good!r}, expected a number")

    def parse(self, record: Mapping[str, Any], row: str) -> UnpairedRow:
        answer = response_messages(found(record, self.completion), self.completion, "no completion")
        given = found(record, self.prompt)
        if given is None and len(answer) > 1 and answer[-1]["role"] == "assistant":
            *asked, last = answer
            given, answer = tuple(asked), (last,)
        else:
            given = question(record, self.prompt, self.input)
        prompt = with_system(given, read_system(record, self.system_field))
        if self.turns == "merged":
            prompt, answer = merged(prompt), merged(answer)
        check_conversation((*prompt, *answer), f"{self.prompt} + {self.completion}", self.turns)
        return UnpairedRow(
            row,
            with_system(prompt, self.system),
            answer,
            self._verdict(record),
            **for_template(record, self),
            weight=weight(record, self.weight),
        )

    def is_number(self, record: Mapping[str, Any]) -> bool:
        """Whether the label is a number, such as 1, whose meaning other numbers put in doubt."""
        value = found(record, self.label)
        doubtful = self.good is None and value is not None and not isinstance(value, bool)
        return doubtful and is_number(_spelled(value))

    def _verdict(self, record: Mapping[str, Any]) -> bool:
        if self.good is None:
            return _label(found(record, self.label), self.label)
        if (rating := score(record, self.label)) is None:
            raise MalformedRow("no label", f"{self.label} is missing")
        return rating >= float(self.good)


_VERDICTS = ("label", "kto_tag")
_ANSWERS = ("completion", "response", "output")
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,9})?")
_CHATS = ("messages", "conversations", "conversation", "completion")
_GOOD = (
    "true", "1", "1.0", "yes", "good", "desirable", "chosen", "preferred", "correct", "right",
    "safe", "harmless", "acceptable", "accepted", "positive", "pos", "pass", "thumbs_up",
)  # fmt: skip
_BAD = (
    "false", "0", "0.0", "no", "bad", "undesirable", "rejected", "dispreferred", "incorrect",
    "wrong", "unsafe", "harmful", "unacceptable", "negative", "neg", "fail", "thumbs_down",
)  # fmt: skip
_LABELS: Mapping[str, bool] = {**dict.fromkeys(_GOOD, True), **dict.fromkeys(_BAD, False)}


def _label(value: Any, field: str) -> bool:
    if value is None or (said := _spelled(value)) in ("", "nan"):
        raise MalformedRow("no label", f"{field} is missing")
    if (label := _LABELS.get(said)) is None:
        raise MalformedRow(
            "label is a rating" if is_number(said) else "label not a boolean",
            f"{field} is {show(value)}, expected true or false, 1 or 0; of ratings, name the "
            "lowest good one with data.fields.good",
        )
    return label


def _spelled(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value).strip().lower()
