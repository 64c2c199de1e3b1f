"""Plots as inline SVG, drawn by Matplotlib, coloured by the page.

A figure holds axes and numbers alone. What anybody wrote (names of metrics, labels) stands beside
it as text of the page, so nothing needs to be escaped here. Colours are CSS variables, so that one
drawing suits light and dark; lines differ in their dashes too.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.views import Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 8
MOST_POINTS = 600
"""Of a line; of a longer one, every so many points are drawn."""
MOST_MARKED = 30
_SIZE = (3.9, 2.3)  # inches
_INK, _GRID = "#010203", "#010204"
_SERIES = [f"#0102{16 + index:02x}" for index in range(COLOURS)]
_DASHES = ("-", "--", ":", "-.")
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "temper",
    "text.parse_math": False,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-3, 5),
    "axes.formatter.use_mathtext": False,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "font.size": 9,
    "lines.linewidth": 1.6,
}


@dataclass(frozen=True)
class Estimate:
    """A number with, perhaps, its interval, at a place on an axis."""

    at: float
    value: float
    low: float | None = None
    high: float | None = None


def lines(named: Sequence[Points], diagonal: bool = False) -> str:
    """One line each, in the order of the legend."""

    def draw(axes: "Axes") -> None:
        for index, points in enumerate(named):
            x, y = zip(*_thinned(points), strict=True)
            marker = "o" if len(x) <= MOST_MARKED else None
            axes.plot(x, y, _dash(index), color=_colour(index), marker=marker, markersize=3)
        if diagonal:
            axes.axline((0, 0), slope=1, color=_INK, linewidth=0.7, linestyle=":")

    return _drawn(draw)


def estimates(
    groups: Sequence[Sequence[Estimate]],
    places: Mapping[float, str],
    logarithmic: bool = False,
    levels: Sequence[float] = (),
    joined: bool = True,
) -> str:
    """Points with intervals over a setting, joined where each has a place of its own.

    Args:
        places: what to write on the axis, and where.
        joined: false where what lies between two places means nothing.
        levels: of results without the setting, as horizontal lines.
    """

    def draw(axes: "Axes") -> None:
        for index, group in enumerate(groups):
            ordered = sorted(group, key=lambda estimate: estimate.at)
            alone = len({estimate.at for estimate in ordered}) == len(ordered)
            axes.errorbar(
                [e.at for e in ordered],
                [e.value for e in ordered],
                yerr=[[max(0.0, e.value - e.low) if e.low is not None else 0.0 for e in ordered],
                      [max(0.0, e.high - e.value) if e.high is not None else 0.0 for e in ordered]],
                color=_colour(index), marker="o", markersize=4, capsize=2.5, elinewidth=1.1,
                linestyle=_dash(index) if alone and joined else "none",
            )  # fmt: skip
        for level in levels:
            axes.axhline(level, color=_INK, linewidth=0.9, linestyle="--")
        if logarithmic:
            axes.set_xscale("log")
        axes.set_xticks(list(places), list(places.values()))
        axes.minorticks_off()
        axes.margins(x=0.12)

    return _drawn(draw)


def bars(counts: Mapping[int, int], most_bars: int = 24) -> str:
    """How often whole numbers occur, in bars of equal span."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        low, high = min(counts), max(counts)
        span = max(1, -(-(high - low + 1) // most_bars))
        edges = [edge - 0.5 for edge in range(low, high + span + 1, span)]
        axes.hist(list(counts), bins=edges, weights=list(counts.values()), color=_colour(0),
                  rwidth=0.92)  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))

    return _drawn(draw)


def colour(index: int) -> str:
    """The colour of a line, as CSS."""
    return f"var(--series-{index % COLOURS})"


def _colour(index: int) -> str:
    return _SERIES[index % COLOURS]


def _dash(index: int) -> str:
    return _DASHES[index // COLOURS % len(_DASHES)]


def _thinned(points: Points) -> Points:
    every = -(-len(points) // MOST_POINTS)
    kept = list(points[::every])
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def _drawn(draw: Any) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        draw(axes)
        return _svg(figure)


def _svg(figure: "Figure") -> str:
    """The figure without what would reach beyond it: its style sheet, its ids, its fixed size."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"<svg ", '<svg aria-hidden="true" focusable="false" ', text, count=1)
    prefix = f"f{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r"url\(#", f"url(#{prefix}", text)
    text = re.sub(r'xlink:href="#', f'xlink:href="#{prefix}', text)
    text = re.sub(r"font: [^;\"]*", "", text)
    for css, colour_of in _colours():
        text = text.replace(css, colour_of)
    return text


_METADATA = ("Date", "Creator", "Format", "Type")


def _colours() -> Iterator[tuple[str, str]]:
    yield _INK, "var(--muted)"
    yield _GRID, "var(--line)"
    for index, placeholder in enumerate(_SERIES):
        yield placeholder, colour(index)
