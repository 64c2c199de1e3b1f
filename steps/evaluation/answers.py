"""What a model writes for held-out prompts: rules over its answers, and answers side by side."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steps.data.rendering import load_tokenizer
from steps.evaluation.checkers import count_matches
from steps.evaluation.intervals import Interval, proportion
from steps.generation.config import SamplingConfig
from steps.generation.sampling import sample
from steps.training.config import Dtype
from steps.training.metrics import OnProgress
from steps.training.models import load_model

ANSWERS_SHOWN = 6
_MARKUP = "\\`*_{}[]<>()#+!|~"

Answer = dict[str, str]
"""``row``, ``prompt`` (its last message) and ``answer``."""


def answer_prompts(
    records: Sequence[Mapping[str, Any]],
    model: Path,
    count: int,
    sampling: SamplingConfig,
    dtype: Dtype,
    on_progress: OnProgress,
) -> list[Answer]:
    """The model's answers to the first ``count`` different prompts of ``records``."""
    prompts = {json.dumps(record["prompt"]): record for record in reversed(records)}
    asked = list(reversed(prompts.values()))[:count]
    if not asked:
        return []
    texts = sample(
        load_model(model, dtype),
        load_tokenizer(model),
        [record["prompt"] for record in asked],
        sampling,
        on_progress,
    )
    return [
        {"row": record["row"], "prompt": record["prompt"][-1]["content"], "answer": completions[0]}
        for record, completions in zip(asked, texts, strict=True)
    ]


def check_answers(
    answers: Sequence[Answer], checks: Mapping[str, str]
) -> dict[str, Interval | int]:
    """The share of answers in which each named regular expression is found, and their number."""
    if not answers:
        return {}
    counts = count_matches(checks, [answer["answer"] for answer in answers])
    shares = {f"answers/{name}": proportion(count, len(answers)) for name, count in counts.items()}
    return {**shares, "answers": len(answers)}


def side_by_side(before: Sequence[Answer], after: Sequence[Answer]) -> str:
    """The first held-out prompts with both answers, as a Markdown table.

    Raises:
        ValueError: the two sets of answers are not to the same prompts.
    """
    if [answer["prompt"] for answer in before] != [answer["prompt"] for answer in after]:
        raise ValueError("the baseline answered other prompts; evaluate both with one config")
    lines = ["### Held-out prompts, before and after DPO", "", "| prompt | before | after |"]
    lines.append("|---|---|---|")
    for earlier, later in list(zip(before, after, strict=True))[:ANSWERS_SHOWN]:
        cells = (later["prompt"], earlier["answer"], later["answer"])
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """One line of visible characters, with what could end the cell or be markup escaped."""
    flat = " ".join(text.split())
    visible = (c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
    return "".join(f"\\{c}" if c in _MARKUP else c for c in visible)
