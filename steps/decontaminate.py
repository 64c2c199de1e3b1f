"""``decontaminate``: remove preference pairs that overlap with an evaluation set."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline import Artifact, Metrics, Output, TemperError, step
from steps.data.load.overlap import NGRAM_WORDS, EvaluationSet, texts_of
from steps.data.rows.ledger import Entry, Tally
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PreferenceRow
from steps.kinds import Preferences


@step(makes=Preferences)
def decontaminate(
    out: Output,
    pairs: Preferences,
    against: Artifact,
    n: int = NGRAM_WORDS,
    splits: tuple[str, ...] = ("train",),
) -> Metrics:
    """Write ``pairs`` without those that share ``n`` consecutive words with a text of ``against``.

    Args:
        against: the output of a ``load_`` step, or one part of it, such as ``pairs["test"]``.
        splits: which splits of ``pairs`` are cleaned; the others are copied unchanged.

    Raises:
        TemperError: ``against`` holds no rows, or a split has no pairs left.
    """
    from steps.data.images.image_table import copy_images
    from steps.data.rows.tables import LEDGER, PAIRS

    evaluation, tally = EvaluationSet(n), Tally()
    evaluated = _add_rows(evaluation, against.path)
    if not evaluated:
        raise TemperError(f"{against.step} holds no rows to compare with; pass what it loaded")
    kept: dict[str, int] = {}
    for path in sorted(pairs.path.glob("*/pairs-*.parquet")):
        split, name = path.parent.name, f"{path.parent.name}/{path.name}"
        records, entries = iter_rows(path), []
        if split in splits:
            records = _clean(records, evaluation, split, name, entries)
        kept[split] = kept.get(split, 0) + write_rows(out.path / name, PAIRS, records)
        write_rows(out.scratch / name, LEDGER, map(vars, entries))
        for entry in entries:
            tally.add(entry)
    if missing := [split for split in splits if not kept.get(split)]:
        raise TemperError(f"nothing is left of {', '.join(missing)}: {tally.metrics()}")
    for split in kept:
        copy_images(pairs.path / split, out.path / split)
    lines = (line for path in sorted(out.scratch.glob("*/*.parquet")) for line in iter_rows(path))
    write_rows(out.path / "ledger.parquet", LEDGER, lines)
    return {"evaluation_rows": evaluated, **kept, **tally.metrics()}


def _add_rows(evaluation: EvaluationSet, folder: Path) -> int:
    from steps.data.rows.tables import STEMS, from_record

    count = 0
    for kind, stem in STEMS.items():
        for path in sorted(folder.rglob(f"{stem}-*.parquet")):
            for record in iter_rows(path):
                evaluation.add(record["row"], texts_of(from_record(kind, record)))
                count += 1
    return count


def _clean(
    records: Iterator[dict[str, Any]],
    evaluation: EvaluationSet,
    split: str,
    source: str,
    entries: list[Entry],
) -> Iterator[dict[str, Any]]:
    """The records that do not overlap with the evaluation set. ``entries`` gets every record."""
    from steps.data.rows.tables import from_record

    for record in records:
        row = from_record(PreferenceRow, record)
        if (shared := evaluation.overlap(texts_of(row))) is None:
            entries.append(Entry(split, source, row.row, "kept"))
            yield record
        else:
            problem = MalformedRow("overlaps evaluation", shared)
            entries.append(Entry.dropped(split, source, row.row, problem))
