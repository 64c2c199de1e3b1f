"""Text that anybody may have written, as Markdown which shows it and does nothing else."""

import re

_MARKUP = re.compile(r"[\\`*\[\]<>|~!#&]|(?<!\w)_|_(?!\w)")


def as_text(text: str) -> str:
    """One line of visible characters, with what could end a table's cell or be markup escaped."""
    return _MARKUP.sub(r"\\\g<0>", _one_line(text))


def as_code(text: str) -> str:
    """The same as code, where it holds no backtick."""
    line = _one_line(text)
    return as_text(line) if "`" in line or not line else f"`{line}`"


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
