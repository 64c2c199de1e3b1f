"""``tokenize_preferences``: pairs as text become pairs as token ids, in Parquet."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import Metrics, Output, TemperError, step
from steps.data.ledger import dropped_metrics
from steps.data.parquet import DROPPED, PAIR_TOKENS, read_rows, write_rows
from steps.data.preferences import DroppedRow, MalformedRow, PreferencePair
from steps.data.templating import LengthLimits, load_tokenizer, tokenize_pair
from steps.kinds import Model, Preferences, TokenizedPreferences


@step(makes=TokenizedPreferences)
def tokenize_preferences(
    out: Output, pairs: Preferences, tokenizer: Model, limits: LengthLimits = LengthLimits()
) -> Metrics:
    """Write ``SPLIT/tokens.parquet`` for every split of ``pairs``, and ``dropped.parquet``.

    Args:
        tokenizer: a model artifact, whose chat template and tokenizer are used.

    Raises:
        TemperError: no pair of a split is left.
    """
    encoder = load_tokenizer(str(tokenizer.path))
    dropped: list[DroppedRow] = []
    counts: dict[str, int] = {"truncated": 0}

    def encoded(split: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows, start=1):
            out.progress(number, len(rows))
            try:
                tokens = tokenize_pair(encoder, PreferencePair(**row), limits)
            except MalformedRow as problem:
                dropped.append(DroppedRow(split, row["row"], problem.reason, problem.detail))
                continue
            record = asdict(tokens)
            counts["truncated"] += record.pop("truncated")
            yield {**record, **{name: row[name] for name in ("prompt", "chosen", "rejected")}}

    splits = _splits(pairs.path)
    if not splits:
        raise TemperError(f"{pairs.step} holds no SPLIT/pairs.parquet; pass the whole artifact")
    total = 0
    for split in splits:
        rows = read_rows(pairs / split / "pairs.parquet")
        total += len(rows)
        target = out.path / split / "tokens.parquet"
        counts[split] = write_rows(target, PAIR_TOKENS, encoded(split, rows))
        if not counts[split]:
            raise TemperError(
                f"all {len(rows)} pairs of {split} were dropped when tokenised; the first: "
                f"row {dropped[-1].row}: {dropped[-1].reason}: {dropped[-1].detail}"
            )
    write_rows(out.path / "dropped.parquet", DROPPED, map(asdict, dropped))
    return {**counts, **dropped_metrics(dropped, total)}


def _splits(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/pairs.parquet"))
