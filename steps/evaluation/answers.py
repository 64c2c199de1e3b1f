"""What a model writes for held-out prompts: rules over its answers, and answers side by side."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from steps.data.reasons import MalformedRow
from steps.data.rendering import Chat, load_tokenizer
from steps.data.rows import PreferenceRow
from steps.data.tables import from_record
from steps.data.tokenizing import tokenization, tokenize_prompts
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
    """The model's answers to the first ``count`` different prompts of ``records``, pair tokens.

    Raises:
        ValueError: the model's chat template refuses a prompt.
    """
    given = ("prompt", "tools", "template_kwargs")
    prompts = {json.dumps([record[name] for name in given]): record for record in reversed(records)}
    asked = [from_record(PreferenceRow, record) for record in reversed(prompts.values())][:count]
    if not asked:
        return []
    tokenizer = load_tokenizer(model)
    texts = sample(
        load_model(model, dtype), tokenizer, _prompt_ids(tokenizer, asked), sampling, on_progress
    )
    return [
        {"row": row.row, "prompt": row.prompt[-1]["content"], "answer": completions[0]}
        for row, completions in zip(asked, texts, strict=True)
    ]


def _prompt_ids(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[PreferenceRow]
) -> list[list[int]]:
    chats = [Chat(row.prompt, row.tools, row.template_kwargs) for row in rows]
    encoded = tokenize_prompts(tokenization(tokenizer), chats)
    for row, ids in zip(rows, encoded, strict=True):
        if isinstance(ids, MalformedRow):
            raise ValueError(f"row {row.row!r}: {ids}; evaluate with the tokens' own chat template")
    return [ids for ids in encoded if not isinstance(ids, MalformedRow)]


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
