"""A regular expression that must match in the text, and may extract the answer."""

import re
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, judged, no_verdict
from steps.shared.checks import require


@dataclass(frozen=True)
class Pattern(Checker):
    """Right if `expression` is found in the text. If it has a group named `answer`, as in
    ``(?i)the answer is (?P<answer>\\d+)``, the group's last match must equal the row's answer.

    The default takes a whole number at the end of the text. Of `1,234`, `0.5`, `1/2` and `10-5` it
    takes no part, and none of `−5`, whose sign is not a hyphen.

    On some texts an expression may not finish within the time limit; then there is no verdict.

    Args:
        expression: the regular expression, in Python's syntax.
    """

    name: ClassVar[str] = "pattern"

    expression: str = r"(?<![\w.,/−–-])(?P<answer>-?\d+)\s*$"

    def __post_init__(self) -> None:
        try:
            re.compile(self.expression)
        except re.error as error:
            rule = f"expression must be a regular expression ({error})"
            require(False, rule, self.expression)

    def check(self, answered: Answered) -> Judgement:
        pattern = re.compile(self.expression)
        matches = list(pattern.finditer(answered.text))
        if not matches or "answer" not in pattern.groupindex:
            return judged(bool(matches), "" if matches else "not found")
        if answered.answer is None:
            return no_verdict("the row has no answer")
        return judged(matches[-1]["answer"] == answered.answer)
