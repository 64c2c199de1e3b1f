"""The Parquet files between steps: what is written is what is read, in bytes that do not vary."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.rows.parquet import ROWS_PER_GROUP, read_rows, write_rows
from steps.data.rows.tables import LEDGER, PAIRS


def stored_pair(row: str, content: str = "Q") -> dict[str, Any]:
    """The columns of a pair."""
    messages = [{"role": "user", "content": content, "extra": None}]
    return {
        "row": row,
        "prompt": messages,
        "chosen": messages,
        "rejected": messages,
        "tools": None,
        "template_kwargs": None,
        "score_chosen": 1.5,
        "score_rejected": None,
        "weight": None,
    }


def test_rows_come_back_as_written_and_equal_rows_make_equal_bytes(tmp_path: Path) -> None:
    rows = [stored_pair(str(number), "Ω" * number) for number in range(3)]

    assert write_rows(tmp_path / "one" / "pairs.parquet", PAIRS, rows) == 3
    write_rows(tmp_path / "two.parquet", PAIRS, iter(rows))

    assert read_rows(tmp_path / "two.parquet") == rows
    assert read_rows(tmp_path / "two.parquet", ["row"]) == [{"row": str(n)} for n in range(3)]
    one, two = tmp_path / "one" / "pairs.parquet", tmp_path / "two.parquet"
    assert one.read_bytes() == two.read_bytes()


def test_row_groups_have_one_size_whatever_the_number_of_rows(tmp_path: Path) -> None:
    count = 2 * ROWS_PER_GROUP + 5
    write_rows(tmp_path / "p.parquet", PAIRS, (stored_pair(str(n)) for n in range(count)))

    metadata = pq.read_metadata(tmp_path / "p.parquet")
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert sizes == [ROWS_PER_GROUP, ROWS_PER_GROUP, 5]


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    assert write_rows(tmp_path / "ledger.parquet", LEDGER, []) == 0

    assert read_rows(tmp_path / "ledger.parquet", ["reason"]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": None}, r"row 2: chosen is null"),
        ({"colour": "red"}, r"row 2: .*colour"),
        ({"score_chosen": "high"}, r"rows 1 to 2 .*does not fit"),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_leaves_no_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"p\.parquet: " + message):
        write_rows(tmp_path / "p.parquet", PAIRS, [stored_pair("1"), stored_pair("2") | change])

    assert list(tmp_path.iterdir()) == []


def test_a_failing_source_leaves_the_earlier_file_as_it_was(tmp_path: Path) -> None:
    write_rows(tmp_path / "p.parquet", PAIRS, [stored_pair("before")])

    def rows():
        yield stored_pair("after")
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        write_rows(tmp_path / "p.parquet", PAIRS, rows())

    assert [row["row"] for row in read_rows(tmp_path / "p.parquet")] == ["before"]
    assert len(list(tmp_path.iterdir())) == 1


def test_reading_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.parquet"):
        read_rows(tmp_path / "absent.parquet")
    write_rows(tmp_path / "p.parquet", PAIRS, [stored_pair("1")])
    with pytest.raises(ValueError, match=r"no column pair_id; the file has row, prompt"):
        read_rows(tmp_path / "p.parquet", ["row", "pair_id"])


def test_json_lines_keep_every_digit_and_refuse_what_json_has_no_number_for(tmp_path: Path) -> None:
    records = [{"loss": 0.1 + 0.2, "text": "Grüße\u2028"}, {"loss": 5e-324}]
    write_json_lines(tmp_path / "log.jsonl", records)
    assert read_json_lines(tmp_path / "log.jsonl") == records
    with pytest.raises(ValueError, match="JSON"):
        write_json_lines(tmp_path / "log.jsonl", [{"loss": float("nan")}])
    assert read_json_lines(tmp_path / "log.jsonl") == records
