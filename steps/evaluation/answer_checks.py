"""Named regular expressions that check answers, for style that a rule can recognise.

A regular expression may take for ever on a text, so it runs in a process that can be killed. No
result depends on the time limit of that process: a check that takes longer is an error.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from steps.checking.verdicts import Answered, Checker, Judgement, Verdict, judged

TIME_LIMIT = 60.0
"""Seconds for one check of one answer: many, as a check that takes longer fails the step, and the
machine may be busy."""


def compile_checks(checks: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """Compile named regular expressions.

    Raises:
        ValueError: a check, which the message names, is not a regular expression.
    """
    patterns = {}
    for name, expression in checks.items():
        try:
            patterns[name] = re.compile(expression)
        except re.error as error:
            raise ValueError(f"check {name!r} is no regular expression: {error}") from error
    return patterns


def passed(
    rows: Sequence[str],
    texts: Sequence[str],
    checks: Mapping[str, str],
    time_limit: float = TIME_LIMIT,
) -> list[dict[str, bool]]:
    """For each text, whether each named regular expression is found in it.

    Args:
        rows: the ids of the rows that the texts answer, for errors.
        time_limit: seconds for one check of one text.

    Raises:
        ValueError: a check, which the message names, does not end in time.
    """
    from steps.checking.judges import Judges  # not at the top: plans import this module

    compile_checks(checks)
    asked = [
        (row, name, _Asked(text, expression=expression))
        for row, text in zip(rows, texts, strict=True)
        for name, expression in checks.items()
    ]
    with Judges(_Search(), time_limit=time_limit) as judges:
        found = judges.judge([each for _, _, each in asked])
    for (row, name, _), judgement in zip(asked, found, strict=True):
        if judgement.verdict is Verdict.none:
            raise ValueError(
                f"check {name!r} on the answer to row {row!r}: {judgement.reason}; write its "
                "regular expression without repetitions of what may match in several ways"
            )
    marks = iter(judgement.verdict is Verdict.right for judgement in found)
    return [{name: next(marks) for name in checks} for _ in texts]


@dataclass(frozen=True, kw_only=True)
class _Asked(Answered):
    """A text, and the regular expression to look for in it."""

    expression: str


@dataclass(frozen=True)
class _Search(Checker):
    """Right if the regular expression is found."""

    name: ClassVar[str] = "search"

    def check(self, answered: Answered) -> Judgement:
        assert isinstance(answered, _Asked)
        return judged(re.search(answered.expression, answered.text) is not None)
