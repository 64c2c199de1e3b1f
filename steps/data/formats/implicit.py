"""Pairs of plain texts whose common beginning is the prompt (TRL's implicit prompts).

The prompt ends before the first word in which the texts differ. This format is never detected
automatically, because two texts may begin alike by chance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats import RecordFormat
from steps.data.formats.preference import paired
from steps.data.records.record_fields import found, text
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, PreferenceRow
from steps.shared.beginnings import shared_length


@dataclass(frozen=True)
class ImplicitFormat(RecordFormat):
    """Names of fields, both plain texts; `system` is given to every prompt."""

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
