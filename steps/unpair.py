"""``unpair``: split preference pairs into completions labelled good (chosen) or bad (rejected)."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pipeline import Metrics, Output, TemperError, step
from steps.data.images.image_table import IMAGES
from steps.data.rows.parquet import iter_rows, write_rows
from steps.data.rows.rows import PreferenceRow, UnpairedRow
from steps.kinds import Preferences, UnpairedSplits


@step(makes=UnpairedSplits)
def unpair(out: Output, pairs: Preferences) -> Metrics:
    """Write ``SPLIT/completions-*.parquet`` for every split of ``pairs``.

    All chosen responses come before all rejected ones. A response of several pairs is as many
    completions; ``good_and_bad`` counts those that are chosen in one and rejected in another.
    """
    splits = sorted({path.parent for path in pairs.path.glob("*/pairs-*.parquet")})
    if not splits:
        raise TemperError(f"{pairs.step} holds no SPLIT/pairs-*.parquet; pass the whole artifact")
    if any((split / IMAGES).is_dir() for split in splits):
        raise TemperError(
            f"the pairs of {pairs.step} have images, and single completions have none; train on "
            "the pairs themselves, or load them without data.images"
        )
    metrics: Metrics = {}
    both = 0
    for split in splits:
        metrics[split.name], of_split = _write(split, out.path / split.name)
        both += of_split
    if both:
        metrics["good_and_bad"] = both
        metrics["notices"] = [
            f"{both} responses are chosen in one pair of their prompt and rejected in another, so "
            "they are good and bad completions; from several ranked responses, "
            "data.pairs=best_vs_worst makes one pair"
        ]
    return metrics


def _write(split: Path, folder: Path) -> tuple[int, int]:
    """The number of completions, and of different ones that are good and bad."""
    from steps.data.rows.tables import ROWS_PER_SHARD, UNPAIRED, shard_name, to_record

    seen: tuple[set[bytes], set[bytes]] = set(), set()  # bad, good
    rows, count, number = _unpaired(split), 0, 0
    while shard := list(islice(rows, ROWS_PER_SHARD)):
        path = folder / shard_name(UnpairedRow, number)
        count += write_rows(path, UNPAIRED, map(to_record, shard))
        number += 1
        for row in shard:
            seen[row.label].add(_content(row))
    return count, len(seen[0] & seen[1])


def _content(row: UnpairedRow) -> bytes:
    said = repr((row.prompt, row.completion, row.tools))
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


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
