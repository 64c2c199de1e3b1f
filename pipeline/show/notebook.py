"""Shows an artifact in a notebook: its metrics and the views of its kind, as one piece of HTML.

The HTML loads nothing and runs no script. Plots are those of the report, in colours that suit light
and dark notebooks. All values are escaped.
"""

from collections.abc import Iterator, Mapping

from markupsafe import Markup
from rich.filesize import decimal

from pipeline.base.html import named_table, table
from pipeline.base.text import clean, clock, counted
from pipeline.show.artifact_handle import Made
from pipeline.show.metrics import comparable_metrics, metric_text
from pipeline.show.report import figures
from pipeline.show.report.wording import markdown
from pipeline.show.views import Curves, Histogram, Note, Table, Texts, View, views_of
from pipeline.store.kinds import known_kind

MOST_ROWS = 8
"""The most rows of a table or of samples; :meth:`Made.load` has all."""
_COLOURS = ("#3b7dd8", "#d9822b", "#2e9e5b", "#c44569", "#8a63d2", "#1b9aaa", "#9a8c2c", "#7a7f87")
_STYLE = ";".join(
    ["--muted:#808890", "--line:#80889055"]
    + [f"--series-{index}:{colour}" for index, colour in enumerate(_COLOURS)]
)
_PLOT = Markup(
    '<figure style="display:inline-block;width:19em;margin:0 1em 1em 0;vertical-align:top">'
    "<figcaption><small>{name}</small></figcaption>{svg}</figure>"
)


def drawn(made: Made) -> str:
    size, took = decimal(made.manifest.size), clock(made.seconds)
    files = counted(len(made.files), "file")
    note = f"{files}, {size}, made in {took}; load() and path have its files"
    names = comparable_metrics([made.manifest])
    metrics = [(name, metric_text(made.metrics[name])) for name in names]
    parts = [named_table(made.name, note, ("metric", "value"), metrics)]
    for view in views_of(made, known_kind):
        parts += _drawn(view, made.step)
    return Markup('<div style="{}">{}</div>').format(_STYLE, Markup("").join(parts))


def _drawn(view: View, step: str) -> Iterator[Markup]:
    match view:
        case Note(text=text):
            yield Markup(markdown(text))
        case Curves():
            heading = _heading(view.title) if view.title != step else Markup("")
            yield heading + Markup("").join(_curves(view))
        case Texts(title=title, rows=rows):
            shown = [(t.row, t.prompt, t.answer, t.remark) for t in rows[:MOST_ROWS]]
            heading = _heading(title, len(rows))
            yield heading + table(("row", "prompt", "answer", ""), shown)
        case Table(title=title, rows=rows):
            cells = [[str(cell) for cell in row] for row in rows[:MOST_ROWS]]
            yield _heading(title, len(rows)) + table(view.headings, cells)
        case Histogram(title=title):
            yield _heading(title) + Markup("").join(_histograms(view.counts))


def _curves(view: Curves) -> Iterator[Markup]:
    """The most important lines, each in a plot of its own, since their scales differ."""
    for name, points in [*view.lines.items()][: view.prominent]:
        yield _plot(f"{name} over {view.axis}", figures.lines([points], view.diagonal))
    if lost := ", ".join(f"{name} ({count} of them)" for name, count in view.gaps.items()):
        told = clean(f"Not drawn, {view.undrawn}: values of {lost}.")
        yield Markup("<p><small>{}</small></p>").format(told)


def _histograms(counts: Mapping[str, Mapping[int, int]]) -> Iterator[Markup]:
    for name, of in counts.items():
        if of:
            yield _plot(name, figures.bars(of))


def _plot(name: str, svg: str) -> Markup:
    return _PLOT.format(name=clean(name), svg=Markup(svg))


def _heading(title: str, count: int = 0) -> Markup:
    more = f" (the first {MOST_ROWS} of {count})" if count > MOST_ROWS else ""
    return Markup("<p><b>{}</b></p>").format(clean(title + more))
