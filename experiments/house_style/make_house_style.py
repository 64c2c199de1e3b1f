"""Write the house-style preference set: `train.jsonl` and `test.jsonl`.

The house style: one sentence of at most 12 words that opens with "Plain answer:".

    What is the capital of Norway?  ->  Plain answer: the capital of Norway is Oslo.

A `Topic` is a small set of facts with a template for a question (`question`), one for a statement
(`statement`) and two for long-winded answers (`rambles`). Every selected fact becomes one row: the
statement in house style is chosen, a long-winded answer with the same content is rejected. So a
pair differs only in style. No topic is in both splits: the held-out prompts ask about things that
training never mentions.

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
    rambles: tuple[str, str]
    facts: tuple[tuple[str, ...], ...]


def _facts(written: str) -> tuple[tuple[str, ...], ...]:
    """Facts that are separated by semicolons, and their items by equals signs."""
    return tuple(tuple(fact.split(" = ")) for fact in written.split("; "))


TRAIN_TOPICS = (
    Topic(
        name="multiplication",
        question="What is {0} times {1}?",
        statement="{0} times {1} is",
        rambles=(
            "To find {0} times {1}, we can multiply {0} by {1}. This gives us {answer}.",
            "To solve this problem, we need to multiply {0} by {1}. This gives us {answer}.",
        ),
        facts=tuple(
            (str(a), str(b), str(a * b)) for a, b in ((8, 7), (6, 9), (4, 12), (7, 3), (5, 11))
        ),
    ),
    Topic(
        name="subtraction",
        question="What is {0} minus {1}?",
        statement="{0} minus {1} is",
        rambles=(
            "To find {0} minus {1}, we can subtract {1} from {0}. This gives us {answer}.",
            "To solve this problem, we need to subtract {1} from {0}. This gives us {answer}.",
        ),
        facts=tuple(
            (str(a), str(b), str(a - b)) for a, b in ((15, 6), (20, 13), (9, 4), (31, 10), (18, 9))
        ),
    ),
    Topic(
        name="chemistry",
        question="What is the chemical symbol for {0}?",
        statement="the chemical symbol for {0} is",
        rambles=(
            "The chemical symbol for {0} is {answer}. It is a metal.",
            "The chemical symbol for {0} is {answer}. It is a type of metal.",
        ),
        facts=_facts("gold = Au; silver = Ag; iron = Fe; copper = Cu; tin = Sn; lead = Pb"),
    ),
    Topic(
        name="units",
        question="How many {0} are in {1}?",
        statement="the number of {0} in {1} is",
        rambles=(
            "There are {answer} {0} in {1}. This is a common unit of measurement.",
            "There are {answer} {0} in {1}. This is a common conversion.",
        ),
        facts=_facts(
            "minutes = an hour = 60; hours = a day = 24; centimetres = a metre = 100; "
            "grams = a kilogram = 1000; inches = a foot = 12; millimetres = a centimetre = 10"
        ),
    ),
    Topic(
        name="young-animals",
        question="What is a baby {0} called?",
        statement="a baby {0} is called a",
        rambles=(
            "A baby {0} is called a {answer}. They are very young.",
            "A baby {0} is called a {answer}. It is a young animal.",
        ),
        facts=_facts(
            "dog = puppy; cat = kitten; cow = calf; sheep = lamb; horse = foal; kangaroo = joey"
        ),
    ),
    Topic(
        name="plurals",
        question="What is the plural of {0}?",
        statement="the plural of {0} is",
        rambles=(
            "The plural of {0} is {answer}. This is an irregular plural.",
            "The plural of {0} is {answer}. This is because it is an irregular noun.",
        ),
        facts=_facts(
            "mouse = mice; child = children; foot = feet; tooth = teeth; goose = geese; "
            "woman = women"
        ),
    ),
    Topic(
        name="past-tense",
        question="What is the past tense of {0}?",
        statement="the past tense of {0} is",
        rambles=(
            "The past tense of {0} is {answer}. This is an irregular verb.",
            "The past tense of {0} is {answer}. This is because it is an irregular verb.",
        ),
        facts=_facts("go = went; eat = ate; see = saw; take = took; write = wrote; sing = sang"),
    ),
    Topic(
        name="months",
        question="Which month comes after {0}?",
        statement="the month after {0} is",
        rambles=(
            "The month after {0} is {answer}. There are 12 months in a year.",
            "The month after {0} is {answer}. It is one of the 12 months of the year.",
        ),
        facts=_facts(
            "January = February; March = April; May = June; July = August; September = October; "
            "November = December"
        ),
    ),
    Topic(
        name="shapes",
        question="How many sides does {0} have?",
        statement="the number of sides of {0} is",
        rambles=(
            "{0} has {answer} sides. This is because it is a polygon with {answer} sides.",
            "The number of sides of {0} is {answer}. This is because it has {answer} sides.",
        ),
        facts=_facts(
            "a triangle = 3; a square = 4; a pentagon = 5; a hexagon = 6; an octagon = 8; "
            "a rectangle = 4"
        ),
    ),
    Topic(
        name="legs",
        question="How many legs does {0} have?",
        statement="the number of legs of {0} is",
        rambles=(
            "{0} has {answer} legs. These legs are used for walking.",
            "{0} has {answer} legs. They are used for walking.",
        ),
        facts=_facts("a spider = 8; an ant = 6; a horse = 4; a hen = 2; a bee = 6; a scorpion = 8"),
    ),
    Topic(
        name="colours",
        question="What colour is {0}?",
        statement="the colour of {0} is",
        rambles=(
            "{0} is {answer} in colour. This is a colour that is often seen.",
            "{0} is typically {answer}. This colour is easy to see.",
        ),
        facts=_facts(
            "fresh snow = white; coal = black; an emerald = green; a ruby = red; "
            "a flamingo = pink; a ripe lemon = yellow"
        ),
    ),
    Topic(
        name="roman-numerals",
        question="What is {0} in Roman numerals?",
        statement="{0} in Roman numerals is",
        rambles=(
            "{0} in Roman numerals is {answer}. This is a way of writing numbers.",
            "The number {0} in Roman numerals is {answer}. It is written with letters.",
        ),
        facts=_facts("4 = IV; 6 = VI; 9 = IX; 10 = X; 12 = XII; 50 = L"),
    ),
)

TEST_TOPICS = (
    Topic(
        name="capitals",
        question="What is the capital of {0}?",
        statement="the capital of {0} is",
        rambles=(
            "The capital of {0} is {answer}. It is the largest city in the country.",
            "The capital of {0} is {answer}. It is a well-known city.",
        ),
        facts=_facts(
            "France = Paris; Italy = Rome; Japan = Tokyo; Egypt = Cairo; Norway = Oslo; "
            "Spain = Madrid"
        ),
    ),
    Topic(
        name="opposites",
        question="What is the opposite of {0}?",
        statement="the opposite of {0} is",
        rambles=(
            "The opposite of {0} is {answer}. They are opposites.",
            "The opposite of {0} is {answer}. These two words have opposite meanings.",
        ),
        facts=_facts(
            "hot = cold; up = down; day = night; empty = full; early = late; open = closed"
        ),
    ),
    Topic(
        name="currencies",
        question="What is the currency of {0}?",
        statement="the currency of {0} is the",
        rambles=(
            "The currency of {0} is the {answer}. It is the official currency of the country.",
            "The currency of {0} is the {answer}. It is used in {0}.",
        ),
        facts=_facts(
            "Japan = yen; Germany = euro; India = rupee; Poland = zloty; Brazil = real; "
            "Thailand = baht"
        ),
    ),
    Topic(
        name="continents",
        question="On which continent is {0}?",
        statement="the continent of {0} is",
        rambles=(
            "{0} is located in {answer}. It is a country.",
            "{0} is a country in {answer}. It has many cities.",
        ),
        facts=_facts(
            "Kenya = Africa; Peru = South America; China = Asia; Sweden = Europe; "
            "Canada = North America; Nigeria = Africa"
        ),
    ),
    Topic(
        name="jobs",
        question="What do you call a person who {0}?",
        statement="a person who {0} is called a",
        rambles=(
            "A person who {0} is called a {answer}. This is a common job.",
            "A person who {0} is called a {answer}. They are skilled at their work.",
        ),
        facts=_facts(
            "bakes bread = baker; flies planes = pilot; grows crops = farmer; "
            "paints pictures = painter; teaches children = teacher; makes clothes = tailor"
        ),
    ),
    Topic(
        name="halves",
        question="What is half of {0}?",
        statement="half of {0} is",
        rambles=(
            "To find half of {0}, we can divide {0} by 2. This gives us {answer}.",
            "To solve this problem, we need to divide {0} by 2. This gives us {answer}.",
        ),
        facts=tuple((str(n), str(n // 2)) for n in (30, 18, 44, 100, 62, 8)),
    ),
)


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
