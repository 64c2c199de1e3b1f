"""Digits and minus signs of any script as ASCII's, so that `−５` is `-5`."""

import re

_DIGIT, _MINUS = re.compile(r"\d"), re.compile(r"[−﹣－]|(?<!\w)–(?=\d)")


def plain_numerals(text: str) -> str:
    """The text with ASCII's digits and hyphens in place of other decimal digits and minus signs.

    `²` and `½` are no decimal digits, and stay.
    """
    return _MINUS.sub("-", _DIGIT.sub(lambda digit: str(int(digit[0])), text))
