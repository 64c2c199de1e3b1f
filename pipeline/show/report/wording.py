"""How the report formats numbers, names, times and Markdown: the filters of its template."""

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from pipeline.base.redaction import shown
from pipeline.base.text import clean, clock, cut

GLYPHS = {
    "done": "✓", "cached": "·", "failed": "✗", "skipped": "–", "running": "…", "waiting": "○",
}  # fmt: skip
_TABLE = '<table class="plain">'
_PRE = '<pre tabindex="0">'  # it may scroll, so it must be reachable with the keyboard


def filters() -> dict[str, Any]:
    """The filters by their name in the template."""
    return {
        "clock": clock, "number": number, "when": when, "glyph": lambda s: GLYPHS.get(s, "○"),
        "markdown": lambda text: Markup(markdown(text)), "json": pretty, "signed": signed,
        "exact": exact, "rough": rough, "fold": fold, "shown": shown, "probability": probability,
        "breakable": lambda text: breakable(fold(text, 80)), "plain_settings": plain_settings,
    }  # fmt: skip


def number(value: Any) -> str:
    """A number with at most four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def signed(value: float) -> str:
    """A difference: ``+0.17``, ``−0.2``, ``0``."""
    return f"{value:{'+' if value else ''}.3g}".replace("-", "\N{MINUS SIGN}")


def rough(value: float) -> str:
    """The end of an interval, with three digits."""
    return f"{value:.3g}"


def probability(p: float) -> str:
    """A p-value: ``p = 0.012``, ``p < 0.001``."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def exact(value: Any) -> str:
    """A number with all its digits, as the manifest has it."""
    return json.dumps(value)


def pretty(value: Any) -> str:
    """A setting or a metric as JSON, on one line while it is short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 90 else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A step's settings, without the entries that name the class of a config."""
    return {path: v for path, v in settings.items() if not path.endswith(" type")}


def when(stamp: str) -> str:
    """The UTC time with which the name of a run or of an attempt begins."""
    try:
        return time.strftime("%-d %b %Y, %H:%M", time.strptime(stamp[:15], "%Y%m%dT%H%M%S"))
    except ValueError:
        return stamp


def fold(text: object, longest: int = 25) -> str:
    """A name on one line, cut to a length."""
    return cut(" ".join(clean(text).split()), longest)


def breakable(text: str) -> Markup:
    """A dotted name that may wrap at its dots, slashes and underscores."""
    return Markup(re.sub(r"([._/])", r"\1<wbr>", str(escape(text))))


def markdown(text: str) -> str:
    """Markdown as HTML; HTML, links and images in it stay text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
    # a heading becomes h4: it stands inside a section of the page
    tokens = parser.parse(clean(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"
    return (
        parser.renderer.render(tokens, parser.options, {})
        .replace("<table>", _TABLE)
        .replace("<pre>", _PRE)
    )
