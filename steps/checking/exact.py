"""A text that must equal the answer."""

import unicodedata
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict


@dataclass(frozen=True)
class Exact(Checker):
    """Right if the text equals the row's answer, apart from white space around it and from how
    Unicode spells a letter with an accent (NFC).

    Args:
        ignore_case: ignore upper and lower case: `Paris` equals `paris`.
    """

    name: ClassVar[str] = "exact"

    ignore_case: bool = False

    def fault_of(self, answer: str | None) -> str:
        return "" if answer and answer.strip() else "the row has no answer"

    def check(self, answered: Answered) -> Judgement:
        if answered.answer is None:
            return no_verdict("the row has no answer")
        sides = (answered.text, answered.answer)
        text, answer = (unicodedata.normalize("NFC", side).strip() for side in sides)
        if self.ignore_case:
            text, answer = text.casefold(), answer.casefold()
        return judged(text == answer)
