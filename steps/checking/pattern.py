"""A regular expression that must match in the text, and may extract the answer."""

import re
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import (
    RULE,
    Answered,
    Checker,
    Judgement,
    is_rule,
    judged,
    no_verdict,
    plain_numerals,
)
from steps.shared.checks import require

_WHOLE_NUMBER = (
    r"(?<![\w.,/:*^−–-])(?<!\d\+)(?<!\d\s[-+*/^×÷·−]\s)(?!(?<=\d\s)\d{3}\b)"
    r"(?P<answer>[-−]?\d+)\.?\s*$"
)


@dataclass(frozen=True)
class Pattern(Checker):
    """Right if `expression` is found in the text. If it has a group named `answer`, as in
    ``(?i)the answer is (?P<answer>\\d+)``, the group's last match must equal the row's answer, as
    text; white space around them does not matter, nor the script of digits and minus signs.

    The default takes a whole number at the end of the text, where a full stop may follow. Of
    `1,234`, `1 234`, `0.5`, `1/2`, `1:2`, `10-5`, `10+5` and `10^5` it takes no part.

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

    def check(self, answered: Answered) -> Judgement:
        pattern = re.compile(self.expression)
        if "answer" in pattern.groupindex and is_rule(answered.answer or ""):
            return no_verdict(RULE)
        matches = list(pattern.finditer(answered.text))
        if not matches or "answer" not in pattern.groupindex:
            return judged(bool(matches), "" if matches else "not found")
        if answered.answer is None:
            return no_verdict("the row has no answer")
        found = plain_numerals((matches[-1]["answer"] or "").strip())
        return judged(found == plain_numerals(answered.answer.strip()))
