"""The embedded preference set: committed rows that anyone can make again, and a style that a
regular expression can decide."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.house_style.make_house_style import (
    STYLE_RULES,
    TEST_TOPICS,
    TRAIN_TOPICS,
    Topic,
    make_split,
    to_jsonl,
)
from steps.data.formats.preference import PreferenceFormat

TOPICS = {"train": TRAIN_TOPICS, "test": TEST_TOPICS}
FIELDS = {"prompt", "prompt_id", "chosen", "rejected", "score_chosen", "score_rejected"}


@pytest.fixture(scope="module")
def splits(repository: Path) -> dict[str, list[dict[str, Any]]]:
    """The committed rows, by split."""
    folder = repository / "experiments" / "house_style"
    lines = {name: (folder / f"{name}.jsonl").read_text("utf-8").splitlines() for name in TOPICS}
    return {name: [json.loads(line) for line in lines[name]] for name in TOPICS}


@pytest.fixture(scope="module")
def rows(splits: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return splits["train"] + splits["test"]


def broken_rules(response: str) -> set[str]:
    return {name for name, rule in STYLE_RULES.items() if not re.search(rule, response)}


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


def test_no_prompt_is_asked_twice(rows: list[dict[str, Any]]) -> None:
    assert len({row["prompt"] for row in rows}) == len(rows)
    assert len({row["prompt_id"] for row in rows}) == len(rows)


def test_every_row_is_a_readable_preference_pair(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert set(row) == FIELDS
        pair = PreferenceFormat().parse(row, row["prompt_id"])
        assert [message["content"] for message in pair.prompt] == [row["prompt"]]
        for message in (*pair.prompt, *pair.chosen, *pair.rejected):
            assert not re.search(r"[{}]", message["content"]), "unfilled"


def test_the_scores_count_the_rules_kept_and_agree_with_the_preference(
    rows: list[dict[str, Any]],
) -> None:
    for row in rows:
        for side in ("chosen", "rejected"):
            kept = len(STYLE_RULES) - len(broken_rules(row[side][-1]["content"]))
            assert row[f"score_{side}"] == kept
        assert row["score_chosen"] > row["score_rejected"]


def test_chosen_answers_keep_every_style_rule_and_rejected_ones_break_at_least_two(
    rows: list[dict[str, Any]],
) -> None:
    for row in rows:
        assert not broken_rules(row["chosen"][-1]["content"]), row["prompt"]
        assert len(broken_rules(row["rejected"][-1]["content"])) >= 2, row["prompt"]


def test_both_responses_give_the_same_answer(rows: list[dict[str, Any]]) -> None:
    answers = {
        f"{topic.name}-{number}": fact[-1]
        for topic in (*TRAIN_TOPICS, *TEST_TOPICS)
        for number, fact in enumerate(topic.facts)
    }
    for row in rows:
        answer = re.compile(rf"\b{re.escape(answers[row['prompt_id']])}\b")
        assert answer.search(row["chosen"][-1]["content"])
        assert answer.search(row["rejected"][-1]["content"])


def test_the_head_of_a_file_covers_every_topic(
    splits: dict[str, list[dict[str, Any]]],
) -> None:
    for name, topics in TOPICS.items():
        head = splits[name][: len(topics)]
        assert len({row["prompt_id"].rpartition("-")[0] for row in head}) == len(topics)


def test_adding_a_topic_leaves_the_rows_of_the_others_alone() -> None:
    rambles = ("It is {answer}. Yes.", "Yes, it is {answer}.")
    extra = Topic("extra", "Is {0}?", "it is", rambles, facts=(("so", "so"),) * 4)
    before = {row["prompt_id"]: row for row in make_split(TRAIN_TOPICS)}
    after = {row["prompt_id"]: row for row in make_split((extra, *TRAIN_TOPICS))}
    assert before.items() <= after.items()


@pytest.mark.parametrize(
    ("response", "broken"),
    [
        ("Plain answer: half of 10 is 5.", set()),
        ("Half of 10 is 5.", {"opens_plain_answer"}),
        ("plain answer: half of 10 is 5.", {"opens_plain_answer"}),
        ("Plain answer: half of 10 is 5. Easy!", {"one_sentence"}),
        ("Plain answer: half of 10 is 5", {"one_sentence"}),
        ("Plain answer: half of 10\nis 5.", {"one_sentence"}),
        ("Plain answer: " + "so " * 10 + "on.", {"at_most_12_words"}),
        ("", {"opens_plain_answer", "one_sentence", "at_most_12_words"}),
    ],
)
def test_the_style_rules_tell_manner_apart(response: str, broken: set[str]) -> None:
    assert broken_rules(response) == broken
