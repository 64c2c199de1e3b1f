"""Escape untrusted text so that Markdown shows it and interprets nothing in it."""

import re

_MARKUP = re.compile(r"[\\`*\[\]<>|~!#&]|(?<!\w)_|_(?!\w)")


def as_text(text: str) -> str:
    """One line of printable characters; markup and separators of table cells are escaped."""
    return _MARKUP.sub(r"\\\g<0>", _one_line(text))


def as_code(text: str) -> str:
    """One line as inline code, or as :func:`as_text` if it contains a backtick."""
    line = _one_line(text)
    return as_text(line) if "`" in line or not line else f"`{line}`"


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
