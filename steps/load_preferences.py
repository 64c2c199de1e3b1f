"""``load_preferences``: raw rows become preference pairs; what cannot be used is counted."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from pipeline import File, HubDataset, Metrics, Output, TemperError, step
from steps.data.ledger import dropped_metrics
from steps.data.parquet import DROPPED, PAIRS, write_rows
from steps.data.preferences import DroppedRow, MalformedRow, PreferencePair, parse_pair
from steps.data.sources import iter_hub_records, iter_records
from steps.data.splits import in_test_split
from steps.kinds import Preferences


@step(makes=Preferences)
def load_preferences(
    out: Output,
    train: File | HubDataset,
    test: File | HubDataset | None = None,
    test_fraction: float = 0.1,
    max_train: int | None = None,
    max_test: int | None = None,
) -> Metrics:
    """Write ``train/pairs.parquet``, ``test/pairs.parquet`` and ``dropped.parquet``.

    Without a ``test`` source, ``test_fraction`` of the prompts is held out by a stable hash.

    Raises:
        TemperError: a source has no valid row, or a split comes out empty.
    """
    dropped: list[DroppedRow] = []
    pairs: dict[str, list[PreferencePair]] = {"train": [], "test": []}
    for pair in _read(train, "train", dropped, out):
        held_out = test is None and in_test_split(pair.prompt, test_fraction)
        pairs["test" if held_out else "train"].append(pair)
    if test is not None:
        pairs["test"].extend(_read(test, "test", dropped, out))
    read = sum(map(len, pairs.values())) + len(dropped)
    kept = {"train": pairs["train"][:max_train], "test": pairs["test"][:max_test]}
    for split, rows in kept.items():
        if not rows:
            raise TemperError(_empty_split(split, train, test, test_fraction, dropped))
        write_rows(out.path / split / "pairs.parquet", PAIRS, map(asdict, rows))
    write_rows(out.path / "dropped.parquet", DROPPED, map(asdict, dropped))
    return {
        "rows": read,
        **{split: len(rows) for split, rows in kept.items()},
        **dropped_metrics(dropped, read),
    }


def _read(
    source: File | HubDataset, split: str, dropped: list[DroppedRow], out: Output
) -> Iterator[PreferencePair]:
    """The valid pairs of a source; the others are added to ``dropped``."""
    valid = 0
    for number, (row, record) in enumerate(_records(source), start=1):
        try:
            if isinstance(record, MalformedRow):
                raise record
            yield parse_pair(record, row)
            valid += 1
        except MalformedRow as problem:
            dropped.append(DroppedRow(split, row, problem.reason, problem.detail))
        out.progress(number, None, {"dropped": len(dropped)})
    if not valid:
        raise TemperError(_no_valid_row(source, [d for d in dropped if d.split == split]))


def _records(source: File | HubDataset) -> Iterator[tuple[str, Mapping[str, Any] | MalformedRow]]:
    if isinstance(source, File):
        return iter_records(source.url)
    return iter_hub_records(source.repo, source.revision, source.split)


def _no_valid_row(source: File | HubDataset, dropped: list[DroppedRow]) -> str:
    name = source.url if isinstance(source, File) else f"{source.repo} ({source.split})"
    if not dropped:
        return f"{name} has no rows"
    reasons = ", ".join(f"{r}: {n}" for r, n in Counter(d.reason for d in dropped).most_common())
    first = dropped[0]
    return (
        f"{name} has no valid row: all {len(dropped)} were dropped ({reasons}); "
        f"the first is row {first.row}: {first.detail}"
    )


def _empty_split(
    split: str,
    train: File | HubDataset,
    test: File | HubDataset | None,
    test_fraction: float,
    dropped: list[DroppedRow],
) -> str:
    if test is None:
        return (
            f"no pair is left for {split} when test_fraction={test_fraction} of the prompts is "
            "held out; change data.test_fraction, add rows, or name a file with data.test_path"
        )
    return _no_valid_row(test if split == "test" else train, dropped)
