"""``select_rows``: training pairs without those that pull a model away from held-out pairs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline import Metrics, Output, TemperError, step
from steps.data.rows.completions import are_numbers, require_once
from steps.data.rows.jsonl import read_json_lines
from steps.data.rows.ledger import Entry
from steps.data.rows.parquet import iter_rows, shards, write_rows
from steps.data.rows.reasons import MalformedRow
from steps.data.vocabularies import copy_tokenizer
from steps.kinds import Influences, PairTokens
from steps.shared.counts import share_of


@dataclass(frozen=True)
class SelectionConfig:
    """Which pairs go.

    Args:
        drop_share: this share of all pairs goes, those of the lowest influence.
        only_harmful: of these, a pair whose influence is not below 0 stays.
    """

    drop_share: float = 0.1
    only_harmful: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.drop_share < 1:
            raise ValueError(f"drop_share must be in [0, 1), got {self.drop_share}")


@step(makes=PairTokens)
def select_rows(
    out: Output,
    tokens: PairTokens,
    influences: Influences,
    config: SelectionConfig = SelectionConfig(),
) -> Metrics:
    """Write ``tokens-00000.parquet``: the pairs of ``tokens`` that stay, in their order; and
    ``ledger.parquet``, with a line for every pair.

    Args:
        influences: of these pairs, by ``score_influence``.

    Raises:
        TemperError: a pair has no influence, or an influence is of no pair.
    """
    import pyarrow.parquet as pq

    from steps.data.rows.tables import LEDGER

    told = read_json_lines(file := influences.path / "influences.jsonl")
    require_once(told, file, "row", "pair")
    if wrong := next((r for r in told if not are_numbers([r.get("influence")], 1)), None):
        raise TemperError(
            f"{file}: row {wrong['row']!r} has the influence {wrong.get('influence')!r}, which is "
            "no finite number; leave the row out of the tokens"
        )
    found = {(r["row"], r["pair"]): r["influence"] for r in told}
    most = int(share_of(config.drop_share, len(found)))
    worst = sorted(found, key=lambda pair: found[pair])[:most]
    dropped = {pair for pair in worst if found[pair] < 0 or not config.only_harmful}
    seen: set[tuple[str, str]] = set()
    entries: list[Entry] = []

    def kept() -> Iterator[dict[str, Any]]:
        for record in iter_rows(tokens.path):
            pair = (record["row"], record["pair_id"])
            seen.add(pair)
            if pair not in found:
                raise TemperError(
                    f"row {pair[0]!r} has no influence; compute score_influence of the same tokens"
                )
            if pair in dropped:
                why = MalformedRow("low influence", f"{found[pair]:g}")
                entries.append(Entry.dropped("", "tokens", pair[0], why))
                continue
            entries.append(Entry("", "tokens", pair[0], "kept"))
            yield record

    rows = write_rows(
        out.path / "tokens-00000.parquet", pq.read_schema(shards(tokens.path)[0]), kept()
    )
    if strangers := found.keys() - seen:
        row = min(strangers)[0]
        raise TemperError(
            f"row {row!r} has an influence and is not in tokens; compute score_influence of the "
            "same tokens"
        )
    write_rows(out.path / "ledger.parquet", LEDGER, map(vars, entries))
    copy_tokenizer(tokens.path, out.path)
    return {"rows": rows, "dropped": len(dropped)}
