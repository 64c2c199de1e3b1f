"""The embedded preference set: committed rows that anyone can make again, and a style that a
regular expression can decide."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.house_style.make_house_style import (
    TEST_TOPICS,
    TRAIN_TOPICS,
    make_split,
    to_jsonl,
)

TOPICS = {"train": TRAIN_TOPICS, "test": TEST_TOPICS}


@pytest.fixture(scope="module")
def splits(repository: Path) -> dict[str, list[dict[str, Any]]]:
    """The committed rows, by split."""
    folder = repository / "experiments" / "house_style"
    lines = {name: (folder / f"{name}.jsonl").read_text("utf-8").splitlines() for name in TOPICS}
    return {name: [json.loads(line) for line in lines[name]] for name in TOPICS}


@pytest.fixture(scope="module")
def rows(splits: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return splits["train"] + splits["test"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_committed_file_is_what_the_script_makes(repository: Path, split: str) -> None:
    committed = repository / "experiments" / "house_style" / f"{split}.jsonl"
    assert committed.read_bytes() == to_jsonl(make_split(TOPICS[split])).encode()


def test_no_prompt_and_no_topic_is_in_both_splits(
    splits: dict[str, list[dict[str, Any]]],
) -> None:
    def topics(split: str) -> set[str]:
        return {row["prompt_id"].rpartition("-")[0] for row in splits[split]}

    def prompts(split: str) -> set[str]:
        return {row["prompt"].casefold() for row in splits[split]}

    assert topics("train") == {topic.name for topic in TRAIN_TOPICS}
    assert topics("test") == {topic.name for topic in TEST_TOPICS}
    assert not topics("train") & topics("test")
    assert not prompts("train") & prompts("test")
