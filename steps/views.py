"""What a report shows of each kind of artifact; named by the kinds in :mod:`steps.kinds`."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pipeline.views import Curves, Histogram, Made, Table, Text, Texts, View, curves, summary

TRAINING_CURVES = (
    "loss",
    "rewards/margins",
    "rewards/accuracies",
    "rewards/chosen",
    "rewards/rejected",
    "grad_norm",
)
"""What to look at first of a training run; TRL's names."""
MOST_TEXTS = 40
MOST_TOKEN_FILES = 8
CALIBRATION = "calibration.jsonl"
_TOGETHER = "\N{NO-BREAK SPACE}"


def model(made: Made) -> Iterator[View]:
    """How it was trained, if it was."""
    yield from curves(made, TRAINING_CURVES)
    yield from summary(made)


def evaluation(made: Made) -> Iterator[View]:
    """What the model answered, and how far its margins say how often it is right."""
    answers = made.records("answers.jsonl")[:MOST_TEXTS]
    if answers:
        rows = [
            Text(str(a.get("row")), str(a.get("prompt")), str(a.get("answer")), _passed(a))
            for a in answers
        ]
        yield Texts("Held-out prompts", rows)
    if bins := made.records(CALIBRATION):
        points = {"share of pairs it gets right": [(b["predicted"], b["observed"]) for b in bins]}
        yield Curves("Calibration of the implicit reward", "predicted probability", points,
                     diagonal=True, section="Results")  # fmt: skip


def benchmark(made: Made) -> Iterator[View]:
    """The first questions of each task, as the model saw them, with its answers."""
    tasks: dict[str, list[Text]] = {}
    for record in made.records("answers.jsonl"):
        row = str(record.get("row"))
        texts = tasks.setdefault(row.rpartition(":")[0], [])
        if len(texts) < MOST_TEXTS:
            texts.append(Text(row, str(record.get("prompt")), str(record.get("answer"))))
    for task, texts in tasks.items():
        yield Texts(task, texts)


def completions(made: Made) -> Iterator[View]:
    """The first answer to each of the first prompts."""
    texts = [
        Text(str(record.get("row")), _last_message(record.get("prompt")), str(answers[0]))
        for record in made.records("completions.jsonl")
        if isinstance(answers := record.get("completions"), list) and answers
    ]
    if texts:
        yield Texts("Sampled prompts", texts[:MOST_TEXTS])


def rows(made: Made) -> Iterator[View]:
    """What became of every row that was read."""
    yield from _ledger(made)


def tokens(made: Made) -> Iterator[View]:
    """What became of every row, and how long the sequences are."""
    yield from _ledger(made)
    yield from _lengths(made)


def _passed(answer: Mapping[str, Any]) -> str:
    """Which checks an answer passes, and which not."""
    checks = answer.get("checks")
    marks = checks.items() if isinstance(checks, Mapping) else ()
    return "  ".join(f"{'✓' if passed else '✗'}{_TOGETHER}{name}" for name, passed in marks)


def _ledger(made: Made) -> Iterator[View]:
    import pyarrow.parquet as pq

    data = made.read("ledger.parquet")
    if data is None:
        return
    names = ["split", "outcome", "reason", "row"]
    rows = pq.read_table(io.BytesIO(data), columns=names).to_pylist()
    counts, first = Counter[tuple[str, ...]](), dict[tuple[str, ...], str]()
    for row in rows:
        what = (row["split"], row["outcome"], row["reason"] or "")
        counts[what] += 1
        first.setdefault(what, row["row"])
    table = [[*what, count, first[what]] for what, count in sorted(counts.items())]
    yield Table("What became of the rows", ["split", "outcome", "reason", "rows", "e.g."], table)


def _lengths(made: Made) -> Iterator[View]:
    """Of the columns of token ids, by split; of very large artifacts, of their first files."""
    import pyarrow.parquet as pq

    counts: dict[str, Counter[int]] = {}
    files = made.names("*tokens-*.parquet")[:MOST_TOKEN_FILES]
    for file in files:
        data = made.read(file)
        if data is None:
            continue
        source = pq.ParquetFile(io.BytesIO(data))
        split = file.rpartition("/")[0] or "all"
        for column in [n for n in source.schema_arrow.names if n.endswith("_ids")]:
            lists = source.read([column])[column].chunks
            lengths = (
                end - start for ids in lists for start, end in pairwise(ids.offsets.to_pylist())
            )
            counts.setdefault(f"{split}: {column.removesuffix('_ids')}", Counter()).update(lengths)
    if counts:
        yield Histogram("Lengths in tokens", "tokens", counts)


def _last_message(prompt: object) -> str:
    """The last message of a conversation; a prompt that is a text, as it is."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        return str(prompt[-1].get("content"))
    return str(prompt)
