"""Read sources, parse, split and limit their rows, and write shards and a ledger of all rows.

Rows are processed in order, in chunks of at most `ROWS_PER_SHARD` rows or `CHUNK_BYTES` of text.
For each chunk, the rows of each split are one file and its ledger lines another; then the chunk is
committed (`resume_point`). So memory holds one chunk, a killed step resumes at the chunk that it
was processing, and the files depend only on the sources.

Rows beyond a limit are also read and checked, so that the ledger is complete.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice, starmap
from pathlib import Path
from typing import Any

from steps.checking.verdicts import assertions, held_in, is_rule
from steps.data.formats import RecordFormat
from steps.data.formats.choice import FormatChoice, choose_format
from steps.data.images.finding import ImageColumn, Pictures
from steps.data.images.image_table import IMAGES, write_images
from steps.data.images.pictures import Picture
from steps.data.load.config import LoadConfig
from steps.data.load.file_advice import of_file, of_only_record
from steps.data.load.mixture import Mixture, Opener
from steps.data.load.near_duplicates import NearRows
from steps.data.load.overlap import texts_of
from steps.data.load.parsing import Parsed, ParsedRow, Parser
from steps.data.load.prefetch import ReadAhead
from steps.data.load.shards import Source, open_shard
from steps.data.rows.ledger import OVER_LIMIT, Entry, Tally
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.reasons import CONTRADICTORY, MalformedRow
from steps.data.rows.rows import PreferenceRow, PromptRow, Row, UnpairedRow
from steps.data.rows.tables import (
    LEDGER,
    ROWS_PER_SHARD,
    SCHEMAS,
    schema_of,
    shard_name,
    to_record,
)
from steps.data.work.resume_point import ResumePoint
from steps.data.work.workers import place, rarely_collecting

CHUNK_BYTES = 64 * 2**20
_ROWS_LOOKED_AT = 20
_MOST_ROWS_LOOKED_AT = 1000
_MOST_KEYS_COUNTED = 100
_MOST_VERDICTS = 5
_ENDED = re.compile(
    r"(?:</s>|<eos>|<pad>|\[PAD\]|<end_of_turn>|<\|(?:endoftext|im_end|eot_id|end_of_text|end)\|>"
    r"|<｜end▁of▁sentence｜>)\s*\Z"
)
"""How a text ends that a model wrote whose tokens were turned into text, too."""
_MISREAD = re.compile("\ufffd|â€|Ã[\x80-\xbf]|Â[\xa0-\xbf]")
"""What becomes of letters that were read in another encoding than they were written in."""

Progress = Callable[[int, Mapping[str, Any]], None]
"""Called with the number of rows read so far, and counts to show."""


@dataclass(frozen=True)
class Part:
    """A source of a mixture.

    Attributes:
        name: if there is one, it prefixes the labels of rows.
        named: columns that the config names though rows need not have them.
        is_repeated: whether the source has each of its files several times.
    """

    source: Source
    format: RecordFormat
    weight: float = 1.0
    name: str = ""
    images: ImageColumn | None = None
    named: tuple[str, ...] = ()
    is_repeated: bool = False


@dataclass(frozen=True)
class Reading:
    """The source of a split: one part, or several in proportion to their weights."""

    name: str
    parts: tuple[Part, ...]
    until: str = "first exhausted"


@dataclass(frozen=True)
class Load:
    """What to read, and how.

    Args:
        kind: the kind of row.
        test: without it, `config.test_fraction` of the prompts of `train` are held out.
        config: the settings, but for the format, which each part has.
    """

    kind: type
    train: Reading
    test: Reading | None = None
    config: LoadConfig = field(default_factory=LoadConfig)

    def readings(self) -> list[tuple[str, Reading]]:
        every = (("train", self.train), ("test", self.test))
        return [(split, reading) for split, reading in every if reading is not None]


@dataclass
class Loaded:
    """The outcome of a load.

    Attributes:
        kept: the number of kept rows by split.
        kept_of: the number of kept rows by split and by name of the part.
        tallies: the tally of each split's source.
        drawn: for each split's source, the number of rows read from each part.
        trained_on: the number of test rows whose prompt is also in train.
        scored_lower: the number of pairs whose chosen response has the lower score.
        asked_again: the number of pairs of which both responses begin with the question.
        ended: the number of rows of which a response ends with the text of a token that ends turns.
        doubled: the number of kept pairs that equal or contradict an earlier one, and the first of
            them, by reason.
        misread: the number of rows with text that was probably read in a wrong encoding, and the
            first of them.
        ignored: columns and keys of messages that are not read, with the number of rows.
        labels: the verdicts of valid single completions that occur, over a limit or not.
        numbered: the splits' sources in which a valid verdict is a number, 0 or 1.
        rules: the number of prompts whose answer is a rule or tests, and the first of them.
        tests: the number of those that have a list of assertions.
        judged_by: the number of prompts by `COLUMN is VALUE`, where a column names their checker.
        verdicts: for each part, values of `better` that were read as not `first`.
        named: for each part, those of the columns named in the config that a row has.
        ended_by: for each split, the part that ended the mixture while others had more rows.
    """

    kept: dict[str, int]
    kept_of: dict[str, dict[str, int]]
    tallies: dict[str, Tally]
    drawn: dict[str, list[int]]
    ended_by: dict[str, int | None]
    trained_on: int
    ignored: dict[str, int]
    scored_lower: int
    asked_again: int
    ended: int
    doubled: dict[str, tuple[int, str]]
    misread: tuple[int, str]
    labels: list[bool]
    numbered: list[str]
    rules: tuple[int, str]
    tests: int
    judged_by: dict[str, int]
    verdicts: dict[str, list[str]]
    named: dict[str, list[str]]


def load_rows(load: Load, folder: Path, scratch: Path, progress: Progress) -> Loaded:
    """Write `SPLIT/pairs-00000.parquet` … (the name depends on the kind of row) and
    `ledger.parquet`.

    Args:
        folder: the folder for the files; it stays empty until all rows have been read.
        scratch: a folder that survives a killed call. It belongs to this `load`.
    """
    with ResumePoint(scratch) as resumed, rarely_collecting():
        work = _Work(load, resumed, scratch / "shards", progress)
        try:
            while not work.state["done"]:
                work.make_chunk()
        finally:
            work.close()
        changed = bool(work.state["withdrawn"])
        _publish(scratch / "shards", folder, resumed, SCHEMAS[load.kind], changed)
    state = work.state
    found: dict[str, Any] = {field.name: state[field.name] for field in fields(Loaded)}
    found["tallies"] = {split: Tally.from_json(data) for split, data in found["tallies"].items()}
    return Loaded(**found)


def part_of(
    source: Source, choice: FormatChoice, kind: type, weight: float = 1.0, name: str = ""
) -> Part:
    """A source with its format; with `auto`, the format of its first rows.

    Raises:
        ValueError: the rows fit no format or several.
    """
    if choice.images is not None and kind is not PreferenceRow:
        raise ValueError("data.images names a column of preference pairs; other rows have none")
    records = () if choice.name != "auto" else _first_records(source)
    images = None if choice.images is None else ImageColumn(choice.images)
    try:
        chosen = choose_format(choice, records, kind, source.name)
    except ValueError as error:
        if said := of_only_record(records) or of_file(source.shards[0]):
            raise ValueError(f"{source.name}: {said}") from error
        raise
    return Part(source, chosen, weight, name, images, choice.named)


class _Work:
    """The chunks of one load, made one after another."""

    def __init__(self, load: Load, resumed: ResumePoint, folder: Path, progress: Progress) -> None:
        self.load, self.resumed, self.folder, self.progress = load, resumed, folder, progress
        self.state: dict[str, Any] = resumed.state or _beginning(load)
        self.readings = load.readings()
        self._ahead: list[ReadAhead] = []
        near = load.config.near_duplicates
        self._near = None if near is None else NearRows(near, resumed)
        self._pictures: dict[str, list[Picture]] = {}
        self._image_bytes = 0
        self._open_reading()

    def _open_reading(self) -> None:
        """Go on with the reading that the state names."""
        self.split, self.reading = self.readings[self.state["reading"]]
        self.close()
        parts = self.reading.parts
        openers = [self._opener(part, n, len(parts)) for n, part in enumerate(parts)]
        sources, weights = [p.source for p in parts], [p.weight for p in parts]
        position = self.state["position"]
        self.mixture = Mixture(sources, weights, self.reading.until, position, openers)
        self.tally = Tally.from_json(self.state["tallies"][self.split])

    def _opener(self, part: Part, number: int, parts: int) -> Opener:
        """How the files of a part are read: by other processes, of which it gets its share, or by
        this one. Files of images are always read by this one, which is observed."""
        config, compared = self.load.config, self.load.test is not None
        fraction = None if compared else config.test_fraction
        keys = config.duplicates == "drop" or self.load.kind is PreferenceRow, compared
        parser = Parser(part.format, part.images, fraction, *keys, part.named)
        others = (config.workers or os.cpu_count() or 1) - 1
        if others > number and part.images is None:
            processes = others // parts + (number < others % parts)
            self._ahead.append(ReadAhead(part.source, parser, processes))
            return self._ahead[-1].open
        shards = part.source.shards
        return lambda shard, start: parser.rows(shards[shard], start)

    def close(self) -> None:
        """End other processes."""
        while self._ahead:
            self._ahead.pop().close()

    def make_chunk(self) -> None:
        """Read, write and commit one chunk."""
        rows: dict[str, list[tuple[Row, str]]] = {}
        entries: list[Entry] = []
        size, dropped = 0, self.tally.dropped_rows
        while len(entries) < ROWS_PER_SHARD and size + self._image_bytes < CHUNK_BYTES:
            if (drawn := self.mixture.draw()) is None:
                if not self._next_reading():
                    break
                continue
            for entry, row, characters in self._judge(*drawn):
                entries.append(entry)
                dropped = self.tally.add(entry)
                if row is not None:
                    rows.setdefault(entry.split, []).append((row, entry.row))
                    size += characters
            self.state["read"] += 1
            self.progress(self.state["read"], {"dropped": dropped})
        written = self._write(rows, entries)
        self._note_place()
        self.resumed.commit(self.state, written)

    def _next_reading(self) -> bool:
        self._note_place()
        if self.state["reading"] + 1 == len(self.readings):
            self.state["done"] = True
            return False
        self.state["reading"] += 1
        self.state["position"] = None
        self._open_reading()
        return True

    def _note_place(self) -> None:
        self.state["position"] = self.mixture.position
        self.state["drawn"][self.split] = list(self.mixture.drawn)
        self.state["ended_by"][self.split] = self.mixture.ended_by
        self.state["tallies"][self.split] = self.tally.to_json()

    def _judge(
        self, index: int, shard: str, item: tuple[int, Parsed]
    ) -> Iterator[tuple[Entry, Row | None, int]]:
        """The ledger entries of one record, with its rows and their sizes: none, one or several."""
        part, split = self.reading.parts[index], self.split
        number, parsed = item
        place = f"{shard}:{number}"
        name = self._label(part, parsed.label, place)
        if parsed.problem is not None:
            yield Entry.dropped(split, shard, name, parsed.problem), None, 0
            return
        _count(parsed.ignored, self.state["ignored"])
        _count([" is ".join(parsed.judged_by)] if parsed.judged_by else (), self.state["judged_by"])
        self._note_verdict(parsed.verdict, f"{split} {index}")
        self._note_named(parsed.named, f"{split} {index}")
        if parsed.numbered and split not in self.state["numbered"]:
            self.state["numbered"].append(split)
        again = part.is_repeated and not self.resumed.is_new(f"read {index}", place.encode())
        for made in parsed.rows:
            if again and made.held_out:
                problem = MalformedRow("duplicate", "held-out rows are read once, despite repeat")
                yield Entry.dropped("test", shard, name + made.row.row, problem), None, 0
                continue
            label = name + made.row.row
            entry = self._judge_row(made, label, part, shard, parsed.pictures, again)
            yield entry, None if entry.outcome == "dropped" else made.row, made.size

    def _judge_row(
        self, made: ParsedRow, name: str, part: Part, shard: str, pictures: Pictures, again: bool
    ) -> Entry:
        split = "test" if made.held_out else self.split
        try:
            if made.problem is not None:
                raise made.problem
            self._note_label(made.row)
            doubled = self._choose(made, [name, self.split, split, part.name], again)
            self._compare(made, split)
            self._note_pair(made.row)
            self._note_answer(made.row, name)
            self.state["ended"] += any(map(_ENDED.search, _last_said(made.row)))
            self._note_misread(made.row, name)
        except MalformedRow as problem:
            return Entry.dropped(split, shard, name, problem)
        self.state["kept"][split] += 1
        counts = self.state["kept_of"][split]
        counts[part.name] = counts.get(part.name, 0) + 1
        self._keep(pictures, split)
        if doubled is None:
            return Entry(split, shard, name, "kept")
        count, first = self.state["doubled"].get(doubled.reason, (0, name))
        self.state["doubled"][doubled.reason] = [count + 1, first]
        return Entry(split, shard, name, "kept", doubled.reason, doubled.detail)

    def _keep(self, pictures: Pictures, split: str) -> None:
        """Remember the images of a kept row that no earlier row of the split has."""
        for picture in pictures:
            if self.resumed.is_new(f"image {split}", picture.sha256.encode()):
                self._pictures.setdefault(split, []).append(picture)
                self._image_bytes += len(picture.content)

    def _choose(self, made: ParsedRow, place: list[str], again: bool) -> MalformedRow | None:
        """Drop a valid row that is over a limit, or doubled and not wanted; return why it is
        doubled if it is wanted.

        Args:
            place: its label, and the names of its reading, its split and its part.
        """
        config, (name, _, split, _) = self.load.config, place
        limit = config.max_train if split == "train" else config.max_test
        if limit is not None and self.state["kept"][split] >= limit:
            raise MalformedRow(OVER_LIMIT, f"{split} has its {limit} rows already")
        doubled = None
        if made.content and not (again and config.duplicates == "keep"):
            doubled = self._doubled(made.content[:16], made.content[16:], place)
        if doubled and config.duplicates == "drop":
            raise doubled
        if self._near:
            number = sum(self.state["kept"].values()) + self.state["withdrawn"]
            if found := self._near.like(made.row, name, number):
                if doubled is None and made.content:  # it is not kept, so none can withdraw it
                    noted = made.content[16:] + json.dumps([name]).encode()
                    self.resumed.note("content", made.content[:16], noted)
                raise MalformedRow("near duplicate", found)
        return doubled

    def _doubled(self, key: bytes, side: bytes, place: list[str]) -> MalformedRow | None:
        """Why a row is doubled, if an earlier one equals or contradicts it; else its place is
        noted. With `duplicates=drop` what is contradicted is withdrawn."""
        if self.resumed.note_first("content", key, side + json.dumps(place).encode()):
            return None
        noted = self.resumed.noted("content", key) or b""
        first: list[str] = json.loads(noted[len(side) :])
        if noted.startswith(side):
            return MalformedRow("duplicate", f"row {first[0]} has the same prompt and responses")
        if self.load.config.duplicates == "drop" and len(first) > 1:
            self._withdraw(first, f"row {place[0]} has its sides exchanged")
            self.resumed.note("content", key, noted[:1] + json.dumps(first[:1]).encode())
        return MalformedRow(CONTRADICTORY, f"row {first[0]} has its sides exchanged")

    def _withdraw(self, place: list[str], detail: str) -> None:
        """Leave out a pair that was kept; `_publish` takes it out of its file."""
        name, reading, split, part = place
        self.resumed.note("withdrawn", f"{split}/{name}".encode(), detail.encode())
        self.state["withdrawn"] += 1
        self.state["kept"][split] -= 1
        self.state["kept_of"][split][part] -= 1
        is_earlier, tallies = reading != self.split, self.state["tallies"]
        tally = Tally.from_json(tallies[reading]) if is_earlier else self.tally
        tally.kept -= 1
        tally.add(Entry.dropped(split, "", name, MalformedRow(CONTRADICTORY, detail)))
        if is_earlier:
            tallies[reading] = tally.to_json()

    def _note_label(self, row: Row) -> None:
        if isinstance(row, UnpairedRow) and row.label not in self.state["labels"]:
            self.state["labels"].append(row.label)

    def _note_pair(self, row: Row) -> None:
        if isinstance(row, PreferenceRow):
            chosen, rejected = row.score_chosen, row.score_rejected
            if chosen is not None and rejected is not None:
                self.state["scored_lower"] += chosen < rejected
            asked = row.prompt[-1]["content"].strip()
            said = [side[0]["content"].lstrip() for side in (row.chosen, row.rejected)]
            repeats = bool(asked) and all(text.startswith(asked) for text in said)
            self.state["asked_again"] += repeats

    def _note_answer(self, row: Row, name: str) -> None:
        if isinstance(row, PromptRow) and row.answer is not None and is_rule(row.answer):
            count, first = self.state["rules"]
            self.state["rules"] = [count + 1, first or name]
            self.state["tests"] += bool(assertions(held_in(row.answer)))

    def _note_misread(self, row: Row, name: str) -> None:
        if any(_MISREAD.search(text) for text in texts_of(row) if not text.isascii()):
            count, first = self.state["misread"]
            self.state["misread"] = [count + 1, first or name]

    def _note_verdict(self, other: str | None, part: str) -> None:
        """Keep the first values that were read as the second side because they are not `first`."""
        found = self.state["verdicts"].setdefault(part, [])
        if other is not None and other not in found and len(found) < _MOST_VERDICTS:
            found.append(other)

    def _note_named(self, columns: Iterable[str], part: str) -> None:
        found = self.state["named"].setdefault(part, [])
        found += [column for column in columns if column not in found]

    def _compare(self, made: ParsedRow, split: str) -> None:
        """Count test rows whose prompt is also in train, which is read first."""
        if self.load.test is None:
            return
        if split == "train":
            self.resumed.is_new("train prompt", made.prompt)
        elif self.resumed.has("train prompt", made.prompt):
            self.state["trained_on"] += 1

    def _label(self, part: Part, own_label: str, place: str) -> str:
        """A unique label: the record's own id, or its place if it has no id or a repeated one."""
        prefix = f"{part.name}/" if part.name else ""
        own = prefix + (own_label or place)
        number = 1
        found = own
        while not self.resumed.is_new(f"label {self.split}", found.encode()):
            found = prefix + place if number == 1 else f"{prefix}{place} ({number})"
            number += 1
        return found

    def _write(self, rows: Mapping[str, list[tuple[Row, str]]], entries: list[Entry]) -> list[Path]:
        numbers, written = self.state["shards"], list[Path]()
        for split, pictures in self._pictures.items():
            path = self.folder / split / IMAGES / f"images-{numbers[split]:05d}.parquet"
            write_images(path, pictures)
            _settle(path)
            written.append(path)
        self._pictures.clear()
        self._image_bytes = 0
        for split, kept in rows.items():
            path = self.folder / split / shard_name(self.load.kind, numbers[split])
            records = list(starmap(to_record, kept))
            schema = schema_of(self.load.kind, set().union(*records))
            _write_settled(path, schema, (dict.fromkeys(schema.names) | r for r in records))
            written.append(path)
            numbers[split] += 1
        path = self.folder / "ledger" / f"ledger-{numbers['ledger']:05d}.parquet"
        _write_settled(path, LEDGER, map(vars, entries))
        numbers["ledger"] += 1
        return [*written, path]


def _beginning(load: Load) -> dict[str, Any]:
    names = [split for split, _ in load.readings()]
    return {
        "reading": 0,
        "position": None,
        "read": 0,
        "done": False,
        "kept": {"train": 0, "test": 0},
        "kept_of": {"train": {}, "test": {}},
        "shards": {"train": 0, "test": 0, "ledger": 0},
        "trained_on": 0,
        "scored_lower": 0,
        "asked_again": 0,
        "ended": 0,
        "doubled": {},
        "withdrawn": 0,
        "misread": [0, ""],
        "ignored": {},
        "labels": [],
        "numbered": [],
        "rules": [0, ""],
        "tests": 0,
        "judged_by": {},
        "verdicts": {},
        "named": {},
        "drawn": {name: [] for name in names},
        "ended_by": dict.fromkeys(names),
        "tallies": {name: Tally().to_json() for name in names},
    }


def _last_said(row: Row) -> Iterator[str]:
    """The end of each response of a row."""
    names = ("chosen", "rejected", "completion", "messages")
    sides = (getattr(row, name, None) for name in names)
    last = (side[-1] for side in sides if side)
    return (message["content"][-60:] for message in last if message["role"] == "assistant")


def _count(names: Iterable[str], counts: dict[str, int]) -> None:
    for name in names:
        if name in counts or len(counts) < _MOST_KEYS_COUNTED:
            counts[name] = counts.get(name, 0) + 1


def _first_records(source: Source) -> Sequence[Mapping[str, Any]]:
    rows = (record for shard in source.shards for _, record in open_shard(shard))
    seen = islice(rows, _MOST_ROWS_LOOKED_AT)
    records = (record for record in seen if not isinstance(record, MalformedRow))
    return list(islice(records, _ROWS_LOOKED_AT))


def _write_settled(path: Path, schema: Any, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file and force it to disk, before the chunk is committed."""
    write_rows(path, schema, records)
    _settle(path)


def _settle(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _publish(shards: Path, folder: Path, resumed: ResumePoint, schema: Any, changed: bool) -> None:
    """Put the finished files into the output folder; the files in scratch stay as well.

    Args:
        schema: of the rows.
        changed: whether files have rows that were withdrawn after they were written.
    """

    def why_withdrawn(split: str, row: Mapping[str, Any]) -> bytes | None:
        return resumed.noted("withdrawn", f"{split}/{row['row']}".encode()) if changed else None

    def judged(row: dict[str, Any]) -> dict[str, Any]:
        if why := why_withdrawn(row["split"], row):
            return row | {"outcome": "dropped", "reason": CONTRADICTORY, "detail": why.decode()}
        return row

    files = [shards.parent / name for name in sorted(resumed.files)]
    ledger = [path for path in files if path.parent == shards / "ledger"]
    for path in files:
        name = path.relative_to(shards)
        if path in ledger:
            continue
        if not changed or path.parent.name == IMAGES:
            place(path, folder / name)
        elif rows := [r for r in iter_rows(path) if not why_withdrawn(name.parts[0], r)]:
            write_rows(folder / name, schema, rows)
    lines = (judged(line) for path in ledger for line in iter_rows(path))
    write_rows(folder / "ledger.parquet", LEDGER, lines)
