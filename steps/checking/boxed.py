r"""An answer in `\boxed{...}`, the usual form of mathematical answers."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    behind_thought,
    judged,
    no_verdict,
    plain_numerals,
    why_no_answer,
)

_BRACE = re.compile(r"\\(boxed|fbox)\s*\{|\\[{}]|[{}]")


@dataclass(frozen=True)
class Boxed(Checker):
    r"""Right if `\boxed{...}` holds the row's answer, compared as text: `042` is not `42`.

    White space around an answer does not matter, nor the script of digits and minus signs, nor how
    Unicode spells a letter with an accent (NFC).
    A text without `\boxed` may have its answer in `\fbox{...}`.

    Args:
        anywhere: whether the box may be anywhere behind the last `</think>`, where the last box
            counts; otherwise the box must be the whole text.
    """

    name: ClassVar[str] = "boxed"

    anywhere: bool = False

    def fault_of(self, answer: str | None) -> str:
        return why_no_answer(answer, in_a_box=True)

    def check(self, answered: Answered) -> Judgement:
        if (fault := self.fault_of(answered.answer)) or answered.answer is None:
            return no_verdict(fault)
        text = behind_thought(answered.text) if self.anywhere else answered.text
        found = boxed_answer(text, self.anywhere)
        if found is None:
            return judged(False, "no box")
        return judged(_is_same(found, answered.answer))


def boxed_answer(text: str, anywhere: bool = False) -> str | None:
    r"""The content of the braces if the whole text is one `\boxed{...}`, else None.

    White space around the box and just inside its braces is allowed, other text is not. The content
    may have braces in pairs, as in `\boxed{\frac{1}{2}}`. Of boxes with nothing
    between them, the innermost counts.

    Args:
        anywhere: take the last box of any text that is in no other box.
    """
    text = text.strip()
    boxes = {start.start(): (start, stop) for start, stop in _boxes(text)}
    found = _last_box(boxes.values(), None if anywhere else len(text))
    while found is not None:
        begin, end = _without_space(text, found[0].end(), found[1] - 1)
        inner = boxes.get(begin)
        if inner is None or inner[1] != end:
            return text[begin:end]
        found = inner
    return None


def boxes_in(text: str) -> list[tuple[int, int]]:
    """The places of the boxes that are in no other box, in order."""
    found: list[tuple[int, int]] = []
    for place in sorted((start.start(), stop) for start, stop in _boxes(text)):
        if not found or place[0] >= found[-1][1]:
            found.append(place)
    return found


_Box = tuple[re.Match[str], int]
"""The start of a box up to its brace, and where the box stops."""


def _last_box(boxes: Iterable[_Box], length: int | None) -> _Box | None:
    """The box that is a whole text of some length, or the last one of any text."""
    found = [(a, b) for a, b in boxes if length is None or (a.start(), b) == (0, length)]
    found = [(start, stop) for start, stop in found if start[1] == "boxed"] or found
    return max(found, key=lambda box: box[1], default=None)  # it ends behind all that it holds


def _without_space(text: str, begin: int, end: int) -> tuple[int, int]:
    """The place of what is left of a part of the text without the white space around it."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end


def _boxes(text: str) -> Iterator[_Box]:
    """Boxes whose braces are closed."""
    opened: list[re.Match[str]] = []
    for found in _BRACE.finditer(text):
        if found[0] == "}" and opened:
            start = opened.pop()
            if start[1]:
                yield start, found.end()
        elif found[0] == "{" or found[1]:
            opened.append(found)


def is_correct(text: str, answer: str) -> bool:
    r"""Whether the text is exactly `\boxed{answer}`, compared as :class:`Boxed` compares."""
    found = boxed_answer(text)
    return found is not None and _is_same(found, answer)


def require_answers(records: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError, which names the row, if a record has no completions, or no right answer
    with which `is_correct` could compare them."""
    if not records:
        raise ValueError("there are no prompts with completions; sample some")
    for record in records:
        row, answer = record["row"], record.get("answer")
        if record.get("completions") == []:
            raise ValueError(f"row {row!r} has no completions; sample some, or leave the row out")
        if answer is None:
            raise ValueError(
                f"row {row!r} has no answer, so nobody knows which of its completions are right; "
                "give every prompt its answer, or leave the row out"
            )
        if not isinstance(answer, str):
            raise ValueError(
                f"row {row!r} has the answer {answer!r}, which is no text; write it in quotes"
            )
        if fault := why_no_answer(answer, in_a_box=True):
            raise ValueError(f"row {row!r}: {fault}; leave the row out")


def _is_same(found: str, answer: str) -> bool:
    return as_compared(found) == as_compared(answer.strip())


def as_compared(answer: str) -> str:
    """The form of an answer that equal answers have in common."""
    return plain_numerals(unicodedata.normalize("NFC", answer))
