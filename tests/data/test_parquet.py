"""The files between steps: what is written is what is read, in bytes that do not vary."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from steps.data.rows.completions import read_completions
from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.tables import PAIRS


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


def test_json_lines_keep_every_digit_and_refuse_what_json_has_no_number_for(tmp_path: Path) -> None:
    records = [{"loss": 0.1 + 0.2, "text": "Grüße\u2028"}, {"loss": 5e-324}]
    write_json_lines(tmp_path / "log.jsonl", records)
    assert read_json_lines(tmp_path / "log.jsonl") == records
    with pytest.raises(ValueError, match="JSON"):
        write_json_lines(tmp_path / "log.jsonl", [{"loss": float("nan")}])
    assert read_json_lines(tmp_path / "log.jsonl") == records


def _written(folder: Path, *records: Mapping[str, Any], **changed: Any) -> Path:
    lines = [json.dumps({**ANSWERED, **record}, ensure_ascii=False) for record in records]
    lines.append(json.dumps({**ANSWERED, "row": "changed", **changed}))
    (folder / "completions.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


ANSWERED = {
    "row": "q1",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "completions": ["2", "3"],
    "finish": ["stop", "length"],
}


def test_completions_of_other_tools_are_read_as_json_has_them(tmp_path: Path) -> None:
    """U+2028 ends a line for Python; an editor of Windows writes a mark first."""
    _written(tmp_path, {"completions": ["a\u2028b", "\x85"]})
    file = tmp_path / "completions.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n") + b"\n")
    texts = [record["completions"] for record in read_completions(tmp_path, "prompt", "finish")]
    assert texts == [["a\u2028b", "\x85"], ["2", "3"]]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"completions": "23"}, "record 2, row 'changed', has the completions '23'; give a list"),
        ({"completions": [None]}, "give a list of texts"),
        ({"finish": ["stop"]}, "has the finish .* for each completion"),
        ({"finish": None}, "has the finish None"),
        ({"prompt": "1 + 1?"}, "give a list of messages"),
        ({"prompt": [{"from": "human", "value": "1 + 1?"}]}, "give a list of messages"),
        ({"row": None}, "has the row None"),
        ({"row": 1.0}, "has the row 1.0; give the id of the prompt, a text or a whole number"),
        ({"row": "q1"}, "2 records have the row 'q1'"),
        ({"scores": [1.0]}, "has the scores .* a finite number, or null, for each completion"),
        ({"scores": [1.0, "2"]}, "a finite number, or null"),
        (
            {"completions": ["\ud83d"]},
            "line 2 has text that is not valid Unicode, '\\\\ud83d'; write",
        ),
        ({"scores": [1.0, float("nan")]}, "line 2 is not a record of JSON: NaN is no number"),
    ],
)
def test_a_record_that_is_no_completion_is_named(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    """A text in place of the list was a completion for each letter."""
    folder = _written(tmp_path, {"scores": [0.5, None]}, **changed)
    with pytest.raises(ValueError, match=f"completions.jsonl: .*{message}"):
        read_completions(folder, "prompt", "finish", *changed)


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    file = tmp_path / "completions.jsonl"
    for text, told in (('{"row"', "line 1 is not"), ("{}\n\n[1]\n", "line 3 is not .* but \\[1]")):
        file.write_text(text)
        with pytest.raises(ValueError, match=told):
            read_json_lines(file)
    for data in ('{"text": "é"}'.encode("latin-1"), b'{"\\uDC00": 1}'):
        file.write_bytes(data)
        with pytest.raises(ValueError, match="line 1 has text that is not valid Unicode"):
            read_json_lines(file)
    file.write_text('{"text": "\\uD83D\\ude00"}')
    assert read_json_lines(file) == [{"text": "😀"}]
    file.write_text("{}")
    with pytest.raises(ValueError, match="row None, has no row; give the id"):
        read_completions(tmp_path)
