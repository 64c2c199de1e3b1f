"""Named regular expressions that check answers, for style that a rule can recognise."""

import re
from collections.abc import Mapping


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
