"""A model's answers to held-out prompts: rule-based checks, and comparisons side by side."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from steps.data.images.placeholders import reads_images
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PreferenceRow
from steps.data.rows.tables import from_record
from steps.data.tokens.rendering import Chat, load_tokenizer
from steps.data.tokens.tokenizing import tokenization, tokenize_prompts
from steps.evaluation.answer_checks import passed
from steps.evaluation.divergence import repeated
from steps.evaluation.intervals import Interval, proportion
from steps.evaluation.paired import paired_shares
from steps.generation.config import SamplingConfig
from steps.generation.engine import Finish
from steps.generation.sampling import decoded, sample
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.positions import forget_lengths
from steps.models.ranks import ALONE, Ranks
from steps.models.workplace import OnProgress
from steps.shared.execution_detail import execution_detail
from steps.shared.markdown import as_text

ANSWERS_SHOWN = 6

Answer = dict[str, Any]
"""``row``, ``prompt`` (its last message), ``answer``, its number of ``tokens``, whether it
``ended`` before the limit, and how much of it is ``repeated``; after :func:`judge` also ``checks``,
which maps the name of each check to whether the answer passes."""


def answer_prompts(
    records: Sequence[Mapping[str, Any]],
    model: Path,
    count: int,
    sampling: SamplingConfig,
    dtype: Dtype,
    on_progress: OnProgress,
    ranks: Ranks = ALONE,
    loaded: PreTrainedModel | None = None,
) -> list[Answer]:
    """The model's answers to the first ``count`` distinct prompts of ``records`` (pair tokens).

    Ranks share the prompts, and each gets all answers.

    Args:
        loaded: the model of the folder ``model`` in ``dtype``, if it is in memory.

    Raises:
        ValueError: the model's chat template refuses a prompt.
    """
    given = ("prompt", "tools", "template_kwargs")
    prompts = {json.dumps([record[name] for name in given]): record for record in reversed(records)}
    asked = [from_record(PreferenceRow, record) for record in reversed(prompts.values())][:count]
    if not asked:
        return []
    tokenizer = load_tokenizer(model)
    prompt_ids = _prompt_ids(tokenizer, asked)
    policy = load_model(model, dtype) if loaded is None else loaded
    forget_lengths(policy)
    given = [(row.row, ids) for row, ids in zip(asked, prompt_ids, strict=True)]
    drawn = sample(policy, tokenizer, given, sampling, on_progress, ranks)
    return [
        {
            "row": row.row,
            "prompt": row.prompt[-1]["content"],
            "answer": decoded(tokenizer, first.ids),
            "tokens": len(first.ids),
            "ended": first.finish is Finish.stop,
            "repeated": repeated(first.ids),
        }
        for row, (first, *_) in zip(asked, drawn, strict=True)
    ]


def unanswered(model: Path) -> str:
    """Why a model is asked nothing, if it is; else an empty text."""
    if not reads_images(model):
        return ""
    return (
        "no held-out prompt was answered: models that read images are evaluated by their "
        "log-probabilities alone (evaluate.sample_prompts=0 asks for no answers)"
    )


def _prompt_ids(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[PreferenceRow]
) -> list[list[int]]:
    chats = [Chat(row.prompt, row.tools, row.template_kwargs) for row in rows]
    encoded = tokenize_prompts(tokenization(tokenizer), chats)
    for row, ids in zip(rows, encoded, strict=True):
        if isinstance(ids, MalformedRow):
            raise ValueError(f"row {row.row!r}: {ids}; evaluate with the tokens' own chat template")
    return [ids for ids in encoded if not isinstance(ids, MalformedRow)]


def judge(answers: Sequence[Answer], checks: Mapping[str, str]) -> list[Answer]:
    """Add ``checks`` to each answer: for each named regular expression, whether it is found.

    Raises:
        ValueError: a check does not end, or is not a regular expression.
    """
    rows, texts = ([answer[name] for answer in answers] for name in ("row", "answer"))
    marks = passed(rows, texts, checks)
    return [{**answer, "checks": of} for answer, of in zip(answers, marks, strict=True)]


def check_answers(answers: Sequence[Answer]) -> dict[str, Interval | int]:
    """The share of judged answers that pass each check; the number of answers."""
    if not answers:
        return {}
    shares = {
        f"answers/{name}": proportion(sum(marks), len(marks))
        for name, marks in _by_check(answers).items()
    }
    return {**shares, "answers": len(answers)}


def compare_answers(before: Sequence[Answer], after: Sequence[Answer]) -> dict[str, Any]:
    """The change in the share of answers that pass each check, paired by prompt, with its ``p``.
    Both must have been judged by the same checks.

    Raises:
        ValueError: the two sets of answers are not to the same prompts.
    """
    _require_same_prompts(before, after)
    earlier = _by_check(before)
    found: dict[str, Any] = {}
    for name, marks in _by_check(after).items():
        gain = paired_shares(earlier[name], marks)
        found |= {f"gain/answers/{name}": gain.difference, f"gain/answers/{name}/p": gain.p}
    return found


def _by_check(answers: Sequence[Answer]) -> dict[str, list[bool]]:
    """For each check, whether each of the judged answers passes it."""
    return {name: [answer["checks"][name] for answer in answers] for name in answers[0]["checks"]}


@execution_detail
def side_by_side(before: Sequence[Answer], after: Sequence[Answer]) -> str:
    """The ``summary.md`` of an evaluation: a Markdown table of the first held-out prompts with both
    answers and, if answers have been judged, the number of passed checks.

    No step reads this table, and older tables stay correct. So an edit of this function does not
    rerun evaluations.

    Raises:
        ValueError: the two sets of answers are not to the same prompts.
    """
    _require_same_prompts(before, after)
    judged = all(answer.get("checks") for answer in (*before, *after))
    headings = ["prompt", "before", "after", *(["checks passed"] if judged else [])]
    rule = "|---" * len(headings) + "|"
    lines = ["### Held-out prompts, before and after", "", _line(headings), rule]
    for earlier, later in list(zip(before, after, strict=True))[:ANSWERS_SHOWN]:
        cells = [as_text(text) for text in (later["prompt"], earlier["answer"], later["answer"])]
        if judged:
            first, last = (sum(answer["checks"].values()) for answer in (earlier, later))
            cells.append(f"{first} → {last} of {len(later['checks'])}")
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def _require_same_prompts(before: Sequence[Answer], after: Sequence[Answer]) -> None:
    if [answer["prompt"] for answer in before] != [answer["prompt"] for answer in after]:
        raise ValueError("the baseline answered other prompts; evaluate both with one config")


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
