"""Prompts for a model to answer, with the right answer where the record has one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from steps.checking.boxed import boxed_answer
from steps.data.formats import ChatRecords
from steps.data.records.conversations import prompt_messages, read_system, unpacked, with_system
from steps.data.records.record_fields import (
    for_template,
    found,
    is_list,
    parsed_json,
    text,
)
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import PromptRow, TaughtPromptRow
from steps.data.rows.turn_order import check_prompt, merged

_QUESTIONS = ("prompt", "question", "problem", "instruction", "query")
_ANSWERS = (
    "answer", "reward_model.ground_truth", "ground_truth", "final_answer", "expected_answer",
    "gold_answer", "reference_answer", "solution",
)  # fmt: skip
_MARKED = re.compile(r"(?:.*\n)?#### *(\S[^\n]*)", re.DOTALL)
"""A solution in the form of GSM8K, whose last line is the answer."""


_EMPTY_MARK = re.compile(r"(?:^|\n)\s*#{4}\s*$")
_CUT_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|$)")


@dataclass(frozen=True)
class PromptFormat(ChatRecords):
    """`prompt` is a string (one user message) or messages that end with the user's.

    `answer` is a string or a whole number, or a list of one, and may be absent or blank. Of a
    solution whose last line begins with `####`, as in GSM8K, the rest of that line is the answer;
    of one with boxes, as in MATH, what the last box holds. A solution that is cut is refused.
    `teacher`, if it is named, is the column that names one of several teachers.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    teacher: str | None = None

    makes: ClassVar[type] = PromptRow

    @classmethod
    def detected(cls, record: Mapping[str, Any]) -> Self | None:
        asked = next((name for name in _QUESTIONS if record.get(name)), None)
        if asked is None and _ends_with_a_question(record.get("messages")):
            asked = "messages"
        if asked is None or (isinstance(record[asked], Mapping) and "replies" in record[asked]):
            return None
        answers = (name for name in _ANSWERS if found(record, name) is not None)
        answer = next(answers, "answer")
        return (
            None if asked in ("instruction", "query") and "input" in record else cls(asked, answer)
        )

    def parse(self, record: Mapping[str, Any], row: str) -> PromptRow:
        given = prompt_messages(found(record, self.prompt), self.prompt)
        prompt = with_system(given, read_system(record, self.system_field))
        prompt = merged(prompt) if self.turns == "merged" else prompt
        check_prompt(prompt, self.prompt, self.turns)
        asked = with_system(prompt, self.system)
        answer = _answer(found(record, self.answer), self.answer)
        template = for_template(record, self)
        if self.teacher is None:
            return PromptRow(row, asked, answer, **template)
        named = found(record, self.teacher)
        teacher = None if named is None else text(named, self.teacher)
        return TaughtPromptRow(row, asked, answer, **template, teacher=teacher)


def judged_by(record: Mapping[str, Any]) -> tuple[str, str] | None:
    """The column by which open-instruct (`dataset`) and verl (`data_source`) choose a checker for a
    row, and its value."""
    for column in ("dataset", "data_source"):
        value = record.get(column)
        if is_list(value) and len(value) == 1:
            (value,) = value
        if isinstance(value, str) and value.isprintable():
            return column, value
    return None


def _answer(value: Any, field: str) -> str | None:
    if is_list(value) and len(value) == 1:
        (value,) = value
    if value is None or (is_list(value) and not value):
        return None
    if is_list(value):
        raise MalformedRow(
            "answer not a string",
            f"{field} holds {len(value)} answers; name one: data.fields.answer={field}.0",
        )
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    said = text(value, field, "answer not a string")
    if not said.strip():
        return None
    if not isinstance(parsed_json(said), str):  # what checks an answer, and no solution
        return said
    if _EMPTY_MARK.search(said):
        raise MalformedRow("answer without its end", f"{field} ends with #### and has no answer")
    if boxed := boxed_answer(said, anywhere=True):
        return boxed
    marked = _MARKED.fullmatch(said.rstrip())
    if not marked and _CUT_BOX.search(said):
        raise MalformedRow("answer without its end", f"{field} has a box that is cut")
    return marked[1].strip() if marked else said


def _ends_with_a_question(value: Any) -> bool:
    listed = unpacked(value)
    last = listed[-1] if is_list(listed) and listed else None
    return isinstance(last, Mapping) and last.get("role", last.get("from")) in ("user", "human")
