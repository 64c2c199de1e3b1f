"""Folders of rows become folders of tokens: the same bytes by one process, by many, or killed."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_families import families
from drivers import start_driver
from shard_jobs import Doubling
from waiting import wait_until

from steps.data.rows.parquet import read_rows, write_rows
from steps.data.rows.rows import ConversationRow, Message, PreferenceRow
from steps.data.rows.tables import CONVERSATIONS, PAIRS, to_record
from steps.data.tokens.config import TokenizeConfig, TrainOn
from steps.data.tokens.token_folders import tokenize_folders
from steps.data.work.workers import Shard, ShardFailed, process_shards
from steps.scoring.examples import chosen_as_demonstration, read_demonstrations, read_pairs

ROWS_A_SHARD, SHARDS = 40, 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    families()["smollm2"].tokenizer.save_pretrained(folder)
    return folder


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def pair(number: int) -> PreferenceRow:
    history = (user(f"Number {number}?"), assistant("Which?"), user("That one. 🎉"))
    rejected = "no" if number % 10 else "<|im_end|>"  # every tenth spells out an end of turn
    answer = "yes " * (1 + number % 7)
    sides = (assistant(answer),), (assistant(rejected),)
    return PreferenceRow(f"r{number}", history, *sides, score_chosen=float(number), weight=2.5)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    for shard in range(SHARDS):
        rows = (pair(shard * ROWS_A_SHARD + n) for n in range(ROWS_A_SHARD))
        write_rows(folder / f"train/pairs-{shard:05d}.parquet", PAIRS, map(to_record, rows))
    write_rows(folder / "test/pairs-00000.parquet", PAIRS, map(to_record, [pair(1), pair(2)]))
    return folder


def tokenize(
    source: Path,
    tokenizer: Path,
    work: Path,
    config: TokenizeConfig = TokenizeConfig(),
    **more: Any,
) -> dict[str, Any]:
    (work / "out").mkdir(parents=True, exist_ok=True)
    settings = {"rows": "pairs", "splits": ["test", "train"], "on_progress": lambda a, b: None}
    return tokenize_folders(
        source=source, tokenizer=tokenizer, config=config, output=work / "out",
        scratch=work / "scratch", **(settings | more),
    )  # fmt: skip


def content(work: Path) -> dict[str, bytes]:
    files = sorted(path for path in (work / "out").rglob("*") if path.is_file())
    return {str(path.relative_to(work / "out")): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def calm(
    pairs: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """What one process makes, undisturbed: its folder, which is only read, and its metrics."""
    work = tmp_path_factory.mktemp("calm")
    return work, tokenize(pairs, tokenizer, work)


def test_every_split_has_a_file_of_tokens_for_each_of_rows(
    calm: tuple[Path, dict[str, Any]],
) -> None:
    work, metrics = calm
    assert sorted(content(work)) == [
        "chat_template.json",
        "ledger.parquet",
        "summary.md",
        "test/chat_template.json",
        "test/tokenizer.json",
        "test/tokens-00000.parquet",
        "tokenizer.json",
        "train/chat_template.json",
        "train/tokenizer.json",
        *(f"train/tokens-{shard:05d}.parquet" for shard in range(SHARDS)),
    ]
    assert (metrics["train"], metrics["test"], metrics["dropped"]) == (144, 2, 16)
    reason = metrics["dropped_by_reason"]["end-of-turn inside the response"]
    assert reason["rows"][:2] == ["r0", "r10"]
    (notice,) = metrics["notices"]
    assert "16 of 162 rows dropped" in notice
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_the_columns_are_those_agreed_on(calm: tuple[Path, dict[str, Any]]) -> None:
    made = calm[0] / "out/test"
    schema = pq.read_schema(made / "tokens-00000.parquet")
    for side in ("prompt", "chosen", "rejected"):
        assert schema.field(f"{side}_ids").type.value_type == pa.int32()
        assert schema.field(f"{side}_mask").type.value_type == pa.bool_()
    first, _ = read_rows(made)
    for side in ("prompt", "chosen", "rejected"):
        assert first[f"{side}_length"] == len(first[f"{side}_ids"])
    assert first["row"] == "r1"
    assert first["score_chosen"] == 1.0
    assert first["score_rejected"] is None
    assert first["weight"] == 2.5
    assert first["chosen"][0]["content"] == "yes yes "
    full = [first["prompt_ids"] + first[f"{side}_ids"] for side in ("chosen", "rejected")]
    assert full[0][: first["shared_prefix"]] == full[1][: first["shared_prefix"]]
    assert full[0][first["shared_prefix"]] != full[1][first["shared_prefix"]]


def test_the_ledger_has_a_line_for_every_row(pairs: Path, tokenizer: Path, tmp_path: Path) -> None:
    tokenize(pairs, tokenizer, tmp_path, TokenizeConfig(max_length=112))

    entries = read_rows(tmp_path / "out/ledger.parquet")
    assert len(entries) == SHARDS * ROWS_A_SHARD + 2
    assert entries[0] == {
        "split": "test", "source": "test/pairs-00000.parquet", "row": "r1", "outcome": "kept",
        "reason": None, "detail": None,
    }  # fmt: skip
    by_row = {entry["row"]: entry for entry in entries if entry["split"] == "train"}
    assert by_row["r50"]["reason"] == "end-of-turn inside the response"
    assert by_row["r50"]["source"] == "train/pairs-00001.parquet"
    assert by_row["r6"]["outcome"] == "truncated"
    kept = {row["row"] for row in read_rows(tmp_path / "out/train")}
    assert kept == {row for row, entry in by_row.items() if entry["outcome"] != "dropped"}


RUN = """
import sys, threading
from pathlib import Path
from steps.data.tokens.config import TokenizeConfig
from steps.data.tokens.token_folders import tokenize_folders

source, tokenizer, work = map(Path, sys.argv[1:])
(work / "out").mkdir(parents=True)
config = TokenizeConfig(workers=2)
tokenize_folders("pairs", source, ["test", "train"], tokenizer, config, work / "out",
                 work / "scratch", lambda done, total: done and threading.Event().wait())
"""


@pytest.mark.slow
def test_killed_and_started_again_it_goes_on_and_ends_with_the_same_bytes(
    pairs: Path, tokenizer: Path, tmp_path: Path, calm: tuple[Path, Any]
) -> None:
    killed = tmp_path / "killed"
    process = start_driver(RUN, pairs, tokenizer, killed)
    ledger = killed / "scratch/shards"
    wait_until(lambda: list(ledger.rglob("*.json")), "a shard is finished")
    process.kill()  # the parent alone: its workers must follow by themselves
    process.wait()
    assert_none_left_of(process.pid)
    finished = {path: path.stat().st_mtime_ns for path in ledger.rglob("*.json")}
    assert finished, "it was killed before any shard was finished"
    assert len(finished) <= SHARDS + 1

    metrics = tokenize(pairs, tokenizer, killed)

    assert content(killed) == content(calm[0]), "the number of processes leaves no trace"
    assert metrics == calm[1]
    assert finished.items() <= {p: p.stat().st_mtime_ns for p in ledger.rglob("*.json")}.items()


def assert_none_left_of(session: int) -> None:
    def are_gone() -> bool:
        listed = subprocess.run(["ps", "-o", "stat=", "-s", str(session)], capture_output=True)
        return all(line.startswith(b"Z") for line in listed.stdout.split())

    wait_until(are_gone, "worker processes end with their parent")


def test_a_torn_shard_is_made_again(pairs: Path, tokenizer: Path, tmp_path: Path) -> None:
    tokenize(pairs, tokenizer, tmp_path)
    whole = content(tmp_path)
    torn = tmp_path / "scratch/shards/train/pairs-00001/tokens.parquet"
    data = torn.read_bytes()
    torn.unlink()
    torn.write_bytes(data[:-9])
    record = tmp_path / "scratch/shards/train/pairs-00000.json"
    record.write_text(record.read_text().replace('"kept": ', '"kept": 1'))
    shutil.rmtree(tmp_path / "out")

    tokenize(pairs, tokenizer, tmp_path)

    assert content(tmp_path) == whole


def test_shards_of_another_config_are_not_used(
    pairs: Path, tokenizer: Path, tmp_path: Path, calm: tuple[Path, Any]
) -> None:
    tokenize(pairs, tokenizer, tmp_path, TokenizeConfig(max_length=112))
    shutil.rmtree(tmp_path / "out")

    tokenize(pairs, tokenizer, tmp_path)

    assert content(tmp_path) == content(calm[0])


def test_a_shard_that_cannot_be_read_is_named(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for name in ("00000", "00001"):
        (tmp_path / f"train/pairs-{name}.parquet").write_bytes(b"PAR1 and then nothing")

    with pytest.raises(ShardFailed, match=r"train/pairs-0000\d: .*not a readable Parquet file"):
        tokenize(tmp_path, tokenizer, tmp_path / "w", splits=["train"])


def test_a_shard_that_fails_in_another_process_is_named_and_is_made_once_it_is_mended(
    tmp_path: Path,
) -> None:
    sources = [Shard(f"s/{name}", tmp_path / name) for name in ("1", "2", "x")]
    for shard in sources:
        shard.source.write_text(shard.source.name)
    with pytest.raises(ShardFailed, match=r"s/x: invalid literal for int"):
        process_shards(Doubling(), sources, tmp_path / "ledger", workers=2)
    (tmp_path / "x").write_text("3")
    done = process_shards(Doubling(), sources, tmp_path / "ledger", workers=2)
    assert [shard.summary["doubled"] for shard in done] == [2, 4, 6]


def test_more_dropped_rows_than_allowed_are_an_error_with_the_reason(
    pairs: Path, tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"16 of the 162 rows .*end-of-turn inside"):
        tokenize(pairs, tokenizer, tmp_path, TokenizeConfig(max_dropped=0.05))


# --- what training reads -------------------------------------------------------------------------


def test_training_reads_the_masks_that_were_written(
    pairs: Path, tokenizer: Path, tmp_path: Path
) -> None:
    tokenize(pairs, tokenizer, tmp_path, TokenizeConfig(train_on=TrainOn.all_turns))
    records = read_rows(tmp_path / "out/test")

    examples = read_pairs(records, vocabulary=10**6)
    shown = read_demonstrations(map(chosen_as_demonstration, records), vocabulary=10**6)

    for record, example, demonstration in zip(records, examples, shown, strict=True):
        chosen, rejected = example.responses
        assert example.prompt_ids == tuple(record["prompt_ids"])
        assert chosen.num_scored == sum(record["chosen_mask"])
        assert rejected.num_scored == sum(record["rejected_mask"])
        # The earlier answer is imitated too; in a preference it is shared, so that it cancels.
        earlier = sum(record["prompt_mask"])
        assert earlier > 1
        (imitated,) = demonstration.responses
        assert imitated.num_scored == earlier + chosen.num_scored
        assert demonstration.num_tokens == len(example.prompt_ids) + len(chosen)


@pytest.mark.parametrize("train_on", [TrainOn.all_turns, TrainOn.everything])
def test_conversations_are_read_as_they_were_written(
    tokenizer: Path, tmp_path: Path, train_on: TrainOn
) -> None:
    rows = [ConversationRow("c", (user("a"), assistant("b"), user("c"), assistant("d")))]
    source = tmp_path / "conversations-00000.parquet"
    write_rows(source, CONVERSATIONS, map(to_record, rows))
    config = TokenizeConfig(train_on=train_on)

    metrics = tokenize(
        tmp_path, tokenizer, tmp_path / "w", config, rows="conversations", splits=[""]
    )

    assert metrics["conversations"] == 1
    (record,) = read_rows(tmp_path / "w/out")
    (example,) = read_demonstrations([record], vocabulary=10**6)
    (response,) = example.responses
    assert [*example.prompt_ids, *response.ids] == record["input_ids"]
    assert record["length"] == len(record["input_ids"])
    if train_on is TrainOn.everything:
        assert record["mask"] == [False] + [True] * (record["length"] - 1)
        assert len(example.prompt_ids) == 1
        assert response.scored is None
        return
    assert response.num_scored == sum(record["mask"]) == 4
    assert response.scored is not None
    assert response.scored[:3] == (True, True, False)


def test_everything_is_refused_where_rows_say_that_a_part_is_only_read(
    pairs: Path, tokenizer: Path, tmp_path: Path
) -> None:
    config = TokenizeConfig(train_on=TrainOn.everything)
    with pytest.raises(ValueError, match="these rows are pairs, whose prompts are only read"):
        tokenize(pairs, tokenizer, tmp_path, config)
    not_trained = {**assistant("b"), "trained": False}
    said = (user("a"), not_trained, user("c"), {**assistant("d"), "trained": True})
    rows = [ConversationRow("c", said)]  # pyright: ignore[reportArgumentType]
    write_rows(tmp_path / "conversations-00000.parquet", CONVERSATIONS, map(to_record, rows))
    with pytest.raises(ValueError, match="no trained token"):
        tokenize(tmp_path, tokenizer, tmp_path / "w", config, rows="conversations", splits=[""])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen_mask": [True]}, r"row 'r1': chosen_mask has 1 values, 1 of them True"),
        ({"rejected_mask": "none"}, r"row 'r1': rejected_mask has \d+ values, 0 of them True"),
    ],
)
def test_a_mask_that_marks_nothing_or_does_not_fit_is_refused_by_row(
    calm: tuple[Path, Any], change: dict[str, Any], message: str
) -> None:
    record = read_rows(calm[0] / "out/test")[0]
    if change.get("rejected_mask") == "none":
        change = {"rejected_mask": [False] * len(record["rejected_ids"])}

    with pytest.raises(ValueError, match=message):
        read_pairs([record | change], vocabulary=10**6)
