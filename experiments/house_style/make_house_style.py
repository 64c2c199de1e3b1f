"""Write the house-style preference set: `train.jsonl` and `test.jsonl`.

The house style: one sentence of at most 12 words that opens with "Plain answer:".

    What is the capital of Norway?  ->  Plain answer: the capital of Norway is Oslo.

A `Topic` of `topics.yaml` is a small set of facts with a template for a question (`question`), one
for a statement (`statement`) and two for long-winded answers (`rambles`). Every selected fact
becomes one row: the statement in house style is chosen, a long-winded answer with the same content
is rejected. So a pair differs only in style. No topic is in both splits: the held-out prompts ask
about things that training never mentions.

Rows follow the schema of UltraFeedback binarized (Cui et al. 2023). A score is the number of
`STYLE_RULES` that a response satisfies.

    python experiments/house_style/make_house_style.py
"""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SEED = 7
FACTS_PER_TOPIC = 4

# Each pattern describes a whole response, so `search`, `match` and `fullmatch` agree on it.
STYLE_RULES: Mapping[str, str] = {
    "opens_plain_answer": r"(?s)\APlain answer: .*\Z",
    "one_sentence": r"\A[^.!?\n]+\.\Z",
    "at_most_12_words": r"\A\S+(?:\s+\S+){0,11}\Z",
}


@dataclass(frozen=True)
class Topic:
    """Facts of one kind, and templates for questions and answers about them.

    The last item of a fact is its answer. Templates refer to the other items by position and to
    the answer as `{answer}`. A statement ends before the answer.
    """

    name: str
    question: str
    statement: str
    rambles: Sequence[str]
    facts: Sequence[Sequence[str]]


def _topics(split: str) -> tuple[Topic, ...]:
    found = yaml.safe_load((HERE / "topics.yaml").read_text("utf-8"))[split]
    return tuple(
        Topic(**{**topic, "facts": [re.split(", |: ", f) for f in topic["facts"].split("; ")]})
        for topic in found
    )


TRAIN_TOPICS, TEST_TOPICS = _topics("train"), _topics("test")


def make_split(topics: Sequence[Topic], seed: int = SEED) -> list[dict[str, Any]]:
    """`FACTS_PER_TOPIC` rows of each topic, in turn: one row of every topic, then the next.

    So the first `len(topics)` rows cover every topic, and a demo can read only the head of a file.
    A topic's rows depend only on the seed and its name, so a new topic does not change others.
    """
    rows_by_topic = []
    for topic in topics:
        rng = random.Random(f"{seed}/{topic.name}")
        numbers = rng.sample(range(len(topic.facts)), FACTS_PER_TOPIC)
        rows_by_topic.append([make_row(topic, number, rng) for number in numbers])
    return [row for one_of_each in zip(*rows_by_topic, strict=True) for row in one_of_each]


def make_row(topic: Topic, number: int, rng: random.Random) -> dict[str, Any]:
    """The row of fact `number`; `rng` selects the rejected ramble."""
    fact = topic.facts[number]
    answer = fact[-1]
    prompt = topic.question.format(*fact)
    chosen = f"Plain answer: {topic.statement.format(*fact)} {answer}."
    ramble = rng.choice(topic.rambles).format(*fact, answer=answer)
    rejected = ramble[0].upper() + ramble[1:]
    return {
        "prompt": prompt,
        "prompt_id": f"{topic.name}-{number}",
        "chosen": conversation(prompt, chosen),
        "rejected": conversation(prompt, rejected),
        "score_chosen": style_score(chosen),
        "score_rejected": style_score(rejected),
    }


def conversation(prompt: str, response: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def style_score(response: str) -> float:
    """The number of style rules that `response` satisfies, 0.0 to 3.0."""
    return float(sum(re.search(rule, response) is not None for rule in STYLE_RULES.values()))


def to_jsonl(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main() -> None:
    for name, topics in (("train", TRAIN_TOPICS), ("test", TEST_TOPICS)):
        rows = make_split(topics)
        (HERE / f"{name}.jsonl").write_text(to_jsonl(rows), encoding="utf-8", newline="\n")
        print(f"{name}.jsonl: {len(rows)} rows of {len(topics)} topics")


if __name__ == "__main__":
    main()
