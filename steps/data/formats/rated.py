"""One response with a rating a record: adjacent records of one prompt become pairs.

So HelpSteer 2 is written. :func:`of_one_prompt` joins the records before they are parsed, and
:mod:`steps.data.formats.ranked` makes the pairs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.data.formats import ChatRecords
from steps.data.formats.ranked import PAIRS, RankedFormat
from steps.data.readers import Item
from steps.data.records.conversations import systems_of
from steps.data.records.record_fields import found, parsed_json
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PreferenceRow

_RECORDS = "rows of the prompt"
_MOST_RECORDS = 1000


@dataclass(frozen=True)
class RatedFormat(ChatRecords):
    """Names of fields: each record has a `prompt`, a `completion` and its `score` (higher is
    better). Records of one prompt stand one after another, with equal system prompts, tools and
    arguments of the chat template."""

    prompt: str = "prompt"
    completion: str = "response"
    score: str = "score"
    pairs: str = PAIRS[0]

    makes: ClassVar[type] = PreferenceRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        names = ("prompt", "response", "helpfulness", "correctness", "coherence")
        is_one = all(record.get(name) is not None for name in names)
        return cls(score="helpfulness") if is_one else None

    def parse(self, record: Mapping[str, Any], row: str) -> list[PreferenceRow]:
        joined = record.get(_RECORDS, [record])
        if len(joined) < 2:
            raise MalformedRow(
                "one completion",
                f"the rows beside it have another {self.prompt}, system prompt, tools or template "
                f"arguments; sort the rows by {self.prompt}",
            )
        shared = {name: value for name, value in vars(self).items() if name != "completion"}
        ranked = RankedFormat(completions=_RECORDS, text=self.completion, **shared)
        return ranked.parse(record, row)

    def asked(self, record: Mapping[str, Any]) -> list[Any]:
        """All that a completion answers, unless the record has no prompt."""
        names = (self.tools, self.template_kwargs, *systems_of(self.system_field))
        settings = (parsed_json(found(record, name)) or None for name in names)
        return [found(record, self.prompt), *settings]


def of_one_prompt(items: Iterable[Item], named: RatedFormat) -> Iterator[Item]:
    """Join adjacent records that answer the same, at most 1,000 of them. A joined record has the
    number of its last one, from which reading goes on."""
    last = 0
    joined: list[Mapping[str, Any]] = []
    for number, record in items:
        if joined and not _joins(joined, record, named):
            yield last, {**joined[0], _RECORDS: joined}
            joined = []
        if isinstance(record, MalformedRow):
            yield number, record
        else:
            last = number
            joined.append(record)
    if joined:
        yield last, {**joined[0], _RECORDS: joined}


def _joins(
    joined: list[Mapping[str, Any]], record: Mapping[str, Any] | MalformedRow, named: RatedFormat
) -> bool:
    if isinstance(record, MalformedRow) or found(record, named.prompt) is None:
        return False
    return named.asked(record) == named.asked(joined[0]) and len(joined) < _MOST_RECORDS
