r"""Formats whose records are plain texts: dialogues of HH-RLHF, pairs that begin alike, and texts.

HH-RLHF (Bai et al. 2022): each side is one string, "\n\nHuman: …\n\nAssistant: …". In some
copies a column `prompt` holds the dialogue up to the answers, which are the two sides. White space
around a turn's text belongs to the markers and is removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import RecordFormat
from steps.data.formats.preference import paired
from steps.data.records.conversations import HH_MARKER, dialogue, is_dialogue
from steps.data.records.record_fields import as_written, for_template, found, text
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages, PreferenceRow, TextRow
from steps.shared.common_prefix import shared_length


@dataclass(frozen=True)
class HHFormat(RecordFormat):
    """Names of fields; `system` is given to every dialogue, since none has one of its own."""

    chosen: str = "chosen"
    rejected: str = "rejected"
    prompt: str = "prompt"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system: str | None = None

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        sides, prompt = (record.get("chosen"), record.get("rejected")), record.get("prompt")
        if not all(isinstance(side, str) for side in sides):
            return None
        if prompt is not None:
            return cls() if is_dialogue(prompt) else None
        return cls() if all(HH_MARKER.match(str(side)) for side in sides) else None

    def parse(self, record: Mapping[str, Any], row: str) -> PreferenceRow:
        if record.get(self.chosen) is None:
            raise MalformedRow("no chosen", f"{self.chosen} is missing")
        if record.get(self.rejected) is None:
            raise MalformedRow("no rejected", f"{self.rejected} is missing")
        before = record.get(self.prompt)
        sides = (
            _turns(_whole(before, record[field], field), field)
            for field in (self.chosen, self.rejected)
        )
        return paired(
            row,
            *sides,
            names=(self.chosen, self.rejected),
            system=self.system,
            **for_template(record, self),
        )


def _whole(prompt: Any, side: Any, field: str) -> str:
    """The dialogue up to and with an answer, which may repeat the prompt."""
    said = text(side, field)
    return said if prompt is None or HH_MARKER.match(said) else f"{text(prompt, 'prompt')}{said}"


def _turns(value: Any, field: str) -> Messages:
    if turns := dialogue(value, field):
        return turns
    raise MalformedRow("no turn markers", f"{field} does not start with 'Human:'")


@dataclass(frozen=True)
class ImplicitFormat(RecordFormat):
    """Pairs of plain texts whose common beginning is the prompt (TRL's implicit prompts), up to the
    first word in which they differ. Texts may begin alike by chance, so it is never detected.
    `system` is given to every prompt."""

    chosen: str = "chosen"
    rejected: str = "rejected"
    system: str | None = None

    makes: ClassVar[type] = PreferenceRow

    def parse(self, record: Mapping[str, Any], row: str) -> PreferenceRow:
        for field in (self.chosen, self.rejected):
            if found(record, field) is None:
                reason = "no chosen" if field == self.chosen else "no rejected"
                raise MalformedRow(reason, f"{field} is missing")
        chosen, rejected = (text(found(record, f), f) for f in (self.chosen, self.rejected))
        shared = chosen[: shared_length(chosen, rejected)]
        words = max((at for at, character in enumerate(shared) if character.isspace()), default=0)
        prompt = shared[:words].rstrip()
        if not prompt:
            raise MalformedRow("no prompt", f"{self.chosen} and {self.rejected} share no words")
        asked = Message(role="user", content=prompt)
        sides = (
            (asked, Message(role="assistant", content=said[len(prompt) :].lstrip()))
            for said in (chosen, rejected)
        )
        return paired(row, *sides, names=(self.chosen, self.rejected), system=self.system)


@dataclass(frozen=True)
class TextFormat(RecordFormat):
    """A string in the field `text`, which is also what a line of a `.txt` file is."""

    text: str = "text"

    makes: ClassVar[type] = TextRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        return cls() if isinstance(as_written(record.get("text")), str) else None

    def parse(self, record: Mapping[str, Any], row: str) -> TextRow:
        value = found(record, self.text)
        if value is None:
            raise MalformedRow("no text", f"{self.text} is missing")
        if not (said := text(value, self.text)).strip():
            raise MalformedRow("no text", f"{self.text} is blank")
        return TextRow(row, said)
