"""A regular expression that must match in the text, and may extract the answer."""

import re
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import (
    Answered,
    Checker,
    Judgement,
    judged,
    no_verdict,
    plain_numerals,
    why_no_answer,
)
from steps.shared.checks import require

_WHOLE_NUMBER = (
    r"(?<![\w.,/:*^−–-])(?<!\d\+)(?<!\d\s[-+*/^×÷·−]\s)(?!(?<=\d\s)\d{3}\b)"
    r"(?P<answer>[-−]?(?:\d{1,3}(?:,\d{3})+|\d+))\.?\s*$"
)
_GROUPED = re.compile(r"-?\d{1,3}(?:,\d{3})+")


@dataclass(frozen=True)
class Pattern(Checker):
    """Right if `expression` is found in the text. If it has a group named `answer`, as in
    ``(?i)the answer is (?P<answer>\\d+)``, the group's last match must equal the row's answer, as
    text; white space around them does not matter, nor the script of digits and minus signs.

    The default takes a whole number at the end of the text, where a full stop may follow; `1,234`
    equals `1234`. Of `1 234`, `0.5`, `1/2`, `1:2`, `10-5`, `10+5` and `10^5` it takes no part.

    On some texts an expression may not finish within the time limit; then there is no verdict.

    Args:
        expression: the regular expression, in Python's syntax.
    """

    name: ClassVar[str] = "pattern"

    expression: str = _WHOLE_NUMBER

    def __post_init__(self) -> None:
        try:
            re.compile(self.expression)
        except re.error as error:
            rule = f"expression must be a regular expression ({error})"
            require(False, rule, self.expression)

    def fault_of(self, answer: str | None) -> str:
        if "answer" not in re.compile(self.expression).groupindex:
            return ""
        if fault := why_no_answer(answer):
            return fault
        whole = re.search(_WHOLE_NUMBER, answer or "")
        if self.expression != _WHOLE_NUMBER or (
            whole and self._plain(whole["answer"]) == self._plain(answer)
        ):
            return ""
        return f"the row's answer {answer!r} is no whole number; set checker.expression"

    def check(self, answered: Answered) -> Judgement:
        pattern = re.compile(self.expression)
        if fault := self.fault_of(answered.answer):
            return no_verdict(fault)
        matches = list(pattern.finditer(answered.text))
        if not matches or "answer" not in pattern.groupindex:
            return judged(bool(matches), "" if matches else "not found")
        return judged(self._plain(matches[-1]["answer"]) == self._plain(answered.answer))

    def _plain(self, answer: str | None) -> str:
        """The form that equal answers have in common; the default's are numbers."""
        plain = plain_numerals((answer or "").strip())
        is_number = self.expression == _WHOLE_NUMBER and _GROUPED.fullmatch(plain)
        return plain.replace(",", "") if is_number else plain
