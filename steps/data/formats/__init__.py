"""The formats of records, one module a family, each a frozen dataclass of the fields that it reads.

`RecordFormat` is what they have in common. Begin with ``preference``. ``by_name`` lists them,
``choice`` finds one by name or by its records, and ``format_errors`` says what to type where it
cannot. ``layouts`` lists the field names of popular data sets, ``plain_texts`` has formats of
texts.

Uses ``records``, ``readers`` and ``rows``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.rows.rows import Row


@dataclass(frozen=True)
class RecordFormat:
    """A layout of records, as names of fields. `system` is given to rows without a system prompt.

    `makes` is the kind of row.
    """

    makes: ClassVar[type]
    system = None  # a field of the formats whose rows have messages

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        """The format with the names of its fields, if `record` looks like it in one way only; one
        that is never found so has to be named."""
        return None

    def parse(self, record: Mapping[str, Any], row: str) -> Row | Sequence[Row]:
        """The row that `record` describes, labelled `row`; or several, `row#1`, `row#2` and so on.

        Raises:
            MalformedRow: the record is no row of this format.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ChatRecords(RecordFormat):
    """What all records of conversations may name: the columns of tools, of arguments of the chat
    template and of a system prompt; a system prompt for rows without one; and the order of turns.
    """

    tools: str = "tools"
    template_kwargs: str = "chat_template_kwargs"
    system_field: str | None = "system"
    system: str | None = None
    turns: str = "alternating"
