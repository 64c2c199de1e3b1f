"""``select_rows``: training pairs without the most harmful ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from step_output import Folder
from tiny_models import pair_records

from pipeline import TemperError
from steps.data.rows.jsonl import write_json_lines
from steps.data.rows.parquet import read_rows, write_rows
from steps.select_rows import SelectionConfig, select_rows

RECORDS = pair_records(10)
SCHEMA = pa.Table.from_pylist(RECORDS[:1]).schema


@pytest.fixture
def tokens(tmp_path: Path) -> Any:
    (folder := tmp_path / "tokens").mkdir()
    write_rows(folder / "tokens-00000.parquet", SCHEMA, RECORDS)
    (folder / "tokenizer.json").write_text("{}")
    return SimpleNamespace(path=folder)


def influences(folder: Path, values: list[float]) -> Any:
    """Of the first pairs, the worst first, as ``score_influence`` writes them."""
    found = [
        {"row": record["row"], "pair": record["pair_id"], "influence": value}
        for record, value in zip(RECORDS, values, strict=False)
    ]
    folder.mkdir()
    write_json_lines(folder / "influences.jsonl", sorted(found, key=lambda r: r["influence"]))
    return SimpleNamespace(path=folder)


def test_the_worst_share_goes_and_what_helps_stays(tokens: Any, tmp_path: Path) -> None:
    found = influences(tmp_path / "influences", [3, -1, 2, -5, 1, 1, 1, 1, 1, 0])
    for config, gone in (
        (SelectionConfig(drop_share=0.1), {3}),
        (SelectionConfig(drop_share=0.4), {1, 3}),
        (SelectionConfig(drop_share=0.4, only_harmful=False), {1, 3, 4, 9}),
    ):
        out = Folder(tmp_path / f"out-{len(gone)}-{config.only_harmful}")
        told = select_rows.function(out, tokens, found, config)
        assert told == {"rows": 10 - len(gone), "dropped": len(gone)}
        stayed = [record["row"] for record in read_rows(out.path)]
        assert stayed == [f"data:{i}" for i in range(10) if i not in gone]
        assert (out.path / "tokenizer.json").exists()
        ledger = read_rows(out.path / "ledger.parquet")
        assert [entry["row"] for entry in ledger] == [f"data:{i}" for i in range(10)]
        left = {i for i, entry in enumerate(ledger) if entry["reason"] == "low influence"}
        assert left == gone


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"row": "data:0", "influence": 1.0}, "influences.jsonl: record 1 has no pair"),
        ({"row": "data:0", "pair": "1"}, "row 'data:0' has the influence None"),
    ],
)
def test_a_record_that_is_no_influence_is_named(
    tokens: Any, tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    found = influences(tmp_path / "found", [1.0] * 10)
    write_json_lines(found.path / "influences.jsonl", [record])
    with pytest.raises((TemperError, ValueError), match=message):
        select_rows.function(Folder(tmp_path / "out"), tokens, found, SelectionConfig())


def test_influences_of_other_rows_are_refused(tokens: Any, tmp_path: Path) -> None:
    fewer = influences(tmp_path / "fewer", [1.0] * 9)
    with pytest.raises(TemperError, match="row 'data:9' has no influence"):
        select_rows.function(Folder(tmp_path / "out"), tokens, fewer, SelectionConfig())
    write_rows(tokens.path / "tokens-00000.parquet", SCHEMA, RECORDS[:9])
    more = influences(tmp_path / "more", [1.0] * 10)
    with pytest.raises(TemperError, match="row 'data:9' has an influence and is not in tokens"):
        select_rows.function(Folder(tmp_path / "other"), tokens, more, SelectionConfig())
