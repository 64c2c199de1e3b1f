r"""An answer in `\boxed{...}`, the usual form of mathematical answers."""

import re
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict

_BOX = r"\\boxed\{\s*([^{}]*?)\s*\}"
_ONLY_BOX = re.compile(rf"\s*{_BOX}\s*")
_ANY_BOX = re.compile(_BOX)


@dataclass(frozen=True)
class Boxed(Checker):
    r"""Right if `\boxed{...}` holds the row's answer, compared as text: `042` is not `42`.

    Args:
        anywhere: whether the box may be anywhere in the text, where the last box counts; otherwise
            the box must be the whole text.
    """

    name: ClassVar[str] = "boxed"

    anywhere: bool = False

    def check(self, answered: Answered) -> Judgement:
        if answered.answer is None:
            return no_verdict("the row has no answer")
        boxes = _ANY_BOX.findall(answered.text) if self.anywhere else []
        found = boxes[-1] if boxes else boxed_answer(answered.text)
        return judged(found == answered.answer, "" if found is not None else "no box")


def boxed_answer(text: str) -> str | None:
    r"""The content of the braces if the whole text is one `\boxed{...}`, else None.

    White space around the box and just inside its braces is allowed, other text is not.
    """
    match = _ONLY_BOX.fullmatch(text)
    return match[1] if match else None


def is_correct(text: str, answer: str) -> bool:
    r"""Whether the text is exactly `\boxed{answer}`, as `boxed_answer` reads it."""
    return boxed_answer(text) == answer
