"""What a record becomes before it is compared with others: its rows, and keys to compare by.

This depends on the record and the settings alone. So several processes may do it (`prefetch`), and
the result is the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from steps.data.formats import RecordFormat
from steps.data.formats.choice import IgnoredKeys, has_named, is_media
from steps.data.formats.preference import PreferenceFormat
from steps.data.formats.prompt import PromptFormat, judged_by
from steps.data.formats.rated import RatedFormat, of_one_prompt
from steps.data.formats.unpaired import UnpairedFormat
from steps.data.images.finding import ImageColumn, Pictures, with_images
from steps.data.load.overlap import content_key, texts_of
from steps.data.load.shards import FileShard, Shard, label, open_shard
from steps.data.load.splits import in_test_split, prompt_key, prompt_of
from steps.data.records.conversations import with_system
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, Row, TextRow


class ParsedRow(NamedTuple):
    """A row, or why it cannot be used.

    Attributes:
        row: its label is only what follows the label of its record.
        held_out: whether its prompt belongs to the held-out part.
        size: the number of characters in its texts.
        content: a key of what it says, and `prompt` of its prompt; empty if not asked for.
    """

    row: Row
    problem: MalformedRow | None = None
    held_out: bool = False
    size: int = 0
    content: bytes = b""
    prompt: bytes = b""


class Parsed(NamedTuple):
    """A record.

    Attributes:
        label: its own id; empty if it has none.
        problem: why it has no rows.
        ignored: columns and keys of messages that are not read.
        verdict: a value of `better` that was read as not `first`.
        named: those of the columns named in a config that it has.
        numbered: whether its verdict is a number, 0 or 1.
        judged_by: of a prompt, the column that names its own way to be judged, and that name.
    """

    label: str
    rows: tuple[ParsedRow, ...] = ()
    problem: MalformedRow | None = None
    pictures: Pictures = ()
    ignored: tuple[str, ...] = ()
    verdict: str | None = None
    named: tuple[str, ...] = ()
    numbered: bool = False
    judged_by: tuple[str, str] | None = None


@dataclass(frozen=True)
class Parser:
    """The settings of one part of a source.

    Args:
        fraction: of the prompts, held out; None where the held-out rows have a source of their own.
        contents, prompts: whether rows need these keys.
        named: columns of which to tell whether a record has them.
    """

    format: RecordFormat
    images: ImageColumn | None
    fraction: float | None
    contents: bool
    prompts: bool
    named: tuple[str, ...] = ()

    def rows(self, shard: Shard, start: int) -> Iterator[tuple[int, Parsed]]:
        """The records of a file from row `start` on, with their numbers."""
        bare = self.format
        if bare.system is not None:  # it is given after the split, which it must not change
            bare = replace(bare, system=None)  # pyright: ignore[reportCallIssue]
        folder = _folder_of(shard)
        records = open_shard(shard, start)
        if isinstance(bare, RatedFormat):
            records = of_one_prompt(records, bare)
        ignored = IgnoredKeys(self.format)
        return ((item[0], self._parsed(item[1], bare, folder, ignored)) for item in records)

    def _parsed(
        self,
        record: Mapping[str, Any] | MalformedRow,
        bare: RecordFormat,
        folder: Path | None,
        ignored: IgnoredKeys,
    ) -> Parsed:
        if isinstance(record, MalformedRow):
            return Parsed("", problem=record)
        own, pictures = label(record, ""), ()
        try:
            if self.images is not None:
                record, pictures = self.images.take(record, folder)
            made = bare.parse(record, "")
            rows = made if isinstance(made, Sequence) else (made,)
            unread = tuple(sorted(ignored.of(record)))
            if self.images is None and (media := [name for name in unread if is_media(name)]):
                _refuse_places(rows, media[0])
        except MalformedRow as problem:
            return Parsed(own, problem=problem)
        return Parsed(
            own,
            tuple(self._row(row, pictures) for row in rows),
            None,
            pictures,
            unread,
            bare.other_verdict(record)
            if isinstance(bare, PreferenceFormat) and bare.first is not None
            else None,
            tuple(name for name in self.named if has_named(record, name)),
            isinstance(bare, UnpairedFormat) and bare.is_number(record),
            judged_by(record) if isinstance(bare, PromptFormat) else None,
        )

    def _row(self, row: Row, pictures: Pictures) -> ParsedRow:
        try:
            if self.images is not None and isinstance(row, PreferenceRow):
                row = with_images(row, pictures)
        except MalformedRow as problem:
            return ParsedRow(row, problem)
        held_out = bool(self.fraction) and in_test_split(prompt_of(row), self.fraction)
        row = _under_system(row, self.format.system)
        return ParsedRow(
            row,
            None,
            held_out,
            sum(map(len, texts_of(row))),
            content_key(row) if self.contents else b"",
            prompt_key(prompt_of(row)) if self.prompts else b"",
        )


_PLACE = re.compile(r"<\|?(?:image|video|audio|vision)(?:[ _]\w+)?\|?>")
"""Where a text has an image, or another medium, in the spellings of LLaVA, MMMU and Qwen."""


def _refuse_places(rows: Sequence[Row], column: str) -> None:
    """Refuse a record whose text has a place for what lies in a column that nobody reads: its
    answer is about what the model would not see."""
    places = (_PLACE.search(text) for row in rows for text in texts_of(row))
    if place := next(filter(None, places), None):
        raise MalformedRow(
            "images not matched",
            f"the text has {place[0]}, and nothing reads {column}: images are read of preference "
            "pairs alone, with data.images=COLUMN; leave the row out, or its column",
        )


def _folder_of(shard: Shard) -> Path | None:
    """The folder in which a file lies, if that is on this machine."""
    if isinstance(shard, FileShard) and "://" not in shard.url:
        return Path(shard.url).parent
    return None


def _under_system(row: Row, system: str | None) -> Row:
    if system is None or isinstance(row, TextRow):
        return row
    if isinstance(row, ConversationRow):
        return replace(row, messages=with_system(row.messages, system))
    return replace(row, prompt=with_system(row.prompt, system))
