"""Rules that judge a text, with no model in them: the part of an evaluation that can fail."""

import re
from collections.abc import Mapping, Sequence

_BOXED = re.compile(r"\s*\\boxed\{\s*([^{}]*?)\s*\}\s*")


def boxed_answer(text: str) -> str | None:
    r"""What stands in the braces if the whole text is one `\boxed{...}`, else None.

    White space around the box and just inside its braces is tolerated; any other text is not.
    """
    match = _BOXED.fullmatch(text)
    return match[1] if match else None


def is_correct(text: str, answer: str) -> bool:
    r"""Whether the text is exactly `\boxed{answer}` as `boxed_answer` reads it.

    Answers are compared as strings: `\boxed{042}` is not `42`.
    """
    return boxed_answer(text) == answer


def count_matches(checks: Mapping[str, str], texts: Sequence[str]) -> dict[str, int]:
    """For each named regular expression, the number of texts in which it is found.

    Raises:
        ValueError: as :func:`compile_checks`.
    """
    return {
        name: sum(pattern.search(text) is not None for text in texts)
        for name, pattern in compile_checks(checks).items()
    }


def compile_checks(checks: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    """The named regular expressions, compiled.

    Raises:
        ValueError: naming a check that is not a regular expression.
    """
    patterns = {}
    for name, expression in checks.items():
        try:
            patterns[name] = re.compile(expression)
        except re.error as error:
            raise ValueError(f"check {name!r} is no regular expression: {error}") from error
    return patterns
