"""``unpair``: split preference pairs into completions labelled good (chosen) or bad (rejected)."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pipeline import Metrics, Output, TemperError, step
from steps.data.images.image_table import IMAGES
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.rows import PreferenceRow, UnpairedRow
from steps.kinds import Preferences, UnpairedSplits


@step(makes=UnpairedSplits, estimate="steps.prices.of_rows:SEPARATED")
def unpair(out: Output, pairs: Preferences) -> Metrics:
    """Write ``SPLIT/completions-*.parquet`` for every split of ``pairs``.

    All chosen responses come before all rejected ones.
    """
    splits = sorted({path.parent for path in pairs.path.glob("*/pairs-*.parquet")})
    if not splits:
        raise TemperError(f"{pairs.step} holds no SPLIT/pairs-*.parquet; pass the whole artifact")
    if any((split / IMAGES).is_dir() for split in splits):
        raise TemperError(
            f"the pairs of {pairs.step} have images, and single completions have none; train on "
            "the pairs themselves, or load them without data.images"
        )
    return {split.name: _write(split, out.path / split.name) for split in splits}


def _write(split: Path, folder: Path) -> int:
    from steps.data.rows.tables import ROWS_PER_SHARD, UNPAIRED, shard_name, to_record

    rows, count, number = _unpaired(split), 0, 0
    while shard := list(islice(rows, ROWS_PER_SHARD)):
        path = folder / shard_name(UnpairedRow, number)
        count += write_rows(path, UNPAIRED, map(to_record, shard))
        number += 1
    return count


def _unpaired(split: Path) -> Iterator[UnpairedRow]:
    from steps.data.rows.tables import from_record

    for label, side in ((True, "chosen"), (False, "rejected")):
        for record in iter_rows(split):
            pair = from_record(PreferenceRow, record)
            completion = pair.chosen if label else pair.rejected
            yield UnpairedRow(
                f"{pair.row}/{side}", pair.prompt, completion, label, pair.tools,
                pair.template_kwargs, pair.weight,
            )  # fmt: skip
