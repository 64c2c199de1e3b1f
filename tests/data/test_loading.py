"""From a user's files to shards of rows: what is kept, what is dropped, and what a kill costs."""

import gzip
import json
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import step_output
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from places import REPOSITORY

from pipeline import Artifact, File, HubDataset, TemperError
from steps.data.formats.choice import FormatChoice
from steps.data.formats.preference import PreferenceFormat
from steps.data.load import loading
from steps.data.load.config import LoadConfig
from steps.data.load.file_advice import of_file
from steps.data.load.loading import Load, Part, Reading, load_rows
from steps.data.load.mixture import Mixture, check_weights
from steps.data.load.overlap import EvaluationSet, words_of
from steps.data.load.parsing import Parser
from steps.data.load.prefetch import ReadAhead, ReadingStopped
from steps.data.load.shards import FileShard, source_of
from steps.data.rows.ledger import Entry, Tally, TooManyDropped, check_max_dropped
from steps.data.rows.parquet import read_rows
from steps.data.rows.rows import PreferenceRow
from steps.data.rows.tables import from_record
from steps.data.tokens.length_summaries import packed
from steps.decontaminate import (
    decontaminate,
    decontaminate_conversations,
    decontaminate_prompts,
    decontaminate_texts,
    decontaminate_unpaired,
)
from steps.filter_pairs import FilterConfig, filter_pairs
from steps.load_conversations import load_conversations
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.load_texts import load_texts
from steps.load_unpaired import load_unpaired
from steps.sources import Mixed, MixturePart, PartData, PreferenceData, data_at


def pair(number: int, **other: Any) -> dict[str, Any]:
    return {"prompt": f"Question {number}?", "chosen": f"Yes, {number}.", "rejected": "No."} | other


def write(path: Path, records: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


class Folder(step_output.Folder):
    """It can be killed at a row."""

    def __init__(self, path: Path, scratch: Path | None = None, killed_at: int | None = None):
        super().__init__(path / "out", scratch or path / "scratch")
        self.killed_at = killed_at

    def progress(self, done: float, total: float | None, metrics: Any = None) -> None:
        if done == self.killed_at:
            raise KeyboardInterrupt

    def rows(self, split: str) -> list[PreferenceRow]:
        if not (self.path / split).exists():
            return []
        return [from_record(PreferenceRow, record) for record in read_rows(self.path / split)]

    def ledger(self) -> list[Entry]:
        return [Entry(**line) for line in read_rows(self.path / "ledger.parquet")]

    def files(self) -> dict[str, bytes]:
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}


def loaded(
    folder: Path, train: Any, test: Any = None, **settings: Any
) -> tuple[Folder, Mapping[str, Any]]:
    out = Folder(folder)
    source = data_at(train) if isinstance(train, str) else train
    config = LoadConfig(**{"test_fraction": 0.1, **settings})
    metrics = load_preferences.function(out, source, test, config)
    return out, metrics or {}


def labels(rows: list[PreferenceRow]) -> list[str]:
    return [row.row for row in rows]


# --- every row is accounted for ----------------------------------------------------------------


@pytest.fixture
def messy(tmp_path: Path) -> str:
    write(tmp_path / "data/a.jsonl", [pair(0), {"prompt": "Q"}, pair(2, id="mine")])
    (tmp_path / "data/b.jsonl").write_text('\n{"cut\n' + json.dumps(pair(3)))
    return str(tmp_path / "data")


TEST = [pair(n) for n in range(100, 103)]


def test_the_ledger_names_file_row_and_reason_and_the_metrics_count(
    tmp_path: Path, messy: str
) -> None:
    test = File(write(tmp_path / "test.jsonl", TEST))

    out, metrics = loaded(tmp_path, messy, test=test)

    entries = out.ledger()
    assert [(e.split, e.source, e.row, e.outcome, e.reason) for e in entries[:5]] == [
        ("train", "a.jsonl", "a.jsonl:1", "kept", None),
        ("train", "a.jsonl", "a.jsonl:2", "dropped", "no chosen"),
        ("train", "a.jsonl", "mine", "kept", None),
        ("train", "b.jsonl", "b.jsonl:2", "dropped", "broken JSON"),
        ("train", "b.jsonl", "b.jsonl:3", "kept", None),
    ]
    assert labels(out.rows("train")) == ["a.jsonl:1", "mine", "b.jsonl:3"]
    assert labels(out.rows("test")) == ["file:1", "file:2", "file:3"]
    assert (metrics["rows"], metrics["train"], metrics["test"], metrics["dropped"]) == (8, 3, 3, 2)
    assert metrics["dropped_by_reason"]["no chosen"] == {"count": 1, "rows": ["a.jsonl:2"]}
    assert metrics["formats"] == {"train": "preference", "test": "preference"}
    assert "no chosen: 1 (a.jsonl:2)" in metrics["notices"][0]
    assert str(tmp_path) not in json.dumps([vars(entry) for entry in entries])


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["prompt", "chosen", "rejected", "id", "role", "content"]), inner
        )
    ),
)
LINE = st.binary(max_size=20).filter(lambda b: b"\n" not in b) | ANY_JSON.map(
    lambda value: json.dumps(value).encode()
)


@settings(
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    max_examples=settings().max_examples // 8,
)
@given(st.lists(LINE, max_size=12))
def test_of_random_lines_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "rows.jsonl").write_bytes(b"\n".join(lines))

    done = load(folder, [str(folder / "rows.jsonl")])

    entries = [Entry(**line) for line in read_rows(folder / "out" / "ledger.parquet")]
    told = [line.removeprefix(b"\xef\xbb\xbf") if n == 0 else line for n, line in enumerate(lines)]
    assert len(entries) == sum(bool(line.strip()) for line in told)
    assert len({entry.row for entry in entries}) == len(entries)
    assert done.tallies["train"].rows == len(entries)
    kept = sum(entry.outcome == "kept" for entry in entries)
    assert kept == sum(done.kept.values())


def load(folder: Path, urls: list[str], progress: Any = lambda *_: None, **settings: Any) -> Any:
    """`load_rows` of pairs in files, one part for each; a tenth is held out."""
    parts = tuple(
        Part(source_of(url), PreferenceFormat(), weight, name)
        for url, weight, name in zip(
            urls, settings.pop("weights", [1.0] * len(urls)), ["", "b", "c"], strict=False
        )
    )
    reading = Reading("rows", parts, settings.pop("until", "first exhausted"))
    what = Load(PreferenceRow, reading, None, LoadConfig(test_fraction=0.1, **settings))
    return load_rows(what, folder / "out", folder / "scratch", progress)


def test_two_rows_never_share_a_label(tmp_path: Path) -> None:
    records = [pair(0, id="a"), pair(1, id="a"), pair(2, id="file:4"), pair(3), pair(4, id="a")]

    load(tmp_path, [write(tmp_path / "r.jsonl", records)])

    entries = read_rows(tmp_path / "out" / "ledger.parquet", ["row"])
    assert [entry["row"] for entry in entries] == [
        "a", "file:2", "file:4", "file:4 (2)", "file:5",
    ]  # fmt: skip


# --- how much may be dropped -------------------------------------------------------------------


def tally(kept: int, **dropped: int) -> Tally:
    found = Tally(kept=kept)
    for reason, count in dropped.items():
        for number in range(count):
            name: Any = reason.replace("_", " ")
            found.add(Entry("train", "f", f"{reason} {number}", "dropped", name, "what was found"))
    return found


@pytest.mark.parametrize(
    ("kept", "dropped", "limit"),
    [(1, 1, 0.5), (0, 0, 0), (9, 1, 1), (5, 5, 5), (1, 9, 9), (9, 1, 0.1)],
)
def test_as_many_as_allowed_may_be_dropped(kept: int, dropped: int, limit: float) -> None:
    tally(kept, no_chosen=dropped).check(limit, "rows.jsonl")


@pytest.mark.parametrize(
    ("kept", "dropped", "limit"), [(1, 2, 0.5), (9, 1, 0), (9, 2, 1), (9, 2, 0.1)]
)
def test_more_than_that_is_an_error(kept: int, dropped: int, limit: float) -> None:
    with pytest.raises(TooManyDropped, match=r"rows\.jsonl cannot be used"):
        tally(kept, no_chosen=dropped).check(limit, "rows.jsonl")


def test_good_rows_that_were_not_wanted_do_not_count() -> None:
    tally(1, duplicate=50, over_the_limit=50, overlaps_evaluation=50).check(0, "x")


@pytest.mark.parametrize("limit", [-1, float("nan"), 1.5, float("inf")])
def test_a_limit_that_says_nothing_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="max_dropped"):
        check_max_dropped(limit)


def test_too_many_dropped_rows_fail_the_step(tmp_path: Path, messy: str) -> None:
    with pytest.raises(TemperError, match=r"2 of the 5 rows of data .*max_dropped=1: .*no chosen"):
        loaded(tmp_path, messy, max_dropped=1)


def test_a_file_that_is_not_read_to_its_end_is_an_error_that_names_it(tmp_path: Path) -> None:
    elements = [json.dumps(pair(n)) for n in range(100)]
    elements[40] = '{"prompt": "Q", "chosen": oops}'
    (tmp_path / "list.json").write_text(f"[{', '.join(elements)}]")

    told = r"^list\.json could not be read .* not known: nothing .* after element 40: broken JSON"
    with pytest.raises(TemperError, match=told):
        loaded(tmp_path, str(tmp_path / "list.json"), max_dropped=99)
    (tmp_path / "several").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"several/{name}.json").write_text(f"[{', '.join(elements)}]")
    with pytest.raises(TemperError, match=r"^2 files of several .*: a\.json:41, b\.json:41: noth"):
        loaded(tmp_path / "folder", str(tmp_path / "several"), max_dropped=99)


_PAIRS = [{"prompt": f"Q{n}", "chosen": "yes", "rejected": "no"} for n in range(5)]
_IN_COLUMNS = {name: [row[name] for row in _PAIRS] for name in _PAIRS[0]}
_STEPS = {"prompt": "2 + 2?", "completions": ["2 + 2", "= 5"], "labels": [True, False]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"version": 1, "data": _PAIRS}, "whose field data holds the rows"),
        (_IN_COLUMNS, "one object of columns"),
        ({"columns": ["prompt"], "index": [0], "data": [["Q"]]}, "one object of columns"),
        ({"schema": {"fields": [{"name": "prompt"}]}, "data": _PAIRS}, "field data holds the rows"),
        ([_STEPS] * 3, "a process reward model, which Temper does not train"),
    ],
)
def test_rows_that_lie_deeper_are_an_error_that_says_where(
    tmp_path: Path, content: Any, said: str
) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(content))

    with pytest.raises(TemperError, match=said):
        loaded(tmp_path, str(tmp_path / "rows.json"), test_fraction=0)


# --- splits and limits -------------------------------------------------------------------------


def test_a_copy_of_another_name_or_compressed_gives_the_bytes_of_the_file_itself(
    tmp_path: Path,
) -> None:
    """A file's name is in no key, and what is drawn for a row follows from the row's label. A
    compressed copy is another file, but the steps after it need not run again."""
    plain = Path(write(tmp_path / "rows.jsonl", [pair(n) for n in range(20)]))
    packed = tmp_path / "second version.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    (one, _), (other, _) = loaded(tmp_path / "1", str(plain)), loaded(tmp_path / "2", str(packed))
    assert one.files() == other.files()


def test_held_out_prompts_are_new_and_adding_rows_moves_none(tmp_path: Path) -> None:
    few = [pair(n % 100, id=str(n)) for n in range(200)]
    more = [*(pair(n, id=f"new {n}") for n in range(500, 600)), *few]

    one, _ = loaded(tmp_path / "1", write(tmp_path / "a.jsonl", few))
    two, _ = loaded(tmp_path / "2", write(tmp_path / "b.jsonl", more))

    assert 0 < len(one.rows("test")) < 60
    assert set(labels(one.rows("test"))) <= set(labels(two.rows("test")))
    assert set(labels(one.rows("train"))) <= set(labels(two.rows("train")))
    prompts = {split: {str(row.prompt) for row in one.rows(split)} for split in ("train", "test")}
    assert not prompts["train"] & prompts["test"]


def test_a_limit_keeps_the_first_rows_and_the_ledger_tells_of_all(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [pair(n) for n in range(50)])
    test = File(write(tmp_path / "t.jsonl", TEST))

    out, metrics = loaded(tmp_path, path, test=test, max_train=5, max_test=2)

    assert labels(out.rows("train")) == [f"file:{n}" for n in range(1, 6)]
    assert len(out.rows("test")) == 2
    assert Counter(e.reason for e in out.ledger()) == {None: 7, "over the limit": 46}
    assert (metrics["rows"], metrics["dropped"], metrics["over_the_limit"]) == (53, 0, 46)
    assert "notices" not in metrics


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "a.jsonl has no rows"),
        ([{"prompt": "p", "chosen": "c"}, [1, 2]], r"a.jsonl has no valid row: all 2 were dropped"),
        ([pair(1)], "no row is left for (train|test) when test_fraction=0.1"),
        ([{"question": "?"}], r"a\.jsonl: cannot tell the format of its rows"),
    ],
)
def test_data_from_which_nothing_can_be_learned_is_an_error(
    tmp_path: Path, records: list[Any], message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        loaded(tmp_path, write(tmp_path / "a.jsonl", records))


def test_duplicates_are_left_out_across_spellings_and_splits(tmp_path: Path) -> None:
    accented = [pair(5, chosen="é\r\n  b"), pair(5, chosen="e\u0301\n  b", id="c")]
    spelled = {"prompt": " Question 1?\n", "chosen": "Yes, 1.\t", "rejected": "No. ", "id": "b"}
    train = [pair(1), spelled, pair(1, chosen="yes, 1."), pair(1, rejected="No!"), *accented]
    test = [pair(1, score_chosen=3), pair(2)]

    out, metrics = loaded(
        tmp_path,
        write(tmp_path / "a.jsonl", train),
        test=File(write(tmp_path / "t.jsonl", test)),
        duplicates="drop",
    )

    dropped = [entry.row for entry in out.ledger() if entry.reason == "duplicate"]
    assert dropped == ["b", "c", "file:1"], "case is content; scores are not"
    assert metrics["dropped"] == 3


def turned(number: int, **other: Any) -> dict[str, Any]:
    return pair(number, chosen="No.", rejected=f"Yes, {number}.", **other)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("spread", "killed_at"),
    [("one file", 25), ("files", None), ("mixture", 25), ("test file", 25)],
)
def test_duplicates_and_contradictions_are_told_or_left_out(
    tmp_path: Path, spread: str, killed_at: int | None
) -> None:
    first = [pair(0), *(pair(n) for n in range(1, 16)), pair(1), turned(2), pair(2)]
    later = [turned(0, id="turned"), turned(3), turned(3), *(pair(n) for n in range(20, 32)),
             pair(15), turned(31)]  # fmt: skip
    files = [write(tmp_path / f"rows/{n}.jsonl", rows) for n, rows in enumerate((first, later))]
    test = None
    source: Any = str(tmp_path / "rows")
    if spread == "one file":
        source = write(tmp_path / "all.jsonl", [*first, *later])
    elif spread == "mixture":
        named = enumerate(files)
        source = Mixed(tuple(MixturePart(f"{n}", File(f)) for n, f in named), "all exhausted")
    elif spread == "test file":
        source, test = files[0], File(files[1])

    def made(name: str, duplicates: str) -> tuple[Folder, Mapping[str, Any]]:
        chosen = {"test_fraction": 0.0, "duplicates": duplicates}
        scratch = tmp_path / name / "scratch"
        data = data_at(source) if isinstance(source, str) else source
        if killed_at is not None:
            killed = Folder(tmp_path / name / "killed", scratch, killed_at)
            with pytest.raises(KeyboardInterrupt):
                load_preferences.function(killed, data, test, LoadConfig(**chosen))
        out = Folder(tmp_path / name, scratch)
        return out, load_preferences.function(out, data, test, LoadConfig(**chosen)) or {}

    kept, told = made("keep", "keep")
    assert told["train"] + told.get("test", 0) == len(first) + len(later)
    assert told["dropped"] == 0
    doubled = Counter(entry.reason for entry in kept.ledger())
    counts = doubled["duplicate"], doubled["contradictory pair"]
    assert counts == ((4, 4) if spread == "mixture" else (3, 5)), "its order is another"
    assert {e.outcome for e in kept.ledger()} == {"kept"}
    (said,) = (notice for notice in told["notices"] if "data.duplicates=drop" in notice)
    assert f"{counts[0]} equal an earlier one" in said
    assert f"{counts[1]} prefer what an earlier one rejects" in said

    dropped, metrics = made("drop", "drop")
    asked = [row.prompt[0]["content"] for split in ("train", "test") for row in dropped.rows(split)]
    left = {1, *range(4, 16), *range(20, 31)}
    assert sorted(asked) == sorted(f"Question {n}?" for n in left)
    assert metrics["train"] + metrics.get("test", 0) == len(left)
    assert metrics["dropped"] == len(first) + len(later) - len(left)
    reasons = Counter(e.reason for e in dropped.ledger() if e.outcome == "dropped")
    assert reasons == {r: told["count"] for r, told in metrics["dropped_by_reason"].items()}
    assert all(e.detail and "row" in e.detail for e in dropped.ledger() if e.reason)
    named = {split: [e.row for e in dropped.ledger() if (e.split, e.outcome) == (split, "kept")]
             for split in ("train", "test")}  # fmt: skip
    assert named == {split: labels(dropped.rows(split)) for split in ("train", "test")}


def test_pairs_contradict_each_other_only_if_all_but_the_sides_is_equal(tmp_path: Path) -> None:
    rows = [
        pair(1), turned(1, system="Be kind."), pair(2), turned(2, score_chosen=3, weight=2.0),
        pair(3), turned(3, prompt="Question 4?"), pair(5), pair(5, rejected="Yes, 5.", chosen="N"),
    ]  # fmt: skip
    out, _ = loaded(tmp_path, write(tmp_path / "a.jsonl", rows), test_fraction=0.0)
    assert [(e.row, e.detail) for e in out.ledger() if e.reason] == [
        ("file:4", "row file:3 has its sides exchanged")
    ]


def test_rows_that_a_mixture_repeats_are_no_duplicates(tmp_path: Path) -> None:
    file = File(write(tmp_path / "a.jsonl", [pair(1), pair(2), turned(2)]))
    parts = (MixturePart("a", file, repeat=3), MixturePart("b", file))
    _, metrics = loaded(tmp_path, Mixed(parts, "all exhausted"), test_fraction=0.0)
    assert {reason: count for reason, (count, _) in metrics["kept_twice"].items()} == {
        "duplicate": 2, "contradictory pair": 2,
    }  # fmt: skip


def test_what_differs_in_a_power_or_an_indentation_is_no_duplicate(tmp_path: Path) -> None:
    rows = [
        pair(1, prompt="What is 5²?"), pair(1, prompt="What is 52?"),
        pair(2, chosen="if a:\n    b\n    c"), pair(2, chosen="if a:\n    b\nc"),
    ]  # fmt: skip
    test = File(write(tmp_path / "t.jsonl", TEST))

    out, _ = loaded(tmp_path, write(tmp_path / "a.jsonl", rows), test=test, duplicates="drop")

    assert len(out.rows("train")) == 4


def test_test_rows_whose_prompts_are_trained_on_are_told_of(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", [pair(n) for n in range(10)])
    test = write(tmp_path / "t.jsonl", [*TEST, pair(3, prompt="Question 3? ", chosen="Other.")])

    _, metrics = loaded(tmp_path / "1", train, test=File(test))
    _, same = loaded(tmp_path / "2", train, test=File(train))
    _, other = loaded(tmp_path / "3", train, test=File(write(tmp_path / "o.jsonl", TEST)))

    assert "1 of the 4 test rows have a prompt that train has too" in metrics["notices"][0]
    assert "10 of the 10 test rows" in same["notices"][0]
    assert "notices" not in other


def test_keys_of_messages_that_are_not_read_are_named(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "Yes.", "weight": 0, "mood": "calm", "name": None}
    train = [pair(0), pair(1, chosen=[answer], source="web"), pair(2, chosen=[answer], tools=[{}])]
    test = File(write(tmp_path / "t.jsonl", TEST))

    _, metrics = loaded(tmp_path, write(tmp_path / "a.jsonl", train), test=test)

    assert metrics["ignored_keys"] == {"chosen[].mood": 2, "chosen[].weight": 2}
    assert "chosen[].mood (2 rows), chosen[].weight (2 rows)" in metrics["notices"][0]


@pytest.mark.parametrize("workers", [1, 2])
def test_prompts_that_no_checker_can_judge_alike_are_told_of(tmp_path: Path, workers: int) -> None:
    tests = json.dumps(["assert f(1) == 2"])
    kinds = {"gsm8k": "4", "ifeval": '{"func_name": "f", "N": 3}', "code": tests}
    rows = [
        {"id": name, "messages": [USER], "ground_truth": answer, "dataset": [name]}
        for name, answer in kinds.items()
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    config = LoadConfig(workers=workers)
    told = (load_prompts.function(Folder(tmp_path / "all"), File(path), None, config) or {})[
        "notices"
    ]
    assert told[0].startswith("the answers of 2 prompts, ifeval first, are rules or tests")
    assert "dataset is gsm8k (1 rows), dataset is ifeval (1 rows), dataset is code" in told[1]
    only = File(write(tmp_path / "code.jsonl", rows[2:]))
    assert "notices" not in (load_prompts.function(Folder(tmp_path / "one"), only) or {})


def test_columns_that_a_config_names_and_no_row_has_are_told_of(tmp_path: Path) -> None:
    """A misspelt name would otherwise leave out the tools of all rows without a word."""
    rows = [pair(0, tool=[{"name": "look"}]), *map(pair, range(1, 9))]
    path = write(tmp_path / "rows.jsonl", rows)
    fields = {"tools": "tool", "template_kwargs": "of.given", "score_chosen": "margin"}
    _, metrics = loaded(tmp_path, path, format=FormatChoice("preference", fields))
    assert metrics["notices"] == [
        "no row of rows.jsonl has of.given, margin, which data.fields names; correct the name, or "
        "leave it out"
    ]


@pytest.mark.parametrize("place", ["<image>", "<image 1>", "<|image_pad|>"])
def test_a_question_about_an_image_that_nothing_reads_is_refused(
    tmp_path: Path, place: str
) -> None:
    seen = {"messages": [{"role": "user", "content": f"{place} What is it?"}, ANSWER]}
    rows = [
        {**seen, "images": ["cat.png"]},
        {**seen, "images": []},
        {"messages": [USER, ANSWER], "images": ["x.png"]},
    ]
    source = File(write(tmp_path / "rows.jsonl", rows))
    metrics = load_conversations.function(Folder(tmp_path / "out"), source) or {}
    assert metrics["dropped_by_reason"] == {"images not matched": {"count": 1, "rows": ["file:1"]}}
    dropped, unread = metrics["notices"]
    said = f"; e.g. the text has {place}, and nothing reads images: images are read of preference"
    assert said in dropped
    assert "images (1 rows)" in unread
    alone = File(write(tmp_path / "alone.jsonl", rows[:1]))
    with pytest.raises(TemperError, match=r"leave the row out, or its column$"):
        load_conversations.function(Folder(tmp_path / "none"), alone)


_SAID = ("good", "poor")


def test_labels_of_which_one_kind_alone_is_understood_are_an_error(tmp_path: Path) -> None:
    """As good and poor: with the rows of one label dropped, no bad completion would be left."""
    rows = [{"prompt": f"Q{n}", "completion": "A", "label": _SAID[n % 2]} for n in range(8)]
    told = r"every valid row is good, since other labels were not understood \(4 of 8 rows\)"
    source = File(write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(TemperError, match=rf"rows\.jsonl: {told}: label is str 'poor', expected"):
        load_unpaired.function(Folder(tmp_path / "out"), source)


def test_labels_with_a_number_that_is_neither_0_nor_1_are_ratings(tmp_path: Path) -> None:
    """As -1, 0, 1: neutral rows would be bad ones, and the bad ones would be dropped."""
    labels = [0, 1, -1, 1]
    rows = [{"prompt": f"Q{n}", "completion": "A", "label": v} for n, v in enumerate(labels)]
    source = File(write(tmp_path / "rows.jsonl", rows))
    told = r"rows\.jsonl: 1 of 4 labels are numbers besides 0 and 1.*\(first in file:3\).*"
    with pytest.raises(TemperError, match=told):
        load_unpaired.function(Folder(tmp_path / "out"), source)
    rated = FormatChoice("unpaired", {"good": "1"})
    made = load_unpaired.function(Folder(tmp_path / "o"), source, config=LoadConfig(format=rated))
    assert made
    assert made["rows"] == made["train"] + made.get("test", 0) == 4


USER, ANSWER = ({"role": role, "content": "b"} for role in ("user", "assistant"))


def test_pairs_whose_sides_seem_exchanged_or_repeat_the_question_are_told_of(
    tmp_path: Path,
) -> None:
    scores = [(1, 9), (9, 1), (1, 1), (None, 1)]
    train = [pair(n, score_chosen=c, score_rejected=r) for n, (c, r) in enumerate(scores)]
    train[3] |= {"prompt": "Q: why?\nA:", "chosen": "Q: why?\nA: so", "rejected": "Q: why?\nA: no"}
    test = File(write(tmp_path / "t.jsonl", TEST))

    _, metrics = loaded(tmp_path, write(tmp_path / "a.jsonl", train), test=test)

    assert "1 of 7 pairs score the rejected side higher" in metrics["notices"][0]
    assert "in 1 of 7 pairs both responses begin with the question" in metrics["notices"][1]


# --- mixtures ----------------------------------------------------------------------------------


def drawn(tmp_path: Path, sizes: list[int], weights: list[float], until: str) -> list[int]:
    sources = [
        source_of(write(tmp_path / f"{i}.jsonl", [{"n": n} for n in range(size)]))
        for i, size in enumerate(sizes)
    ]
    mixture = Mixture(sources, weights, until)
    return [found[0] for found in iter(mixture.draw, None)]


def test_every_stretch_of_a_mixture_has_the_weights_proportions(tmp_path: Path) -> None:
    order = drawn(tmp_path, [600, 600, 600], [3, 1, 2], "first exhausted")

    assert Counter(order) == {0: 600, 1: 200, 2: 400}
    for start in range(0, 1200, 60):
        assert Counter(order[start : start + 60]) == {0: 30, 1: 10, 2: 20}


def test_a_mixture_goes_on_from_any_place(tmp_path: Path) -> None:
    sources = [
        source_of(write(tmp_path / f"{i}.jsonl", [{"n": n} for n in range(30)])) for i in range(3)
    ]
    weights = [1.0, 0.3, 2.5]
    every = list(iter(Mixture(sources, weights, "all exhausted").draw, None))
    assert len(every) == 90

    for count in range(91):
        first = Mixture(sources, weights, "all exhausted")
        for _ in range(count):
            first.draw()
        place = json.loads(json.dumps(first.position))
        rest = Mixture(sources, weights, "all exhausted", place)
        assert list(iter(rest.draw, None)) == every[count:]


def test_rows_of_a_mixture_are_known_by_the_name_of_their_source(tmp_path: Path) -> None:
    one = File(write(tmp_path / "one/rows.jsonl", [pair(n) for n in range(60)]))
    turns = [
        {side: [{"from": "human", "value": f"{n}?"}, {"from": "gpt", "value": side}] for side in
         ("chosen", "rejected")} for n in range(20)
    ]  # fmt: skip
    two = File(write(tmp_path / "two/rows.jsonl", turns))
    parts = (
        MixturePart("one", one, 2.0),
        MixturePart("two", two, 1.0, FormatChoice("preference", None, "Be kind.")),
    )

    out, metrics = loaded(tmp_path, Mixed(parts), test=File(write(tmp_path / "t.jsonl", TEST)))

    rows = out.rows("train")
    assert labels(rows)[:3] == ["one/file:1", "one/file:2", "two/file:1"]
    assert metrics["drawn"] == {"train": {"one": 42, "two": 20}}
    systems = Counter((row.row.split("/")[0], row.prompt[0]["role"]) for row in rows)
    assert systems == {("one", "user"): 42, ("two", "system"): 20}
    assert metrics["notices"] == [
        "the mixture of train ended when two had no more rows (number 21 was due); rows read until "
        "then: 42 of one, the rest of which are not in it"
    ]


def test_a_mixture_with_a_source_without_rows_is_refused(tmp_path: Path) -> None:
    parts = (
        MixturePart("full", File(write(tmp_path / "a.jsonl", [pair(1), pair(2)])), 3.0),
        MixturePart("bare", File(write(tmp_path / "b.jsonl", []))),
    )

    with pytest.raises(TemperError, match=r"bare has no rows"):
        loaded(tmp_path, Mixed(parts))


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "3", None])
def test_a_weight_that_is_no_proportion_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match=r"mixture\.b\.weight must be a finite number above 0"):
        check_weights([("a", 1), ("b", weight)], "first exhausted")


# --- killed and started again ------------------------------------------------------------------


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ROWS_PER_SHARD", 10)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mixed, File]:
    """Two folders mixed, with bad rows and duplicates in them, and held-out pairs."""
    tmp_path = tmp_path_factory.mktemp("sources")
    for name in ("one", "two"):
        for part in range(2):
            records = [pair(n % 40, id=str(n % 33)) for n in range(part * 30, part * 30 + 30)]
            records[7] = {"prompt": "Q"}
            write(tmp_path / name / f"{part}.jsonl", records)
    mixture = Mixed(
        tuple(
            MixturePart(name, File(str(tmp_path / name)), weight)
            for name, weight in (("one", 1.0), ("two", 2.0))
        ),
        "all exhausted",
    )
    return mixture, File(write(tmp_path / "test.jsonl", TEST * 5))


Undisturbed = Callable[[Mixed, File | None, LoadConfig], tuple[dict[str, bytes], Any]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The files and metrics of a step that nothing disturbs, which runs once for each input."""
    known: dict[str, tuple[dict[str, bytes], Any]] = {}

    def run(mixture: Mixed, test: File | None, config: LoadConfig) -> tuple[dict[str, bytes], Any]:
        asked = repr((test, config, loading.ROWS_PER_SHARD))
        if asked not in known:
            calm = Folder(tmp_path_factory.mktemp("calm"))
            metrics = load_preferences.function(calm, mixture, test, config)
            known[asked] = calm.files(), metrics
        return known[asked]

    return run


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("held_out", "killed_at"),
    [
        *(("file", killed_at) for killed_at in (1, 10, 11, 60, 119, 120, 121, 134)),
        *(("fraction", killed_at) for killed_at in (10, 11, 25, 119)),
    ],
)
def test_killed_and_resumed_a_step_writes_the_same_bytes_and_rereads_no_finished_shard(
    tmp_path: Path,
    sources: tuple[Mixed, File],
    undisturbed: Undisturbed,
    held_out: str,
    killed_at: int,
) -> None:
    mixture, test = sources
    test = test if held_out == "file" else None
    config = LoadConfig(test_fraction=0.1, max_train=30, duplicates="drop")
    files, expected = undisturbed(mixture, test, config)

    scratch = tmp_path / "scratch"
    killed = Folder(tmp_path / "killed", scratch, killed_at)
    with pytest.raises(KeyboardInterrupt):
        load_preferences.function(killed, mixture, test, config)
    assert not killed.files()
    counted: list[float] = []
    again = Folder(tmp_path / "again", scratch)
    again.progress = lambda done, total, metrics=None: counted.append(done)
    metrics = load_preferences.function(again, mixture, test, config)

    assert again.files() == files
    assert metrics == expected
    assert counted[0] == (killed_at - 1) // 10 * 10 + 1
    assert len(files) > 3


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("damaged", ["train/pairs-00001.parquet", "ledger/*", "../shards.sqlite3"])
@pytest.mark.parametrize("damage", ["one bit", "zeros", "another file"])
def test_scratch_that_a_disk_has_damaged_is_made_again(
    tmp_path: Path,
    sources: tuple[Mixed, File],
    undisturbed: Undisturbed,
    damaged: str,
    damage: str,
) -> None:
    config, scratch = LoadConfig(test_fraction=0.1), tmp_path / "scratch"
    files, expected = undisturbed(*sources, config)
    with pytest.raises(KeyboardInterrupt):
        load_preferences.function(Folder(tmp_path / "killed", scratch, 45), *sources, config)
    file = next((scratch / "shards").glob(damaged))
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    match damage:
        case "one bit":
            file.write_bytes(data)
        case "zeros":
            file.write_bytes(bytes(len(data)))
        case "another file":
            shutil.copyfile(file, file.with_name("pairs-00077.parquet"))
    again = Folder(tmp_path / "again", scratch)
    assert load_preferences.function(again, *sources, config) == expected
    assert again.files() == files


@pytest.mark.usefixtures("small_chunks")
def test_several_processes_write_the_bytes_of_one_also_after_a_kill(
    tmp_path: Path, sources: tuple[Mixed, File]
) -> None:
    chosen: dict[str, Any] = {"test_fraction": 0.1, "duplicates": "drop"}
    alone = Folder(tmp_path / "alone")
    expected = load_preferences.function(alone, *sources, LoadConfig(**chosen))
    scratch = tmp_path / "scratch"
    config = LoadConfig(**chosen, workers=3)
    killed = Folder(tmp_path / "killed", scratch, killed_at=45)
    with pytest.raises(KeyboardInterrupt):
        load_preferences.function(killed, *sources, config)
    together = Folder(tmp_path / "together", scratch)

    assert load_preferences.function(together, *sources, config) == expected
    assert together.files() == alone.files()
    assert not multiprocessing.active_children()


@pytest.mark.usefixtures("small_chunks")
def test_adjacent_ratings_of_one_prompt_become_pairs_also_after_a_kill(tmp_path: Path) -> None:
    def rated(number: int, score: int) -> dict[str, Any]:
        rest = dict.fromkeys(("correctness", "coherence", "complexity", "verbosity"), 1)
        asked = {"prompt": f"Question {number}?", "response": f"Worth {score}."}
        return asked | rest | {"helpfulness": score}

    records = [rated(n, score) for n in range(25) for score in (1, 4, 2)[: 2 + n % 2]]
    records += [{"prompt": "Unusable"}, rated(50, 3), rated(51, 2), rated(51, 2), rated(50, 1)]
    records += [rated(52, 1) | {"system": "Be brief."}, rated(52, 4) | {"system": "Be kind."}]
    path = write(tmp_path / "rows.jsonl", records)
    calm, _ = loaded(tmp_path / "calm", path, test_fraction=0.0)

    rows = calm.rows("train")
    assert [row.prompt[0]["content"] for row in rows] == [f"Question {n}?" for n in range(25)]
    assert {(row.chosen[0]["content"], row.score_chosen) for row in rows} == {("Worth 4.", 4.0)}
    assert {row.score_rejected for row in rows} == {1.0}
    reasons = [entry.reason for entry in calm.ledger() if entry.reason]
    assert reasons == ["one completion", "one completion", "tie", *["one completion"] * 3]

    killed = Folder(tmp_path / "killed", tmp_path / "scratch", killed_at=15)
    with pytest.raises(KeyboardInterrupt):
        load_preferences.function(killed, data_at(path), None, LoadConfig())
    again = Folder(tmp_path / "again", tmp_path / "scratch")
    load_preferences.function(again, data_at(path), None, LoadConfig(workers=2))
    assert again.files() == calm.files()


def test_a_reading_process_that_dies_is_told(tmp_path: Path) -> None:
    source = source_of(write(tmp_path / "rows.jsonl", [pair(n) for n in range(20_000)]))
    ahead = ReadAhead(source, Parser(PreferenceFormat(), None, 0.1, False, False), 1)
    rows = ahead.open(0, 1)
    assert next(rows)[0] == 1
    (process,) = multiprocessing.active_children()
    process.kill()
    with pytest.raises(ReadingStopped, match=r"rows\.jsonl was killed"):
        list(rows)


@pytest.mark.usefixtures("small_chunks")
def test_killed_while_files_are_put_in_place_nothing_is_read_again(
    tmp_path: Path, sources: tuple[Mixed, File], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = Folder(tmp_path / "calm")
    load_preferences.function(calm, *sources)
    scratch = tmp_path / "scratch"

    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loading, "place", killed)
        with pytest.raises(KeyboardInterrupt):
            load_preferences.function(Folder(tmp_path / "killed", scratch), *sources)
    again = Folder(tmp_path / "again", scratch, killed_at=1)
    load_preferences.function(again, *sources)

    assert again.files() == calm.files()


MEMORY = """
import resource, sys, tempfile
from pathlib import Path
sys.path[:0] = [*map(str, Path("tests/support").glob("**/")), "tests/data"]
from test_loading import load, loading
loading.ROWS_PER_SHARD = 1000
for file in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        load(Path(folder), [file], duplicates="drop")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    files = []
    for count in (500, 5_000):  # the file of the latter has more than 50 MiB
        records = (pair(n, chosen=f"{n} {'x' * 11_000}") for n in range(count))
        files.append(tmp_path / f"{count}.jsonl")
        with open(files[-1], "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
    run = [sys.executable, "-c", MEMORY, *files]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    once, ten_times = map(int, done.stdout.split())

    assert ten_times < once + 32, f"{once} MiB for 1x, {ten_times} MiB for 10x"


ROOT = REPOSITORY


# --- the other steps ---------------------------------------------------------------------------


def test_conversations_and_prompts_are_loaded_by_steps_of_their_own(tmp_path: Path) -> None:
    chat = [{"messages": [{"role": "user", "content": f"{n}?"},
                          {"role": "assistant", "content": "Yes."}]} for n in range(3)]  # fmt: skip
    asked = [{"prompt": f"{n}?", "answer": n} for n in range(3)]
    talk, ask = Folder(tmp_path / "talk"), Folder(tmp_path / "ask")

    load_conversations.function(talk, File(write(tmp_path / "chat.jsonl", chat)))
    load_prompts.function(ask, File(write(tmp_path / "asked.jsonl", asked)))

    assert [p.name for p in (talk.path / "train").iterdir()] == ["conversations-00000.parquet"]
    assert [row["answer"] for row in read_rows(ask.path / "train")] == ["0", "1", "2"]
    assert not (talk.path / "test").exists()


LEAKED = "the quick brown fox jumps over the lazy dog and runs away from it"


def test_pairs_that_overlap_with_an_evaluation_set_are_left_out_and_named(tmp_path: Path) -> None:
    train = [
        pair(0, id="clean"),
        pair(1, id="leaked", rejected=f"Well: {LEAKED.upper()}!, I think."),
        pair(2, id="short of it", chosen=" ".join(LEAKED.split()[:12])),
        pair(3, id="same question", prompt="Which one is it?"),
    ]
    test = [pair(8, id="t1", chosen=LEAKED), pair(9, id="t2", prompt="which ONE is it")]
    made, _ = loaded(
        tmp_path / "made", write(tmp_path / "a.jsonl", train),
        test=File(write(tmp_path / "t.jsonl", test)),
    )  # fmt: skip
    out = Folder(tmp_path / "clean")

    metrics = decontaminate.function(
        out,
        Artifact(made.path, "load_preferences", ""),
        Artifact(made.path / "test", "load_preferences", ""),
    )

    assert labels(out.rows("train")) == ["clean", "short of it"]
    assert out.rows("test") == made.rows("test")
    assert [(e.row, e.outcome, e.reason) for e in out.ledger()] == [
        ("clean", "kept", None),
        ("leaked", "dropped", "overlaps evaluation"),
        ("short of it", "kept", None),
        ("same question", "dropped", "overlaps evaluation"),
    ]
    assert "evaluation row t1: 'the quick brown fox" in str(out.ledger()[1].detail)
    assert (metrics or {})["dropped"] == 2


@pytest.mark.parametrize(
    ("cleans", "load", "fields"),
    [
        (decontaminate_conversations, load_conversations, ("prompt", "completion")),
        (decontaminate_prompts, load_prompts, ("prompt",)),
        (decontaminate_unpaired, load_unpaired, ("prompt", "completion")),
        (decontaminate_texts, load_texts, ("text",)),
    ],
)
def test_rows_of_every_kind_that_overlap_are_left_out(
    tmp_path: Path, cleans: Any, load: Any, fields: tuple[str, ...]
) -> None:
    """Whichever part of a row overlaps, and with rows of another kind."""
    evaluated = write(tmp_path / "p.jsonl", [pair(8, chosen=LEAKED)])
    made, _ = loaded(tmp_path / "pairs", evaluated, test_fraction=0)
    rows: list[dict[str, Any]] = [
        {"id": f"{at} in {leaks}", **{f: f"{f} {at}, which is clean" for f in fields}}
        | ({"label": at % 2 == 0} if load is load_unpaired else {})
        | ({leaks: f"So: {LEAKED}."} if leaks else {})
        for at, leaks in enumerate(["", *fields, ""])
    ]
    data = File(write(tmp_path / "rows.jsonl", rows))
    before, after = Folder(tmp_path / "before"), Folder(tmp_path / "after")
    load.function(before, data, None, LoadConfig(test_fraction=0))

    metrics = cleans.function(
        after, Artifact(before.path, load.__name__, ""), Artifact(made.path, "load_preferences", "")
    )

    kept = {entry.row: entry.outcome for entry in after.ledger()}
    assert kept == {row["id"]: "dropped" if LEAKED in str(row) else "kept" for row in rows}
    assert (metrics["train"], metrics["dropped"]) == (2, len(fields))
    (written,) = (after.path / "train").glob("*.parquet")
    whole = pq.read_table(before.path / "train" / written.name).to_pylist()
    assert pq.read_table(written).to_pylist() == [r for r in whole if kept[r["row"]] == "kept"]


@pytest.mark.parametrize(
    "text", ["请问法国的首都是哪一座城市呢谢谢", "เมืองหลวงของประเทศฝรั่งเศสคือเมืองอะไร"]
)
def test_overlap_with_a_whole_message_is_found_in_scripts_without_spaces(text: str) -> None:
    evaluation = EvaluationSet()
    evaluation.add("t1", [text])

    assert evaluation.overlap([text]) is not None
    assert evaluation.overlap([text[::-1]]) is None


def test_a_mark_does_not_end_a_word_but_where_words_have_no_spaces() -> None:
    """A run of 13 words must not be one of seven words, as half of a Hindi word's letters are
    marks."""
    hindi = "यह एक बहुत अच्छा दिन है और हम बाहर जा रहे हैं कल फिर मिलेंगे"
    assert words_of(hindi) == hindi.split()
    assert words_of("Zu\u0308rich, E\u0301te\u0301 e\u0301") == [
        "z\u00fcrich",
        "\u00e9t\u00e9",
        "\u00e9",
    ]
    assert words_of("x\u0307y a_b's") == ["x\u0307y".replace("x\u0307", "\u1e8b"), "a_b", "s"]
    assert len(words_of("ผมชอบกินข้าว")) > 1


def test_overlap_within_a_chinese_text_is_found() -> None:
    evaluation = EvaluationSet()
    evaluation.add("t1", ["请问法国的首都是哪一座城市呢谢谢"])

    assert evaluation.overlap(["你好，请问法国的首都是哪一座城市呢？"]) is not None
    assert evaluation.overlap(["你好，请问法国的首都是什么？"]) is None


# --- as a config names it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"path": "a", "hub": "b/c"}, {"path": "a", "mixture": {"x": PartData(path="b")}}],
)
def test_a_config_names_exactly_one_source(settings: dict[str, Any]) -> None:
    with pytest.raises(TemperError, match=r"set one of data\.path"):
        PreferenceData(**settings).train_source()


def test_a_mixture_in_a_config_is_its_parts_with_weights_and_formats(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [pair(1)])
    data = PreferenceData(
        mixture={
            "mine": PartData(path=path, weight=2),
            "hub": PartData(hub="a/b", revision="0" * 40, split="t", format="hh_rlhf"),
        },
        test_path=path,
    )

    found = data.train_source()

    assert isinstance(found, Mixed)
    assert [(part.name, part.weight, part.format.name) for part in found.parts] == [
        ("mine", 2, "auto"), ("hub", 1.0, "hh_rlhf"),
    ]  # fmt: skip
    assert data.called == "mine + hub"
    with pytest.raises(TemperError, match=r"data\.mixture\.x: set either path or hub"):
        PreferenceData(mixture={"x": PartData()}).train_source()


def test_a_config_says_what_is_read_of_a_data_set_of_the_hub() -> None:
    of_hub: dict[str, Any] = {
        "hub": "a/b",
        "revision": "0" * 40,
        "name": "main",
        "data_files": ["x.json"],
    }
    found = HubDataset("a/b", "0" * 40, "t", name="main", data_files=["x.json"])

    data = PreferenceData(**of_hub, train_split="t", test_split=None)
    assert data.train_source() == found
    assert data.test_source() is None, "a share is held out"
    mixed = PreferenceData(mixture={"x": PartData(**of_hub, split="t")}).train_source()
    assert isinstance(mixed, Mixed)
    assert mixed.parts[0].source == found
    for name in ("name", "revision"):
        lost: dict[str, Any] = {name: "main"}
        with pytest.raises(TemperError, match=rf"data\.{name} chooses .*data\.hub names none"):
            PreferenceData(path="a.jsonl", **lost).train_source()


# --- what is chosen of what is there -------------------------------------------------------------


def test_a_small_source_is_read_several_times_and_rows_are_counted_by_source(
    tmp_path: Path,
) -> None:
    one = write(tmp_path / "one.jsonl", [pair(n, id=f"r{n}") for n in range(3)])
    two = write(tmp_path / "two.jsonl", [pair(n) for n in range(100, 110)])
    parts = (MixturePart("small", File(one), repeat=3), MixturePart("large", File(two)))

    made, metrics = loaded(tmp_path / "out", Mixed(parts, "all exhausted"), test_fraction=0.0)

    assert metrics["kept_of"] == {"train": {"small": 9, "large": 10}}
    said = Counter(row.prompt[0]["content"] for row in made.rows("train"))
    assert [said[f"Question {n}?"] for n in (0, 1, 2, 100)] == [3, 3, 3, 1]
    assert len(set(labels(made.rows("train")))) == 19


def test_held_out_rows_of_a_repeated_source_are_held_out_once(tmp_path: Path) -> None:
    """The same pair counted three times would make the intervals of an evaluation too narrow."""
    one = write(tmp_path / "one.jsonl", [pair(n) for n in range(30)])
    parts = (MixturePart("small", File(one), repeat=3), MixturePart("large", File(one)))

    made, metrics = loaded(tmp_path / "out", Mixed(parts, "all exhausted"), test_fraction=0.3)

    held = Counter(row.prompt[0]["content"] for row in made.rows("test"))
    assert set(held.values()) == {2}, "once of each part"
    trained = Counter(row.prompt[0]["content"] for row in made.rows("train"))
    assert set(trained.values()) == {4}
    assert len(held) + len(trained) == 30
    assert metrics["dropped_by_reason"]["duplicate"]["count"] == 2 * len(held)
    assert metrics["rows"] == 120 == metrics["train"] + metrics["test"] + metrics["dropped"]


@pytest.mark.parametrize("repeat", [0, -1, 1.5, "2", True])
def test_a_source_is_read_a_whole_number_of_times(repeat: Any) -> None:
    with pytest.raises(ValueError, match=r"repeat must be a whole number of at least 1"):
        MixturePart("small", File("a.jsonl"), repeat=repeat)


def test_a_record_of_several_completions_has_a_line_for_each_pair(tmp_path: Path) -> None:
    ranked = [{"text": text, "score": score} for score, text in enumerate("abc")]
    records = [{"prompt": f"{n}?", "completions": ranked, "id": f"r{n}"} for n in range(2)]
    records.append({"prompt": "tie?", "completions": ranked[:1] * 2, "id": "same"})
    path = write(tmp_path / "ranked.jsonl", records)

    made, metrics = loaded(
        tmp_path / "out", File(path), test_fraction=0.0, format=FormatChoice(pairs="all")
    )

    assert labels(made.rows("train")) == [f"r{n}#{k}" for n in range(2) for k in (1, 2, 3)]
    assert [(e.row, e.reason) for e in made.ledger()][-1] == ("same", "tie")
    assert metrics["dropped_by_reason"]["tie"]["count"] == 1


SCORED = [
    pair(1, id="close", score_chosen=2.0, score_rejected=1.5),
    pair(2, id="clear", score_chosen=4.0, score_rejected=1.0),
    pair(3, id="unscored"),
    pair(4, id="short", chosen="ok", score_chosen=4.0, score_rejected=1.0),
    pair(5, id="long", chosen="x" * 60, score_chosen=4.0, score_rejected=1.0),
]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (FilterConfig(min_margin=1.0), ["clear", "short", "long"]),
        (FilterConfig(min_characters=3), ["close", "clear", "unscored", "long"]),
        (FilterConfig(max_characters=50), ["close", "clear", "unscored", "short"]),
        (FilterConfig(max_length_ratio=4.0), ["close", "clear", "unscored", "short"]),
    ],
)
def test_pairs_are_left_out_by_margin_and_length_and_told(
    tmp_path: Path, config: FilterConfig, kept: list[str]
) -> None:
    path = write(tmp_path / "rows.jsonl", SCORED)
    made, _ = loaded(tmp_path / "rows", File(path), test_fraction=0.0)
    out = Folder(tmp_path / "filtered")

    metrics = filter_pairs.function(out, Artifact(made.path, "load_preferences", ""), config)

    assert labels(out.rows("train")) == kept
    assert metrics is not None
    assert metrics["dropped"] == len(SCORED) - len(kept)
    assert [e.row for e in out.ledger() if e.outcome == "kept"] == kept


def test_the_length_of_a_response_is_what_the_assistant_writes(tmp_path: Path) -> None:
    """The user's words within a side of several turns are no part of it, and a call is."""
    call = {"type": "function", "function": {"name": "find", "arguments": {"of": "a word"}}}
    chosen = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "found " * 100},
        {"role": "assistant", "content": "It is there."},
    ]
    rejected = [{"role": "assistant", "content": "I do not know where it might be."}]
    rows = [{"prompt": "Where?", "chosen": chosen, "rejected": rejected}]
    made, _ = loaded(tmp_path, File(write(tmp_path / "r.jsonl", rows)), test_fraction=0.0)
    pairs = Artifact(made.path, "load_preferences", "")
    kept = FilterConfig(min_characters=30, max_characters=200)
    told = filter_pairs.function(Folder(tmp_path / "kept"), pairs, kept)
    assert told is not None
    assert told["train"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_margin", float("nan")),
        ("min_characters", -1),
        ("max_characters", 0),
        ("max_length_ratio", float("nan")),
        ("splits", ()),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(field: str, value: Any) -> None:
    """No number is above or below NaN, so it would filter nothing."""
    with pytest.raises(ValueError, match=field):
        FilterConfig(**{field: value})


@given(st.dictionaries(st.integers(1, 120), st.integers(1, 30), max_size=12), st.integers(20, 100))
def test_packed_sequences_hold_all_rows_and_are_no_more_than_the_rows(
    lengths: dict[int, int], room: int
) -> None:
    found = packed(lengths, room)

    assert found.tokens <= found.sequences * room
    assert found.sequences <= found.rows
    needed = -(-found.tokens // room)
    assert found.sequences <= 2 * needed + 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", b"", ""),
        ("rows.csv", b"prompt;chosen\nq;yes\n", "parted by ';'"),
        ("rows.csv", b"PAR1" + bytes(40), "it is a Parquet file: name it .parquet"),
        ("rows.parquet", b"PAR1" + bytes(40), ""),
        ("rows.jsonl", b'{"text": "a"}\n{"text": \n', ""),
    ],
)
def test_the_first_bytes_of_a_file_tell_what_it_is(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    told = of_file(FileShard(str(tmp_path / name), name))
    assert said in told if said else not told
