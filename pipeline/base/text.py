"""Formats text for display: safe characters, limited length, durations, sizes, near misses."""

import difflib
from collections.abc import Collection, Sequence

LONGEST_LINE = 500
LONGEST_TEXT = 6000
_BIDI_CONTROLS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}


def visible(text: str) -> str:
    """One line without control characters, which could rewrite the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def clean(value: object) -> str:
    """Text that is safe to show: characters that move, hide or break other text become visible.

    Control characters become symbols, bidirectional overrides their code points, and unpaired
    surrogates a replacement character. Very long texts are cut, with a note.
    """
    text = str(value)
    if len(text) > LONGEST_TEXT:
        text = f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character in "\n\t":
        return character
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
        return "\N{REPLACEMENT CHARACTER}"
    return f"⟨U+{code:04X}⟩" if code in _BIDI_CONTROLS else character


def counted(number: int, thing: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def cut(text: str, longest: int = LONGEST_LINE) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def clock(seconds: float) -> str:
    """A duration: ``4.2s``, ``3m05s``, ``2h07m``."""
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(max(60, int(seconds)), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def about(seconds: float) -> str:
    """An approximate duration: ``40 s``, ``3 min``, ``2.5 h``, ``4 days``."""
    for unit, length, enough in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < enough:
            amount = max(1.0, seconds / length)
            return f"{amount:.1f} {unit}" if unit == "h" and amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def size(amount: float) -> str:
    """An amount of bytes in decimal units: ``820 kB``, ``1.4 GB``."""
    units = ["TB", "GB", "MB", "kB", "B"]
    unit = units.pop()
    while units and amount >= 999.5:
        amount, unit = amount / 1000, units.pop()
    return f"{amount:.1f} {unit}" if amount < 9.95 and unit != "B" else f"{amount:.0f} {unit}"


def did_you_mean(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """The known name that was probably meant, as the end of an error; empty if none is similar.

    cutoff: how similar it must be, from 0 to 1.
    """
    close = difflib.get_close_matches(name, known, 1, cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def hint(name: str, known: Sequence[str]) -> str:
    """A hint with the known names that are similar, or with all known names."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
