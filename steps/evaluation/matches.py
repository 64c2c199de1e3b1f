"""Named regular expressions that check answers, for style that a rule can recognise."""

import re
from collections.abc import Mapping, Sequence


def count_matches(checks: Mapping[str, str], texts: Sequence[str]) -> dict[str, int]:
    """For each named regular expression, the number of texts that contain it.

    Raises:
        ValueError: as in :func:`compile_checks`.
    """
    return {
        name: sum(pattern.search(text) is not None for text in texts)
        for name, pattern in compile_checks(checks).items()
    }


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
