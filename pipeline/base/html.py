"""Small HTML tables with escaped content, for notebooks that show a step or a plan."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from pipeline.base.redaction import shown
from pipeline.base.text import clean, cut

_LONGEST = 400
_CELL = Markup('<{tag} style="text-align:left;vertical-align:top">{text}</{tag}>')


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table of texts, without secrets in URLs."""
    head = _row("th", headings)
    body = Markup("").join(_row("td", row) for row in rows)
    return Markup("<table><thead>{}</thead><tbody>{}</tbody></table>").format(head, body)


def named_table(
    name: str, note: str, headings: Sequence[str], rows: Iterable[Sequence[str]]
) -> Markup:
    """A table with a name and a note above it."""
    return Markup("<div><b>{}</b> <small>{}</small>{}</div>").format(
        name, note, table(headings, rows)
    )


def _row(tag: str, texts: Sequence[str]) -> Markup:
    cells = Markup("").join(
        _CELL.format(tag=Markup(tag), text=escape(clean(cut(shown(text), _LONGEST))))
        for text in texts
    )
    return Markup("<tr>{}</tr>").format(cells)
