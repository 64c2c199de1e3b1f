"""Rows that say nearly the same, and rows in other languages."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from step_output import Folder

from pipeline import File
from steps.data.load.config import LoadConfig
from steps.data.load.language import Languages
from steps.data.load.loading import Load, Part, Reading, load_rows
from steps.data.load.near_duplicates import NearDuplicates
from steps.data.load.shards import source_of
from steps.data.rows.parquet import read_rows
from steps.data.rows.rows import PreferenceRow
from steps.filter_pairs import FilterConfig, filter_pairs
from steps.kinds import Preferences
from steps.load_preferences import load_preferences

WORDS = [f"word{number}" for number in range(500)]


def text(generator: random.Random, words: int = 60) -> list[str]:
    return generator.choices(WORDS, k=words)


def written(folder: Path, pairs: list[dict[str, Any]]) -> File:
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return File(str(path))


def pair(row: str, prompt: list[str], chosen: str = "yes", rejected: str = "no") -> dict[str, Any]:
    return {"id": row, "prompt": " ".join(prompt), "chosen": chosen, "rejected": rejected}


def dropped(folder: Path) -> dict[str, str]:
    return {
        entry["row"]: f"{entry['reason']}: {entry['detail']}"
        for entry in read_rows(folder / "ledger.parquet")
        if entry["outcome"] == "dropped"
    }


def test_a_row_that_nearly_says_what_an_earlier_one_says_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("datasketch")
    generator = random.Random(0)
    said = text(generator)
    changed = [*said[:30], "OTHER", *said[31:]]  # three of its runs of words
    pairs = [
        pair("first", said),
        pair("again", changed),
        pair("respelled", [word.upper() + "," for word in said]),
        pair("half", [*said[:30], *text(generator, 30)]),
        pair("else", text(generator)),
        pair("one side", ["short"], " ".join(said), "no"),
        pair("exchanged", ["short"], "no", " ".join(said)),
        pair("no words", ["?"], "!", "."),
    ]
    config = LoadConfig(near_duplicates=NearDuplicates(0.8))
    out = tmp_path / "out"
    metrics = load_preferences.function(Folder(out), written(tmp_path, pairs), None, config) or {}
    found = dropped(out)
    assert set(found) == {"again", "respelled"}
    assert found["respelled"] == (
        "near duplicate: 1.00 of the runs of words are those of row first"
    )
    assert metrics["dropped_by_reason"]["near duplicate"]["count"] == 2
    assert metrics["train"] == 6


def test_what_is_nearly_the_same_does_not_depend_on_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasketch")
    monkeypatch.setattr("steps.data.load.loading.ROWS_PER_SHARD", 5)
    generator = random.Random(1)
    said = [text(generator) for _ in range(12)]
    pairs = [pair(f"r{n}", [*said[n % 12][:-1], f"end{n}"]) for n in range(24)]
    source = source_of(written(tmp_path, pairs).url)

    def load(name: str, stop: int | None = None) -> Path:
        part = Part(source, _format())
        config = LoadConfig(near_duplicates=NearDuplicates())
        wanted = Load(PreferenceRow, Reading("rows", (part,)), None, config)

        def progress(done: int, _: Any) -> None:
            if done == stop:
                raise KeyboardInterrupt

        load_rows(wanted, tmp_path / name, tmp_path / f"{name}-scratch", progress)
        return tmp_path / name

    whole = load("whole")
    for stop in (7, 13, 22):
        with pytest.raises(KeyboardInterrupt):
            load("resumed", stop)
    resumed = load("resumed")
    assert len(dropped(whole)) == 12
    files = sorted(path.relative_to(whole) for path in whole.rglob("*.parquet"))
    assert all((resumed / file).read_bytes() == (whole / file).read_bytes() for file in files)


def _format() -> Any:
    from steps.data.formats.preference import PreferenceFormat

    return PreferenceFormat()


def test_pairs_in_other_languages_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("py3langid")
    english = "The weather is lovely today, shall we go for a long walk by the river?"
    german = "Das Wetter ist heute sehr schön, wollen wir am Fluss spazieren gehen?"
    pairs = [
        pair("english", [english], "Yes, I would like that very much, thank you.", "No."),
        pair("german", [german], "Ja, sehr gerne, das machen wir heute Nachmittag.", "Nein."),
        pair("mixed", [english], "Ja, sehr gerne, das machen wir heute Nachmittag.", "No."),
        pair("short", ["Hi"], "Hallo", "Salut"),
    ]
    rows = tmp_path / "rows"
    load_preferences.function(Folder(rows), written(tmp_path, pairs), None, LoadConfig())
    out = tmp_path / "out"
    config = FilterConfig(languages=Languages(("en",)))
    filter_pairs.function(Folder(out), Preferences(rows, "", ""), config)
    assert dropped(out) == {
        "german": "other language: prompt is in de, wanted is en",
        "mixed": "other language: chosen is in de, wanted is en",
    }
