"""Plain text, without turns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import RecordFormat
from steps.data.records.record_fields import as_written, found, text
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import TextRow


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
