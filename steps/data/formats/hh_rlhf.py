r"""HH-RLHF (Bai et al. 2022): each side is one string, "\n\nHuman: …\n\nAssistant: …".

White space around a turn's text belongs to the markers and is removed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.formats.preference import paired
from steps.data.formats.turns import template_kwargs, text, tools
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages, PreferenceRow

_MARKER = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class HHFormat:
    """Names of fields; `system` is given to every dialogue, since none has one of its own."""

    chosen: str = "chosen"
    rejected: str = "rejected"
    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system: str | None = None

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> "HHFormat | None":
        """The format, if both sides are dialogues in one string and there is no prompt beside."""
        sides = (record.get("chosen"), record.get("rejected"))
        dialogues = all(isinstance(side, str) and _MARKER.match(side) for side in sides)
        return cls() if dialogues and record.get("prompt") is None else None

    def parse(self, record: Mapping[str, Any], row: str) -> PreferenceRow:
        """The pair that `record` describes, labelled `row`.

        Raises:
            MalformedRow: the record is no usable pair.
        """
        if record.get(self.chosen) is None:
            raise MalformedRow("no chosen", f"{self.chosen} is missing")
        if record.get(self.rejected) is None:
            raise MalformedRow("no rejected", f"{self.rejected} is missing")
        return paired(
            row,
            _turns(record[self.chosen], self.chosen),
            _turns(record[self.rejected], self.rejected),
            names=(self.chosen, self.rejected),
            system=self.system,
            tools=tools(record, self.tools),
            template_kwargs=template_kwargs(record, self.template_kwargs),
        )


def _turns(value: Any, field: str) -> Messages:
    before, *pieces = _MARKER.split(text(value, field))
    if before or not pieces:
        raise MalformedRow("no turn markers", f"{field} does not start with 'Human:'")
    return tuple(
        Message(role=_ROLES[marker], content=said.strip())
        for marker, said in zip(pieces[::2], pieces[1::2], strict=True)
    )
