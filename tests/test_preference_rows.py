"""What a user's preference file becomes: pairs, and a named reason for each row that is none."""

import gzip
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steps.data.parquet import DROPPED, PAIR_TOKENS, PAIRS, ROWS_PER_GROUP, read_rows, write_rows
from steps.data.preferences import MalformedRow, Message, PreferencePair, Reason, parse_pair
from steps.data.sources import iter_hub_records, iter_records

SHARED_ROWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "ultrafeedback_500.jsonl"


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


QUESTION = user("Capital of France?")
PARIS, ROME = assistant("Paris."), assistant("Rome.")


def test_an_ultrafeedback_row_becomes_a_pair() -> None:
    record = {
        "prompt": "Capital of France?",
        "prompt_id": "abc",
        "chosen": [QUESTION, PARIS],
        "rejected": [QUESTION, ROME],
        "score_chosen": 9,
        "score_rejected": 2.5,
    }

    assert parse_pair(record, "abc") == PreferencePair(
        row="abc",
        prompt=(QUESTION,),
        chosen="Paris.",
        rejected="Rome.",
        score_chosen=9.0,
        score_rejected=2.5,
    )


@pytest.mark.parametrize(
    "record",
    [
        {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]},
        {"prompt": "Capital of France?", "chosen": "Paris.", "rejected": "Rome."},
        {"prompt": [QUESTION], "chosen": "Paris.", "rejected": "Rome."},
        {"prompt": "Capital of France?", "chosen": [PARIS], "rejected": [ROME]},
        {"prompt": [QUESTION], "chosen": [QUESTION, PARIS], "rejected": "Rome."},
        {"prompt": None, "chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]},
    ],
    ids=["no prompt field", "strings", "prompt messages", "response turns", "mixed", "null prompt"],
)
def test_every_spelling_of_one_pair_gives_the_same_pair(record: dict[str, Any]) -> None:
    assert parse_pair(record, "1") == PreferencePair(
        "1", (QUESTION,), "Paris.", "Rome.", None, None
    )


def test_everything_before_the_last_answer_is_the_prompt() -> None:
    history = [system("Be brief."), QUESTION, PARIS, user("And of Italy?")]

    pair = parse_pair({"chosen": [*history, ROME], "rejected": [*history, PARIS]}, "1")

    assert pair.prompt == tuple(history)
    assert (pair.chosen, pair.rejected) == ("Rome.", "Paris.")


def test_a_prompt_field_that_opens_a_longer_conversation_is_no_contradiction() -> None:
    history = [QUESTION, PARIS, user("And of Italy?")]
    record = {
        "prompt": "Capital of France?",
        "chosen": [*history, ROME],
        "rejected": [*history, assistant("Oslo.")],
    }

    assert parse_pair(record, "1").prompt == tuple(history)


BOTH = {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]}
BAD_ROWS: list[tuple[Reason, dict[str, Any], str]] = [
    ("no chosen", {"prompt": "Q", "rejected": "b"}, "chosen"),
    ("no rejected", {"prompt": "Q", "chosen": "a", "rejected": None}, "rejected"),
    ("no prompt", {"chosen": "a", "rejected": "b"}, "prompt"),
    ("no prompt", {"chosen": [PARIS], "rejected": [ROME]}, "chosen"),
    ("no prompt", {"prompt": "  ", "chosen": "a", "rejected": "b"}, "blank"),
    ("no prompt", {**BOTH, "prompt": []}, "prompt"),
    ("empty conversation", {**BOTH, "chosen": []}, "chosen"),
    ("empty response", {**BOTH, "chosen": [QUESTION, assistant(" \n")]}, "chosen"),
    ("empty response", {"prompt": "Q", "chosen": "a", "rejected": ""}, "rejected"),
    ("wrong role order", {**BOTH, "chosen": [QUESTION, PARIS, user("x")]}, "user, assistant, user"),
    ("wrong role order", {**BOTH, "rejected": [QUESTION, QUESTION, ROME]}, "rejected"),
    ("wrong role order", {**BOTH, "chosen": [QUESTION, system("x"), PARIS]}, "system"),
    ("no prompt", {**BOTH, "chosen": [system("x"), PARIS]}, "chosen holds no user message"),
    ("wrong role order", {**BOTH, "chosen": [PARIS, ROME]}, "assistant, assistant"),
    ("wrong role order", {**BOTH, "chosen": [system("x")]}, "system"),
    ("unknown role", {**BOTH, "chosen": [{"role": "gpt", "content": "a"}]}, "chosen[0].role"),
    ("unknown role", {**BOTH, "chosen": [QUESTION, {"content": "a"}]}, "chosen[1].role"),
    ("content not a string", {**BOTH, "chosen": [QUESTION, {"role": "assistant"}]}, "chosen[1]"),
    ("content not a string", {**BOTH, "rejected": [QUESTION, "Rome."]}, "rejected[1]"),
    ("content not a string", {**BOTH, "rejected": 7}, "rejected is int 7"),
    ("content not a string", {**BOTH, "prompt": {"text": "Q"}}, "prompt is dict"),
    ("not valid Unicode", {"prompt": "Q", "chosen": "\ud800", "rejected": "b"}, "chosen"),
    ("score not a number", {**BOTH, "score_chosen": "9"}, "score_chosen"),
    ("score not a number", {**BOTH, "score_rejected": True}, "score_rejected"),
    ("different prompts", {**BOTH, "rejected": [user("Other?"), ROME]}, "chosen and rejected"),
    ("different prompts", {**BOTH, "prompt": "Other?"}, "prompt"),
    ("identical responses", {**BOTH, "rejected": [QUESTION, PARIS]}, "same text"),
]


@pytest.mark.parametrize(("reason", "record", "named"), BAD_ROWS)
def test_a_row_that_is_no_pair_is_refused_with_its_reason(
    reason: Reason, record: dict[str, Any], named: str
) -> None:
    with pytest.raises(MalformedRow) as caught:
        parse_pair(record, "1")

    assert caught.value.reason == reason
    assert named in caught.value.detail


def test_a_score_missing_from_a_table_is_no_score() -> None:
    pair = parse_pair({**BOTH, "score_chosen": float("nan")}, "1")

    assert pair.score_chosen is None


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.sampled_from(["user", "assistant", "system"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["role", "content"]), inner, max_size=2)
    ),
    max_leaves=12,
)


def outcome(record: dict[str, Any]) -> tuple[PreferencePair | None, MalformedRow | None]:
    try:
        return parse_pair(record, "1"), None
    except MalformedRow as problem:
        return None, problem


FIELDS = st.sampled_from(["prompt", "chosen", "rejected", "score_chosen", "score_rejected"])


@given(st.dictionaries(FIELDS, ANYTHING))
def test_whatever_a_row_holds_it_is_a_pair_or_dropped_for_a_listed_reason(
    record: dict[str, Any],
) -> None:
    pair, problem = outcome(record)

    if problem is not None:
        assert problem.reason in get_args(Reason)
        assert problem.detail.encode()
    if pair is not None:
        assert pair.prompt[-1]["role"] == "user"
        assert pair.chosen.strip()
        assert pair.rejected.strip()
        assert pair.chosen != pair.rejected


LINES = [
    json.dumps({"id": "uf-1", "chosen": "a"}),
    json.dumps({"prompt_id": 17}),
    "",
    '{"id": "cut off',
    "[1, 2]",
    json.dumps({"chosen": "no id", "line separator": "a\u2028b"}, ensure_ascii=False),
]


def write_compressed(path: Path, data: bytes) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data[:9]) + gzip.compress(data[9:]))
    elif path.suffix == ".zst":
        with pa.output_stream(path, compression="zstd") as stream:
            stream.write(data)
    else:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.zst"])
def test_a_file_gives_labelled_records_and_a_broken_line_costs_only_itself(
    tmp_path: Path, name: str
) -> None:
    path = write_compressed(tmp_path / name, "\n".join(LINES).encode())

    rows = list(iter_records(str(path)))

    assert [row for row, _ in rows] == ["uf-1", "17", "line 4", "line 5", "line 6"]
    assert rows[0][1] == {"id": "uf-1", "chosen": "a"}
    problems = [record for _, record in rows if isinstance(record, MalformedRow)]
    assert [problem.reason for problem in problems] == ["broken JSON", "not an object"]
    assert "line 4" in problems[0].detail


def test_bytes_that_are_no_text_are_a_broken_line_and_a_byte_order_mark_is_none(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "first"}\n{"id": "\xff"}\n{"id": "\\ud800"}\n')

    first, second, third = iter_records(str(path))

    assert first == ("first", {"id": "first"})
    assert isinstance(second[1], MalformedRow)
    assert second[1].reason == "broken JSON"
    assert third[0] == "line 3", "an id that cannot be written as UTF-8 is no label"


def test_a_parquet_file_gives_the_records_that_a_json_lines_file_does(tmp_path: Path) -> None:
    record = {"chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]}
    pq.write_table(pa.Table.from_pylist([record, record]), tmp_path / "rows.parquet")

    rows = list(iter_records(str(tmp_path / "rows.parquet")))

    assert [row for row, _ in rows] == ["row 1", "row 2"]
    assert rows[0][1] == record


def test_a_url_is_read_like_a_path() -> None:
    import fsspec

    with fsspec.open("memory://rows.jsonl", "w") as stream:
        stream.write('{"id": "x"}\n')  # pyright: ignore[reportAttributeAccessIssue]

    assert list(iter_records("memory://rows.jsonl")) == [("x", {"id": "x"})]


def test_a_missing_file_is_reported_before_any_row_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl: no such file"):
        iter_records(str(tmp_path / "absent.jsonl"))


def test_an_unknown_suffix_is_refused_with_those_understood(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")

    with pytest.raises(ValueError, match=r"rows\.csv.*\.jsonl, .*\.parquet"):
        iter_records(str(tmp_path / "rows.csv"))


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.zst"])
def test_a_cut_off_archive_is_an_error_not_a_shorter_data_set(tmp_path: Path, name: str) -> None:
    numbers = random.Random(0).choices(range(10**6), k=5000)
    text = "\n".join(json.dumps({"id": str(number)}) for number in numbers)
    path = write_compressed(tmp_path / name, text.encode())
    path.write_bytes(path.read_bytes()[:-2000])

    with pytest.raises(ValueError, match=name):
        list(iter_records(str(path)))


def test_a_file_that_is_not_what_its_suffix_says_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_text("no table")

    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read"):
        list(iter_records(str(tmp_path / "rows.parquet")))


@pytest.mark.parametrize("revision", ["main", "v1.0", "", "3949bf5"])
def test_a_hub_data_set_must_be_named_by_a_full_commit(revision: str) -> None:
    with pytest.raises(ValueError, match=r"40 hex digits"):
        iter_hub_records("someone/preferences", revision, "train")


@pytest.mark.slow
def test_a_hub_data_set_gives_the_records_that_its_files_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    record = {"prompt_id": "abc", "chosen": [QUESTION, PARIS], "rejected": [QUESTION, ROME]}
    (tmp_path / "repo").mkdir()
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "repo" / "train.parquet")

    # A folder stands for the Hub, which tests must not need; only the download differs.
    rows = list(iter_hub_records(str(tmp_path / "repo"), "0" * 40, "train"))

    assert rows == [("abc", record)]


def stored_pair(row: str, content: str = "Q") -> dict[str, Any]:
    return {
        "row": row,
        "prompt": [user(content)],
        "chosen": "a",
        "rejected": "b",
        "score_chosen": 1.5,
        "score_rejected": None,
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
    assert write_rows(tmp_path / "dropped.parquet", DROPPED, []) == 0

    assert read_rows(tmp_path / "dropped.parquet", ["reason"]) == []


def test_token_ids_are_stored_as_32_bit_integers(tmp_path: Path) -> None:
    ids = {"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4]}
    text = {"prompt": [user("Q")], "chosen": "a", "rejected": "b"}
    write_rows(tmp_path / "t.parquet", PAIR_TOKENS, [{"row": "1", "pair_id": "f", **ids, **text}])

    stored = pq.read_schema(tmp_path / "t.parquet").field("chosen_ids").type
    assert stored.value_type == pa.int32()


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


def test_reading_data_needs_neither_a_model_library_nor_a_data_set_library() -> None:
    names = ["arithmetic", "parquet", "preferences", "sources", "splits", "templating"]
    code = f"""
import sys, {", ".join(f"steps.data.{name}" for name in names)}
print(*sorted({{"torch", "transformers", "datasets", "pipeline"}} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.split() == []


@pytest.mark.skipif(not SHARED_ROWS.is_file(), reason="no real rows beside the repository")
def test_every_row_of_a_real_ultrafeedback_sample_is_a_pair() -> None:
    outcomes: Counter[str] = Counter()
    labels: set[str] = set()
    for row, record in iter_records(str(SHARED_ROWS)):
        assert not isinstance(record, MalformedRow)
        pair = parse_pair(record, row)
        outcomes["kept"] += 1
        labels.add(pair.row)
        assert pair.prompt == (record["chosen"][0],)
        assert pair.chosen == record["chosen"][1]["content"]

    assert outcomes["kept"] == len(labels) == 500
    assert "uf-27808" in labels
