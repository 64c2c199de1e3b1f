"""The shared implementation of the steps that load rows: read sources, report metrics and notices.

``load_preferences``, ``load_conversations`` and the others differ only in the kind of row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from pipeline import File, HubDataset, Metrics, Output, TemperError
from steps.checking.verdicts import Checker, require_checkable
from steps.data.formats.choice import OPTIONAL, SETTINGS, FormatChoice, format_name
from steps.data.formats.preference import BY_SCORE
from steps.data.formats.ranked import RankedFormat
from steps.data.load.config import LoadConfig
from steps.data.load.file_advice import COLUMNS, are_columns, of_file, of_only_record
from steps.data.load.loading import Load, Loaded, Part, Reading, load_rows, part_of
from steps.data.load.prefetch import ReadingStopped
from steps.data.load.shards import FileShard, Reader, Source, hub_source, is_empty, source_of
from steps.data.records.record_fields import found
from steps.data.rows.ledger import Tally, TooManyDropped
from steps.data.rows.parquet import iter_rows
from steps.data.rows.reasons import CONTRADICTORY
from steps.data.rows.rows import EXTRA_KEYS
from steps.shared.execution_detail import execution_detail
from steps.sources import DataSource, Files, Mixed, MixturePart


def write_splits(
    out: Output, kind: type, train: DataSource, test: DataSource | None, config: LoadConfig
) -> Metrics:
    """Write the rows of ``train`` and ``test`` and the ledger. Return counts and notices.

    Raises:
        TemperError: a source has no valid rows or too few, or a split is empty.
    """
    try:
        load = Load(
            kind,
            _reading(train, config.format, kind),
            None if test is None else _reading(test, config.format, kind),
            config,
        )
        loaded = load_rows(
            load, out.path, out.scratch, lambda done, shown: out.progress(done, None, shown)
        )
        check_load(load, loaded, config.max_dropped)
    except (ValueError, FileNotFoundError, ReadingStopped) as error:
        raise TemperError(str(error)) from error
    return _metrics(load, loaded)


def require_splits(out: Output, checker: Checker | None, most_without: float) -> None:
    """Raise TemperError if a split has too many answers that the checker cannot compare with."""
    for split in ("train", "test"):
        files = sorted((out.path / split).glob("prompts-*.parquet"))
        answers = {row["row"]: row["answer"] for file in files for row in iter_rows(file)}
        try:
            if checker is not None:
                require_checkable(checker, answers, most_without)
        except ValueError as error:
            raise TemperError(str(error)) from None


def _reading(source: DataSource, choice: FormatChoice, kind: type) -> Reading:
    if isinstance(source, Mixed):
        parts = tuple(
            replace(
                part_of(_repeated(part), part.format, kind, part.weight, part.name),
                is_repeated=part.repeat > 1,
            )
            for part in source.parts
        )
        if empty := [part.name for part in parts if is_empty(part.source)]:
            raise TemperError(
                f"data.mixture: {' and '.join(empty)} has no rows; name other files, or take it out"
            )
        return Reading(" + ".join(part.name for part in source.parts), parts, source.until)
    part = part_of(_source(source), choice, kind)
    return Reading(part.source.name, (part,))


def _repeated(part: MixturePart) -> Source:
    source = _source(part.source)
    return replace(source, shards=source.shards * part.repeat)


def _source(source: File | Files | HubDataset) -> Source:
    if isinstance(source, HubDataset):
        chosen = {name: getattr(source, name) for name in ("name", "data_dir", "data_files")}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        return hub_source(source.repo, source.revision, source.split, **chosen)
    if isinstance(source, File):
        return source_of(source.url)
    named = zip(source.files, source.names, strict=True)
    shards = tuple(FileShard(file.url, name) for file, name in named)
    return Source(f"{shards[0].name} and {len(shards) - 1} more files", shards)


def check_load(load: Load, loaded: Loaded, max_dropped: float) -> None:
    """Raise TemperError for verdicts of unclear meaning, for sources without valid rows or with
    too few, and for empty splits."""
    if several := next((said for said in loaded.verdicts.values() if len(said) > 1), None):
        raise TemperError(
            f"data.fields.first names one value of the column that says which side is better; it "
            f"also has the values {', '.join(several)}: name the one that means the second side "
            "with data.fields.second (all others are then ties)"
        )
    for split, reading in load.readings():
        tally = loaded.tallies[split]
        if not tally.rows:
            raise TemperError(f"{reading.name} has no rows")
        if tally.unusable_rows == tally.rows:
            raise TemperError(
                f"{reading.name} has no valid row: all {tally.rows} were dropped: "
                f"{tally.worst_reasons()}{_fields_of(reading)}"
            )
        rated = tally.dropped.get("label is a rating")
        if rated and split in loaded.numbered:
            raise TemperError(
                f"{reading.name}: {rated.count} of {tally.rows} labels are numbers besides 0 and "
                f"1, so it is not certain what these mean (first in {rated.rows[0]}): "
                f"{rated.detail}"
            )
        unread = tally.dropped.get("label not a boolean") or rated
        if unread and len(loaded.labels) == 1:
            raise TemperError(
                f"{reading.name}: every valid row is {_GOOD[loaded.labels[0]]}, since other "
                f"labels were not understood ({unread.count} of {tally.rows} rows): {unread.detail}"
            )
        try:
            tally.check(max_dropped, reading.name)
        except TooManyDropped as error:
            raise TemperError(f"{error}{_of_no_record(reading)}") from error
        # Lists of as many texts could be one pair of several turns; alone in a file they are not.
        if tally.rows == 1 and any(map(are_columns, _only_record(reading.parts[0]))):
            raise TemperError(f"{reading.name}: {COLUMNS}")
    for split in ("train", "test"):
        if not loaded.kept[split] and (split == "train" or load.test or load.config.test_fraction):
            raise TemperError(_empty(split, load))


_GOOD = {True: "good", False: "bad"}


def _first_record(part: Part) -> Mapping | None:
    """The first row of a source; None if that is no record."""
    first = Reader(part.source).next()
    record = first[1][1] if first else None
    return record if isinstance(record, Mapping) else None


@execution_detail
def _of_no_record(reading: Reading) -> str:
    """A hint for an error: what the first file probably is, if its first row is no record."""
    part = reading.parts[0]
    said = "" if _first_record(part) is not None else of_file(part.source.shards[0])
    return said and f"; {said}"


_NO_COLUMNS = (*SETTINGS, *OPTIONAL, "first", "second", "good", "trained")
"""Fields of formats that do not name a column, or one that rows need not have."""
_OF_COMPLETIONS = ("text", "score", "rank")
"""Fields of `ranked` that name a key of a completion, or a column."""


@execution_detail
def _fields_of(reading: Reading) -> str:
    """A hint for an error when every row was dropped: the fields of the first row, and the columns
    that it lacks; or what the file probably is."""
    part = reading.parts[0]
    record = _first_record(part)
    if record is None:
        return _of_no_record(reading)
    if said := of_only_record(_only_record(part)):
        return f"; {said}"
    ranked = _OF_COMPLETIONS if isinstance(part.format, RankedFormat) else ()
    names = (f.name for f in fields(part.format) if f.name not in (*_NO_COLUMNS, *ranked))
    columns = {name: getattr(part.format, name) for name in names}
    if not isinstance(found(record, columns.get("chosen", "")), str | None):
        columns.pop("prompt", None)  # the sides are whole conversations
    lacking = [
        c
        for c in columns.values()
        if c not in (None, BY_SCORE) and c not in record and not found(record, c)
    ]
    if not lacking:
        return ""  # the names are right, and the fault is in the values
    return (
        f"; its rows have the fields {', '.join(sorted(map(str, record))[:20]) or 'none'}, and no "
        f"{' or '.join(lacking)}: say which is which with data.format=NAME "
        "'data.fields={FIELD: COLUMN}'"
    )


def _only_record(part: Part) -> list[Mapping[str, Any]]:
    """The record of a source that has one alone; else nothing."""
    rows = Reader(part.source)
    first, second = rows.next(), rows.next()
    return [first[1][1]] if first and second is None and isinstance(first[1][1], Mapping) else []


def _empty(split: str, load: Load) -> str:
    if load.test is None:
        return (
            f"no row is left for {split} when test_fraction={load.config.test_fraction} of the "
            "prompts is held out; change data.test_fraction, add rows, or name a file with "
            "data.test_path (in Python LoadConfig(test_fraction=…) and test=File(…))"
        )
    return f"every row of {split} equals one of train; name other rows, or duplicates=keep"


def _metrics(load: Load, loaded: Loaded) -> dict[str, Any]:
    every = Tally()
    for tally in loaded.tallies.values():
        every.merge(tally)
    metrics = {
        "rows": every.rows,
        **{split: kept for split, kept in loaded.kept.items() if kept},
        "formats": {split: _formats(reading.parts) for split, reading in load.readings()},
        **_drawn(load, loaded),
        **({"ignored_keys": loaded.ignored} if loaded.ignored else {}),
        **({"kept_twice": loaded.doubled} if loaded.doubled else {}),
        **every.metrics(),
    }
    told = (
        _unread(load, loaded), _leaked(loaded), _ignored(loaded), _missing(load, loaded),
        _doubtful(loaded), _judged(loaded),
    )  # fmt: skip
    if notices := dict.fromkeys([*metrics.get("notices", []), *chain(*told)]):
        metrics["notices"] = [*notices]
    return metrics


def _formats(parts: tuple[Part, ...]) -> str | dict[str, str]:
    if len(parts) == 1:
        return format_name(parts[0].format)
    return {part.name: format_name(part.format) for part in parts}


def _drawn(load: Load, loaded: Loaded) -> dict[str, Any]:
    """For mixtures, how many rows of each source were read, and how many were kept."""
    drawn = {
        split: dict(zip([part.name for part in reading.parts], loaded.drawn[split], strict=True))
        for split, reading in load.readings()
        if len(reading.parts) > 1
    }
    kept = {split: counts for split, counts in loaded.kept_of.items() if counts}
    return {"drawn": drawn, "kept_of": kept} if drawn else {}


def _ignored(loaded: Loaded) -> Iterator[str]:
    """Notices about keys and columns of rows that nothing reads."""
    said = {key: f"{key} ({rows} rows)" for key, rows in loaded.ignored.items()}
    if keys := [what for key, what in said.items() if "[]." in key]:
        yield f"keys of messages that are not read: {', '.join(keys)}; read are {_EXTRA}"
    if columns := [what for key, what in said.items() if "[]." not in key]:
        yield (
            f"columns that look as if they mattered are not read: {', '.join(columns)}; name them "
            "in data.fields if they do, or one of the images of preference pairs with "
            "data.images=COLUMN"
        )


def _missing(load: Load, loaded: Loaded) -> Iterator[str]:
    """A notice for each source of which no row has a column that the config names."""
    for split, reading in load.readings():
        for index, part in enumerate(reading.parts):
            there = loaded.named.get(f"{split} {index}", ())
            if missing := [column for column in part.named if column not in there]:
                yield (
                    f"no row of {part.name or reading.name} has {', '.join(missing)}, which "
                    "data.fields names; correct the name, or leave it out"
                )


_EXTRA = f"{', '.join(EXTRA_KEYS)}, and of answers in conversations for SFT train, weight or loss"


def _doubtful(loaded: Loaded) -> Iterator[str]:
    """Notices about pairs that occur twice, whose sides may be exchanged, or repeat the question,
    about ends of turns that are text, and about text in a wrong encoding."""
    if loaded.doubled:
        counts = [
            f"{n} {_DOUBLED[reason]} ({first})" for reason, (n, first) in loaded.doubled.items()
        ]
        yield (
            f"of {sum(loaded.kept.values())} pairs, {' and '.join(counts)}; they are kept, and "
            "data.duplicates=drop leaves them out"
        )
    if loaded.ended:
        yield (
            f"in {loaded.ended} of {sum(loaded.kept.values())} rows a response ends with text such "
            "as </s> or <|endoftext|>; a model with other tokens learns to spell it: take it out"
        )
    count, first = loaded.misread
    if count:
        yield (
            f"{count} of {sum(loaded.kept.values())} rows, {first} first, have text such as "
            "\ufffd, â€™ or Ã©, which another program has read in a wrong encoding; make the file "
            "again from its source, read as UTF-8, or mend it with ftfy"
        )
    if loaded.scored_lower:
        yield (
            f"{loaded.scored_lower} of {sum(loaded.kept.values())} pairs score the rejected side "
            "higher than the chosen one; they are kept as they are: check which field is which"
        )
    if loaded.asked_again * 20 > (pairs := sum(loaded.kept.values())):
        yield (
            f"in {loaded.asked_again} of {pairs} pairs both responses begin with the question, "
            "which the prompt has already; if it is no part of the answers, take it out of them"
        )


_DOUBLED = {
    "duplicate": "equal an earlier one",
    CONTRADICTORY: "prefer what an earlier one rejects",
}
_MOST_WAYS = 8


def _judged(loaded: Loaded) -> Iterator[str]:
    """Notices about prompts that one checker cannot all judge."""
    count, first = loaded.rules
    if count and loaded.tests < sum(loaded.kept.values()):
        yield (
            f"the answers of {count} prompts, {first} first, are rules or tests, which no text "
            "equals: boxed, pattern and math_expression give no verdict on them, exact calls all "
            "wrong, and code runs tests in Python alone; leave these rows out of the file, or "
            "write a checker that reads them"
        )
    if len(loaded.judged_by) > 1:
        ways = [f"{way} ({rows} rows)" for way, rows in loaded.judged_by.items()]
        more = ", …" if len(ways) > _MOST_WAYS else ""
        yield (
            f"rows may name several ways to judge an answer: {', '.join(ways[:_MOST_WAYS])}{more}; "
            "one checker judges all of them, so leave out of the file what it cannot judge"
        )


def _leaked(loaded: Loaded) -> Iterator[str]:
    """A notice about prompts that are in both train and test."""
    if loaded.trained_on:
        yield (
            f"{loaded.trained_on} of the {loaded.kept['test']} test rows have a prompt that train "
            "has too: what is measured on them was learned; duplicates=drop leaves out those "
            "whose responses are equal as well"
        )


def _unread(load: Load, loaded: Loaded) -> Iterator[str]:
    """A notice for each mixture that ended early: which source ended it, and how many rows of the
    others were read."""
    for split, reading in load.readings():
        if (index := loaded.ended_by[split]) is None:
            continue
        counts = zip(reading.parts, loaded.drawn[split], strict=True)
        others = [f"{n} of {part.name}" for i, (part, n) in enumerate(counts) if i != index]
        yield (
            f"the mixture of {split} ended when {reading.parts[index].name} had no more rows "
            f"(number {loaded.drawn[split][index] + 1} was due); rows read until then: "
            f"{', '.join(others)}, the rest of which are not in it"
        )
