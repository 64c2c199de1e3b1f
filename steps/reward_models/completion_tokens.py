"""Tokenise completions for a reward model, with its own chat template."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, UnpairedRow
from steps.data.tokens.tokenizing import Tokenization, tokenize_completions
from steps.scoring.examples import TokenGroup, WholeResponse

CUT = "the limits cut it, so its last token is another than that of the whole answer"


@dataclass(frozen=True)
class Answered:
    """A prompt with its answer, as token ids."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]


def tokenize_answers(
    records: Sequence[Mapping[str, Any]], ready: Tokenization
) -> list[list[Answered | str]]:
    """For each record of a ``completions.jsonl``, its completions as tokens; for a completion that
    cannot be scored, the reason instead.

    Args:
        ready: the reward model's tokenizer, with the settings for its training pairs.

    Raises:
        RowTooLong: a completion exceeds a limit whose policy is `error`.
    """
    rows = [row for record in records for row in _rows(record)]
    answers = iter(tokenize_completions(ready, rows))
    return [[_answered(next(answers)) for _ in record["completions"]] for record in records]


def groups_of(answers: Iterable[Answered | str], row: str) -> list[TokenGroup]:
    """The distinct answers, in groups that share a prompt."""
    by_prompt: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
    for answer in answers:
        if isinstance(answer, Answered):
            by_prompt.setdefault(answer.prompt, {})[answer.response] = None
    return [
        TokenGroup(row, f"{row}#{number}", prompt, tuple(map(WholeResponse, responses)))
        for number, (prompt, responses) in enumerate(by_prompt.items())
    ]


def _rows(record: Mapping[str, Any]) -> Iterable[UnpairedRow]:
    tools = tuple(record["tools"]) if record.get("tools") else None
    for text in record["completions"]:
        answer: Message = {"role": "assistant", "content": text}
        yield UnpairedRow(
            str(record["row"]),
            tuple(record["prompt"]),
            (answer,),
            label=True,  # not used
            tools=tools,
            template_kwargs=record.get("template_kwargs"),
        )


def _answered(tokens: Any) -> Answered | str:
    if isinstance(tokens, MalformedRow):
        return str(tokens)
    if tokens.findings.response_cut:
        return CUT
    return Answered(tuple(tokens.prompt.ids), tuple(tokens.completion.ids))
