"""Data sets of the library `datasets`, passed to steps as objects."""

from pathlib import Path
from typing import Any

import pytest

from pipeline import File, TemperError, run
from steps.data.load.config import LoadConfig
from steps.data.rows.parquet import read_rows
from steps.load_preferences import load_preferences
from steps.sources import Mixed, MixturePart, as_sources

datasets = pytest.importorskip("datasets")

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n}?", "chosen": [{"role": "assistant", "content": f"Yes, {n}."}],
     "rejected": [{"role": "assistant", "content": "No."}], "score_chosen": n % 3 or None,
     "tags": None if n % 4 else ["a", None], "seen": None if n % 5 else True}
    for n in range(600)
]  # fmt: skip


@pytest.fixture(autouse=True)
def of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("TEMPER_CACHE", str(tmp_path / "cache"))


def copied(data: Any) -> bytes:
    return Path(as_sources(train=data)["train"].url).read_bytes()


def saved(folder: Path) -> Any:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(folder), num_shards=3)
    return datasets.load_from_disk(str(folder))


SAME: dict[str, Any] = {
    "made again": lambda folder: datasets.Dataset.from_list(ROWS),
    "saved in three files": saved,
    "in other chunks": lambda folder: datasets.concatenate_datasets(
        [datasets.Dataset.from_list(ROWS).select(range(n, n + 200)) for n in (0, 200, 400)]
    ),
    "filtered": lambda folder: datasets.Dataset.from_list([{**ROWS[0], "prompt": "x"}, *ROWS])
    .filter(lambda row: row["prompt"] != "x"),
    "mapped, in a file": lambda folder: saved(folder).map(lambda row: {**row}),
    "ordered by numbers": lambda folder: datasets.Dataset.from_list(ROWS[::-1])
    .select(range(599, -1, -1)),
    "in another format": lambda folder: saved(folder).with_format("numpy", columns=["prompt"]),
}  # fmt: skip


@pytest.mark.parametrize("way", SAME)
def test_a_data_set_is_known_by_its_rows_however_they_came(way: str, tmp_path: Path) -> None:
    assert copied(SAME[way](tmp_path / "saved")) == copied(datasets.Dataset.from_list(ROWS))


def test_another_row_order_or_feature_is_another_data_set() -> None:
    data = datasets.Dataset.from_list(ROWS)
    large = data.cast_column("prompt", datasets.Value("large_string"))
    classes = datasets.Dataset.from_dict({"n": [0]}).cast_column("n", datasets.ClassLabel(2))
    others = [
        data, data.select(range(599)), data.select([1, 0, *range(2, 600)]), large,
        data.rename_column("tags", "labels"), data.map(lambda row: {"prompt": row["prompt"] + " "}),
        classes, classes.cast_column("n", datasets.ClassLabel(names=["a", "b"])),
    ]  # fmt: skip
    assert len(set(map(copied, others))) == len(others)


@pytest.mark.usefixtures("workers_here")
def test_steps_read_the_rows_of_a_data_set_as_those_of_its_file(tmp_path: Path) -> None:
    def steps(data: Any) -> list[Any]:
        parts = (MixturePart("a", data, 2), MixturePart("b", File(str(tmp_path / "rows.jsonl"))))
        train = (data, Mixed(parts))
        return [load_preferences(source, config=LoadConfig()) for source in train]

    data = datasets.Dataset.from_list(ROWS)
    data.to_json(str(tmp_path / "rows.jsonl"))
    data.to_parquet(str(tmp_path / "rows.parquet"))
    of_object = steps(data.filter(lambda row: True))
    both = [*of_object, *steps(File(str(tmp_path / "rows.parquet")))]
    made = run({str(n): step for n, step in enumerate(both)}, str(tmp_path / "store"))
    object_, mixed, file, mixed_file = (
        read_rows(made[str(n)].path / "train") for n in range(len(both))
    )
    assert len(object_) == 600
    assert (object_, mixed) == (file, mixed_file)
    keys = [[step.fingerprint for step in steps(d)] for d in (data, data.select(range(599)))]
    assert keys[0] == [step.fingerprint for step in of_object]
    assert not {*keys[0]} & {*keys[1]}


REFUSED: dict[str, tuple[Any, str]] = {
    "several splits": (
        lambda data: datasets.DatasetDict({"train": data, "test": data}),
        r"load_preferences: train is a DatasetDict .* train, test; .* train=data\['train'\]",
    ),
    "a stream": (
        lambda data: data.to_iterable_dataset(),
        r"train is an IterableDataset, .*; pass HubDataset.*, File\(PATH\), or a Dataset",
    ),
    "a transform": (
        lambda data: data.with_transform(lambda rows: rows),
        r"train has a transform, .*; apply it with \.map",
    ),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_is_no_settled_set_of_rows_is_refused_with_what_to_pass(way: str) -> None:
    make, said = REFUSED[way]
    data = make(datasets.Dataset.from_list(ROWS[:2]))
    with pytest.raises(TemperError, match=said) as error:
        load_preferences(data)
    assert "\n" not in str(error.value)
    with pytest.raises(TemperError):
        MixturePart("a", data)
