"""The shared implementation of the steps that leave out rows."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pipeline import Artifact, Metrics, Output, TemperError
from steps.data.images.image_table import copy_images
from steps.data.rows.ledger import Entry, Tally
from steps.data.rows.parquet import columns_of, iter_rows, write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Row
from steps.data.rows.tables import LEDGER, STEMS, from_record, schema_of
from steps.shared.execution_detail import execution_detail

_Row = TypeVar("_Row", bound=Row)


def keep_rows(
    out: Output,
    rows: Artifact,
    kind: type[_Row],
    splits: tuple[str, ...],
    check: Callable[[_Row], None],
) -> Metrics:
    """Write the rows of ``splits`` for which ``check`` does not raise MalformedRow, the other
    splits as they are, and ``ledger.parquet``. Return counts and notices.

    Args:
        rows: ``SPLIT/STEM-*.parquet``, where STEM names the kind of row.

    Raises:
        TemperError: there is no such split, or it has no rows left.
    """
    tallies, kept = dict[str, Tally](), dict[str, int]()
    stem = STEMS[kind]
    files = sorted(rows.path.glob(f"*/{stem}-*.parquet"))
    _require_splits(splits, {path.parent.name for path in files}, stem)
    for path in files:
        split, name = path.parent.name, f"{path.parent.name}/{path.name}"
        records, entries = iter_rows(path), list[Entry]()
        if split in splits:
            records = _kept(records, kind, check, split, name, entries)
        schema = schema_of(kind, columns_of(path))
        kept[split] = kept.get(split, 0) + write_rows(out.path / name, schema, records)
        write_rows(out.scratch / name, LEDGER, map(vars, entries))
        tally = tallies.setdefault(split, Tally())
        for entry in entries:
            tally.add(entry)
    if missing := [split for split in splits if not kept.get(split)]:
        others = tuple(split for split in splits if split not in missing)
        why = (_nothing_left(split, tallies[split], stem, others) for split in missing)
        raise TemperError("; ".join(why))
    for split in kept:
        copy_images(rows.path / split, out.path / split)
    lines = (line for path in sorted(out.scratch.glob("*/*.parquet")) for line in iter_rows(path))
    write_rows(out.path / "ledger.parquet", LEDGER, lines)
    every = Tally()
    for tally in tallies.values():
        every.merge(tally)
    return {**kept, **every.metrics()}


def _require_splits(splits: tuple[str, ...], there: set[str], stem: str) -> None:
    if isinstance(splits, str) or not splits or not there.issuperset(splits):
        known = ", ".join(f"({split!r},)" for split in sorted(there))
        raise TemperError(
            f"splits={splits!r} names no splits of these {stem}; write one of {known}, or several"
            if known
            else f"there is no SPLIT/{stem}-*.parquet; pass the whole artifact"
        )


@execution_detail
def _nothing_left(split: str, tally: Tally, stem: str, others: tuple[str, ...]) -> str:
    """Why a split has no rows left: the most frequent reasons, each with its first row."""
    worst = sorted(tally.dropped.items(), key=lambda found: -found[1].count)[:3]
    why = [f"{reason}: {d.count}, e.g. row {d.rows[0]}: {d.detail}" for reason, d in worst]
    advice = f", or leave {split} as it is: splits={others}" if others else ""
    if not why:
        return f"{split} has no {stem}; let the step before keep some{advice}"
    return (
        f"nothing is left of the {tally.rows} {stem} of {split} ({'; '.join(why)}); loosen what "
        f"leaves them out{advice}"
    )


def _kept(
    records: Iterator[dict[str, Any]],
    kind: type[_Row],
    check: Callable[[_Row], None],
    split: str,
    source: str,
    entries: list[Entry],
) -> Iterator[dict[str, Any]]:
    """The records that pass; ``entries`` gets every record."""
    for record in records:
        row = from_record(kind, record)
        try:
            check(row)
        except MalformedRow as problem:
            entries.append(Entry.dropped(split, source, record["row"], problem))
            continue
        entries.append(Entry(split, source, record["row"], "kept"))
        yield record
