"""What people's files become: every line, element or row of them is a record or a named problem."""

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import REPOSITORY

from steps.data.formats.choice import FormatChoice, choose_format
from steps.data.load.shards import (
    FileShard,
    HubShard,
    Reader,
    Source,
    hub_source,
    open_shard,
    source_of,
)
from steps.data.readers import Item
from steps.data.readers.lines import MAX_ROW_BYTES, json_lines
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, PreferenceRow, PromptRow, UnpairedRow


def read(path: Path | str, start: int = 1) -> list[tuple[int, Any]]:
    """The rows of a file; a problem as its reason."""
    return shown(open_shard(FileShard(str(path), "rows"), start))


def shown(items: Any) -> list[tuple[int, Any]]:
    return [(n, r.reason if isinstance(r, MalformedRow) else r) for n, r in items]


def compressed(suffix: str, data: bytes) -> bytes:
    if suffix == ".gz":
        half = len(data) // 2  # two members, as `cat a.gz b.gz` makes
        return gzip.compress(data[:half]) + gzip.compress(data[half:])
    if codec := {".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}.get(suffix):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(data)
        return sink.getvalue().to_pybytes()
    return data


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(compressed(path.suffix, data))
    return path


LINES = [
    (b'{"id": "a"}', {"id": "a"}),
    (b"", None),
    (b'{"id": "cut off', "broken JSON"),
    (b"[1, 2]", "not an object"),
    (b" \t\r", None),
    (b'{"id": "\xff"}', "not valid UTF-8"),
    (b'{"text": "one\rtwo"}\r', {"text": "one\rtwo"}),
    (b'{"text": "a\xe2\x80\xa8b"}', {"text": "a\u2028b"}),
    (b'{"number": 1' + b"0" * 5000 + b"}", "broken JSON"),
    (b"[" * 100_000, "broken JSON"),
    (b'{"id": "last"}', {"id": "last"}),
]


@pytest.mark.parametrize(
    "name",
    ["rows.jsonl", "rows.ndjson", "a.jsonl.gz", "a.jsonl.zst", "a.jl.bz2", "a.jsonl.lz4"],
)
def test_a_bad_line_costs_only_itself(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, b"\n".join(line for line, _ in LINES))

    expected = [(n, found) for n, (_, found) in enumerate(LINES, start=1) if found is not None]
    assert read(path) == expected


def test_a_byte_order_mark_and_a_missing_last_line_break_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n{"id": 2}')

    assert read(tmp_path / "rows.jsonl") == [(1, {"id": 1}), (2, {"id": 2})]


TEN_MEGABYTES, OVER_THE_LIMIT = "x" * 10_000_000, "x" * MAX_ROW_BYTES


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json"])
def test_a_row_of_ten_megabytes_is_read_and_a_larger_one_is_named(
    tmp_path: Path, suffix: str
) -> None:
    records = [{"text": TEN_MEGABYTES}, {"text": OVER_THE_LIMIT}, {"id": 3}]
    lines = suffix != ".json"
    data = "\n".join(map(json.dumps, records)) if lines else json.dumps(records)
    path = write(tmp_path / f"rows{suffix}", data.encode())

    assert read(path) == [(1, records[0]), (2, "row too large"), (3, records[2])]


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".json.gz", ".txt.gz"])
def test_rows_before_the_break_of_a_cut_off_archive_are_kept(tmp_path: Path, suffix: str) -> None:
    numbers = random.Random(0).choices(range(10**9), k=30_000)
    records = [{"text": str(number)} for number in numbers]
    if suffix.startswith(".jsonl"):
        data = "\n".join(map(json.dumps, records))
    else:
        data = json.dumps(records) if suffix == ".json.gz" else "\n".join(map(str, numbers))
    path = write(tmp_path / f"rows{suffix}", data.encode())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 9 // 10])

    *rows, (number, last) = read(path)

    assert last == "file cut off"
    assert number == len(rows) + 1
    assert [record for _, record in rows] == records[: len(rows)]
    assert len(rows) > 10_000, "the break is near the end of the archive"


def test_a_disk_that_fails_is_an_error_and_not_a_damaged_file(tmp_path: Path) -> None:
    from steps.data.readers.blocks import read_blocks

    class Failing:
        def __init__(self, data: bytes) -> None:
            self.data, self.at = data, 0

        def read(self, size: int = -1) -> bytes:
            if self.at > 100:
                raise OSError("the network went away")
            self.at += 100
            return self.data[self.at - 100 : self.at]

    data = gzip.compress(random.Random(0).randbytes(100_000))
    with pytest.raises(OSError, match="the network went away"):
        list(read_blocks(Failing(data), "gzip"))  # pyright: ignore[reportArgumentType]


JSON_FILES = [
    ('[{"a": 1}, {"a": 2}]', [(1, {"a": 1}), (2, {"a": 2})]),
    (' \n[\n  {"a": "]"},\n {"a": 2} ]\n', [(1, {"a": "]"}), (2, {"a": 2})]),
    ('{"a": 1}', [(1, {"a": 1})]),
    ('{\n  "a": [1,\n 2]\n}\n', [(1, {"a": [1, 2]})]),
    ('{"a": 1}\n\n{"a": 2}\n', [(1, {"a": 1}), (3, {"a": 2})]),
    ('{"a": 1}\n{"a": \n{"a": 3}\n', [(1, {"a": 1}), (2, "broken JSON"), (3, {"a": 3})]),
    ('{"a": 1,}\n{"a": 2}\n', [(1, "broken JSON"), (2, {"a": 2})]),
    ("[]", []),
    ("", []),
    ("  \n", []),
    ('[1, {"a": 2}]', [(1, "not an object"), (2, {"a": 2})]),
    ('[{"a": 1}, {"a" 2}, {"a": 3}]', [(1, {"a": 1}), (2, "file cut off")]),
    ('[{"a": 1} {"a": 2}]', [(1, {"a": 1}), (2, "file cut off")]),
    ('[{"a": 1}, {"a": 2}', [(1, {"a": 1}), (2, {"a": 2}), (3, "file cut off")]),
    ('[{"a": 1}, {"a', [(1, {"a": 1}), (2, "file cut off")]),
    ('{"a": 1}\n{"b": {"a": 1, "a": 2}}', [(1, {"a": 1}), (2, "broken JSON")]),
    ('[{"a": 1, "a": 2}, {"a": 3}]', [(1, "broken JSON"), (2, {"a": 3})]),
    ('[{"a": 1}] more', [(1, {"a": 1}), (2, "file cut off")]),
    ("[" * 100_000, [(1, "file cut off")]),
    ("nonsense", [(1, "file cut off")]),
]


@pytest.mark.parametrize(("text", "expected"), JSON_FILES)
def test_a_json_file_is_a_list_an_object_or_lines(
    tmp_path: Path, text: str, expected: list[Any]
) -> None:
    (tmp_path / "rows.json").write_text(text)
    assert read(tmp_path / "rows.json") == expected

    (tmp_path / "marked.json").write_text(text, encoding="utf-8-sig")
    assert read(tmp_path / "marked.json") == expected


RECORDS = [{"id": str(n), "chosen": [{"role": "user", "content": "é" * n}]} for n in range(700)]


def write_table(path: Path, rows: list[dict[str, Any]] | pa.Table = RECORDS) -> Path:
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=300)
    elif path.name.startswith("stream"):
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=300)
    return path


TABLES = ["rows.parquet", "file.arrow", "stream.arrow"]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_the_records_that_it_was_made_of(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path / name)

    assert read(path) == list(enumerate(RECORDS, start=1))


@pytest.mark.parametrize("name", TABLES)
def test_an_object_of_a_table_has_its_own_keys_and_not_those_of_other_rows(
    tmp_path: Path, name: str
) -> None:
    def calling(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "calls": [{tool: arguments}]}], "note": None}

    records = [calling("get", {"zeta": "1", "alpha": [1]}), calling("put", {"beta": 3})]

    assert [row for _, row in read(write_table(tmp_path / name, records))] == records


@pytest.mark.parametrize(
    "name", [*TABLES, "rows.jsonl", "rows.jsonl.gz", "rows.json", "lines.json"]
)
@pytest.mark.parametrize("start", [1, 2, 300, 301, 512, 700, 701])
def test_a_file_can_be_opened_at_any_row(tmp_path: Path, name: str, start: int) -> None:
    path = tmp_path / name
    if name in TABLES:
        write_table(path)
    elif name == "rows.json":
        path.write_text(json.dumps(RECORDS))
    else:
        write(path, "\n".join(map(json.dumps, RECORDS)).encode())

    assert read(path, start) == list(enumerate(RECORDS, start=1))[start - 1 :]


def test_a_text_of_a_table_that_is_no_text_costs_only_its_row(tmp_path: Path) -> None:
    bad = pa.array([b"good", b"\xff", b"good"]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "rows.parquet")

    assert read(tmp_path / "rows.parquet") == [
        (1, {"text": "good"}),
        (2, "not valid UTF-8"),
        (3, {"text": "good"}),
    ]


def _as_value(text: str, kind: Any) -> Any:
    """A value of this type with this text in it."""
    if pa.types.is_map(kind):
        return {"content": text}
    if pa.types.is_struct(kind):
        return {"content": _as_value(text, kind.field("content").type)}
    return [_as_value(text, kind.value_type)] if pa.types.is_nested(kind) else text


def test_messages_in_a_list_for_each_of_their_keys_are_messages(tmp_path: Path) -> None:
    # As `datasets` before version 4 saves a `Sequence` of objects.
    chat = {"role": ["user", "assistant"], "content": ["2 + 2?", "4"], "name": None}
    told = {"from": ["human", "gpt"], "value": ["a", "b"]}
    found = {"text": ["4"], "answer_start": [3]}  # SQuAD's answers are an object
    table = pa.table(
        {"chat": [chat], "told": [told], "found": [found], "torn": [{**told, "value": ["a"]}]}
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    ((_, row),) = read(tmp_path / "rows.parquet")
    user, assistant = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    assert row["chat"] == [user, assistant]
    assert row["told"] == [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert row["found"] == found
    assert row["torn"] == {**told, "value": ["a"]}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_classes_that_datasets_stores_as_numbers_have_their_names(
    tmp_path: Path, suffix: str
) -> None:
    """A label of 0 would else be a bad one, whatever its name says."""
    label = {"names": ["good", "bad"], "_type": "ClassLabel"}
    described = {"info": {"features": {"label": label, "n": {"dtype": "int64", "_type": "Value"}}}}
    table = pa.table({"label": [0, 1, -1, None, 7], "n": range(5)})
    table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    rows = [record for _, record in read(path)]
    assert [record["label"] for record in rows] == ["good", "bad", None, None, 7]
    assert [record["n"] for record in rows] == [0, 1, 2, 3, 4]


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.parquet")
    column = pq.read_metadata(path).row_group(1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)

    rows = read(path)

    assert [number for number, _ in rows] == list(range(1, 701))
    assert [number for number, row in rows if row == "damaged row group"] == list(range(301, 601))


@pytest.mark.parametrize("cut", [1, 8])
def test_a_stream_without_its_end_mark_is_cut_off(tmp_path: Path, cut: int) -> None:
    path = write_table(tmp_path / "stream.arrow")
    whole = path.read_bytes()
    for content in (whole[:-cut], whole * 2):
        path.write_bytes(content)
        assert read(path) == [*enumerate(RECORDS, start=1), (len(RECORDS) + 1, "file cut off")]


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=30))
def test_every_line_of_random_bytes_is_accounted_for(lines: list[bytes]) -> None:
    data = b"\n".join(lines)
    blocks = [data[at : at + 7] for at in range(0, len(data), 7)]

    rows = list(json_lines(blocks))

    told = [n for n, line in enumerate(lines, start=1) if line.removeprefix(
        b"\xef\xbb\xbf" if n == 1 else b"").strip()]  # fmt: skip
    assert [number for number, _ in rows] == told
    for _, record in rows:
        assert isinstance(record, Mapping | MalformedRow)


@given(st.binary(max_size=200), st.sampled_from(sorted({"jsonl", "json", "txt"})))
def test_no_bytes_make_a_reader_fail(data: bytes, kind: str) -> None:
    fsspec.filesystem("memory").pipe_file(f"/fuzz/rows.{kind}", data)

    for number, record in open_shard(FileShard(f"memory://fuzz/rows.{kind}", "rows")):
        assert number >= 1
        assert isinstance(record, Mapping | MalformedRow)


@settings(max_examples=300)
@given(st.data())
def test_no_damage_to_an_archive_or_a_table_makes_a_reader_fail(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(whole_files())))
    content = bytearray(whole_files()[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    fsspec.filesystem("memory").pipe_file(f"/damaged/{name}", bytes(content))

    for _, record in open_shard(FileShard(f"memory://damaged/{name}", name)):
        assert isinstance(record, Mapping | MalformedRow)


@cache
def whole_files() -> dict[str, bytes]:
    text = "\n".join(map(json.dumps, RECORDS[:20])).encode()
    table = pa.Table.from_pylist(RECORDS[:20])
    parquet, stream, file = (pa.BufferOutputStream() for _ in range(3))
    pq.write_table(table, parquet, row_group_size=8)
    for opened in (pa.ipc.new_stream(stream, table.schema), pa.ipc.new_file(file, table.schema)):
        with opened as writer:
            writer.write_table(table, max_chunksize=8)
    return {
        "rows.jsonl.gz": compressed(".gz", text),
        "rows.jsonl.zst": compressed(".zst", text),
        "rows.parquet": parquet.getvalue().to_pybytes(),
        "stream.arrow": stream.getvalue().to_pybytes(),
        "file.arrow": file.getvalue().to_pybytes(),
    }


# --- which files -------------------------------------------------------------------------------


def names(source: Source) -> list[str]:
    return [shard.name for shard in source.shards]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/2.jsonl", "b/1.jsonl", "a/1.jsonl", "README.md", ".hidden/x.jsonl", "_SUCCESS"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(f'{{"id": "{name}"}}\n')
    return tmp_path / "data"


def test_a_folder_is_all_data_files_below_it_in_order(folder: Path) -> None:
    source = source_of(str(folder))

    assert names(source) == ["a/1.jsonl", "b/1.jsonl", "b/2.jsonl"]
    assert source.name == "data"


def test_a_pattern_names_files_by_what_follows_its_fixed_part(folder: Path) -> None:
    assert names(source_of(f"{folder}/*/1.jsonl")) == ["a/1.jsonl", "b/1.jsonl"]
    assert names(source_of(f"{folder}/b/*.jsonl")) == ["1.jsonl", "2.jsonl"]
    assert names(source_of(f"{folder}/**/*.jsonl"))[:2] == ["a/1.jsonl", "b/1.jsonl"]


def test_a_folder_with_two_kinds_of_file_is_refused(folder: Path) -> None:
    (folder / "notes.txt").write_text("not data, perhaps")

    with pytest.raises(ValueError, match=r"several kinds: .jsonl, .txt; .*\*\.jsonl"):
        source_of(str(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("b/3.xlsx", r"cannot be read: b/3\.xlsx"),
        ("3.jsonl.xz", r"cannot be read: 3\.jsonl\.xz"),
        ("3.jsonl.gz.part", r"cannot be read: 3\.jsonl\.gz\.part; get"),
        ("a/1.jsonl.gz", r"in two compressions: a/1\.jsonl, a/1\.jsonl\.gz"),
    ],
)
def test_a_folder_of_which_rows_would_be_missed_or_read_twice_is_refused(
    folder: Path, name: str, message: str
) -> None:
    (folder / name).write_bytes(b"")

    with pytest.raises(ValueError, match=message):
        source_of(str(folder))


@pytest.mark.parametrize("name", ["absent.jsonl", "absent/*.jsonl", "absent"])
def test_what_is_not_there_is_reported_before_any_row_is_asked_for(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        source_of(str(tmp_path / name))


def test_a_reader_goes_on_from_where_another_one_was(folder: Path) -> None:
    source = source_of(str(folder))
    every = take(Reader(source))
    assert [name for name, _ in every] == names(source)

    for count in range(len(every) + 1):
        first = Reader(source)
        for _ in range(count):
            first.next()
        assert take(Reader(source, first.shard, first.row)) == every[count:]


def take(reader: Reader) -> list[tuple[str, Item]]:
    return list(iter(reader.next, None))  # pyright: ignore[reportReturnType]


# --- elsewhere than on disk --------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["gcs", "s3"], indirect=True)
def test_objects_are_read_like_files(store_url: str) -> None:
    filesystem, root = fsspec.url_to_fs(store_url)
    text = "\n".join(map(json.dumps, RECORDS)).encode()
    filesystem.pipe_file(f"{root}/a/1.jsonl.gz", compressed(".gz", text))
    filesystem.pipe_file(f"{root}/a/2.jsonl", b'{"id": "second"}')

    for url in (f"{store_url}/a", f"{store_url}/a/*.jsonl*"):
        source = source_of(url)
        assert names(source) == ["1.jsonl", "2.jsonl"]
        rows = [item[1] for _, item in take(Reader(source))]
        assert rows == [*RECORDS, {"id": "second"}]


@pytest.mark.parametrize("revision", ["main", "v1.0", "", "3949bf5"])
def test_a_hub_data_set_must_be_named_by_a_full_commit(revision: str) -> None:
    with pytest.raises(ValueError, match=r"40 hex digits"):
        hub_source("someone/preferences", revision, "train")


def test_a_hub_data_set_gives_the_records_that_its_files_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "repo").mkdir()
    for part in range(2):
        rows = pa.Table.from_pylist(RECORDS[part * 350 : part * 350 + 350])
        pq.write_table(rows, tmp_path / "repo" / f"train-{part}.parquet")

    # A folder stands for the Hub, which tests must not need; only the download differs.
    source = hub_source(str(tmp_path / "repo"), "0" * 40, "train")

    assert names(source) == ["train-00000", "train-00001"]
    assert [item[1] for _, item in take(Reader(source))] == RECORDS
    assert list(open_shard(source.shards[1], 349)) == [(349, RECORDS[698]), (350, RECORDS[699])]
    assert isinstance(source.shards[0], HubShard)


@pytest.fixture
def grade_school(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set with two configs and no default, as GSM8K is; a folder stands for the Hub."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    card = ["---", "configs:"]
    for config in ("main", "socratic"):
        (tmp_path / "repo" / config).mkdir(parents=True)
        card += [f"- config_name: {config}", "  data_files:"]
        for split in ("train", "test"):
            card += [f"  - split: {split}", f"    path: {config}/{split}-*"]
            row = pa.table({"question": [f"{config} {split}"]})
            pq.write_table(row, tmp_path / "repo" / config / f"{split}-0.parquet")
    (tmp_path / "repo" / "README.md").write_text("\n".join([*card, "---", ""]))
    return str(tmp_path / "repo")


@pytest.mark.parametrize(
    ("chosen", "split", "said"),
    [
        ({"name": "main"}, "train", "main train"),
        ({"name": "socratic"}, "test", "socratic test"),
        ({"data_dir": "socratic"}, "train", "socratic train"),
        ({"data_files": "main/test*"}, "train", "main test"),
        ({"data_files": {"held": ["socratic/test-0.parquet"]}}, "held", "socratic test"),
    ],
)
def test_a_config_a_folder_or_files_of_a_hub_data_set_are_read(
    grade_school: str, chosen: dict[str, Any], split: str, said: str
) -> None:
    source = hub_source(grade_school, "0" * 40, split, **chosen)
    assert [item[1] for _, item in take(Reader(source))] == [{"question": said}]


@pytest.mark.parametrize(
    ("chosen", "split", "said"),
    [
        ({}, "train", r"has the configs main, socratic; name one: data\.name=main,"),
        ({"name": "mian"}, "train", r"has the configs main, socratic; name one: data\.name=main,"),
        ({"name": "main"}, "test_prefs", "has the splits train, test, and no test_prefs; name one"),
    ],
)
def test_a_config_or_split_that_a_hub_data_set_lacks_is_answered_with_those_it_has(
    grade_school: str, chosen: dict[str, Any], split: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as error:
        hub_source(grade_school, "0" * 40, split, **chosen)
    assert "network" not in str(error.value)
    assert "\n" not in str(error.value)


CALL = {"function": {"name": "warm", "arguments": {"city": "Oslo", "unit": None, "days": 3}}}
ASKED = {"role": "user", "content": "How warm is it?"}
PARTS = [{"type": "text", "text": "How warm "}, {"type": "text", "text": "is it?"}]


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


MIXED: list[tuple[type, list[dict[str, Any]]]] = [
    (ConversationRow, [
        {"messages": [ASKED, said("42")]}, {"messages": [{**ASKED, "content": PARTS}, said("[1]")]},
        {"messages": [ASKED, said('{"a": 1}')]}, {"messages": [ASKED, said("true")]},
        {"messages": [ASKED, said("007")]}, {"messages": [ASKED, said('["a", "b"]')]},
        {"messages": [ASKED, said(' [{"b": 1}]')]}, {"messages": [ASKED, said(None)]},
        {"messages": [ASKED, said("NaN")]}, {"messages": [ASKED, said('{"a": 1, "a": 2}')]},
        {"messages": [ASKED, said("1", train=True)]}, {"messages": [ASKED, said("It's \u00e9.")]}]),
    (ConversationRow, [
        {"messages": [ASKED, said("", tool_calls=[CALL]), {"role": "tool", "content": "3"}],
         "tools": None},
        {"messages": [ASKED, said("4")], "tools": [{"name": "warm", "default": "3"}]},
        {"messages": [ASKED, said("", tool_calls=[CALL])], "tools": [{"name": {"of": "warm"}}]},
        {"messages": [ASKED, said("5")], "tools": [{"name": "warm"}]}]),
    (PreferenceRow, [
        {"prompt": "hi", "chosen": "42", "rejected": [said("no")]},
        {"prompt": [ASKED], "chosen": [said("[1]")], "rejected": "43"},
        {"prompt": "7", "chosen": [ASKED, said("3")], "rejected": "false"},
        {"prompt": "hi", "chosen": [said("", tool_calls=[CALL])], "rejected": "{}"},
        {"prompt": "hi", "chosen": "a", "rejected": None}]),
    (PromptRow, [
        {"prompt": "hi", "answer": "42"}, {"prompt": [ASKED], "answer": [7]},
        {"prompt": "1", "answer": 8}, {"prompt": "hi", "answer": ["a", "b"]}]),
    (UnpairedRow, [
        {"prompt": "hi", "completion": "42", "label": True},
        {"prompt": [ASKED], "completion": [said("[1]")], "label": "bad"},
        {"prompt": "3", "completion": "{}", "label": 1}, {"prompt": "a", "completion": "b"}]),
]  # fmt: skip
"""Columns whose values differ in type, which `datasets` stores as JSON."""


def stored(data: Any, folder: Path, where: str) -> Source:
    """A `datasets.Dataset` in one of the places where people have it."""
    folder.mkdir()
    path = folder / where
    if where == "saved":
        data.save_to_disk(str(path))
    elif where == "rows.arrow":
        table = data.data.table
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    else:
        data.to_parquet(str(folder / "train.parquet" if where == "hub" else path))
    if where.startswith("no"):  # a program that knows no JSON keeps texts and the metadata
        pq.write_table(
            pq.read_table(path, arrow_extensions_enabled=False), path, store_schema=False
        )
    return hub_source(str(folder), "0" * 40, "train") if where == "hub" else source_of(str(path))


def made_of(records: list[Any], makes: type) -> str:
    """The rows of records, and the reasons why some are none, as JSON."""
    chosen, made = choose_format(FormatChoice(), records, makes, "rows"), []
    for record in records:
        try:
            made.append(asdict(chosen.parse(record, "1")))  # pyright: ignore[reportArgumentType]
        except MalformedRow as problem:
            made.append(problem.reason)
    return json.dumps(made)


@pytest.mark.parametrize(("makes", "records"), MIXED)
def test_columns_that_datasets_stores_as_json_give_the_rows_of_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makes: type, records: list[dict[str, Any]]
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = datasets.Dataset.from_list(records, on_mixed_types="use_json")
    assert "Json" in str(data.features)
    expected = made_of(records, makes)
    for where in ("hub", "rows.parquet", "rows.arrow", "saved", "no extension.parquet"):
        source = stored(data, tmp_path / where.replace(".", "-"), where)
        assert made_of([item[1] for _, item in take(Reader(source))], makes) == expected, where


def test_reading_data_needs_neither_a_model_library_nor_a_data_set_library() -> None:
    modules = ["load.loading", "load.overlap", "load.splits", "rows.arithmetic", "rows.tables"]
    modules.append("formats.choice")
    code = f"""
import sys, {", ".join(f"steps.data.{name}" for name in modules)}
print(*sorted({{"torch", "transformers", "datasets", "pipeline"}} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.split() == []
