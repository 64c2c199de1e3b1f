"""Plots as inline SVG: one layout for all of them, coloured by the page's style sheet.

A plot is complete without a script. ``page.js`` redraws the lines of :func:`lines` when a reader
chooses a logarithmic axis, smoothing, or the values at one place. So each line carries its numbers
(``data-x``, ``data-y``), and each drawing the ends of its axes, linear and logarithmic.

Colours are CSS variables of the page, so one drawing suits light and dark pages. Lines also differ
in their dashes, so `MOST_TOLD_APART` of them look different; points with intervals differ in their
colours alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.show.report.axes import Axis, short
from pipeline.show.views import Points
from pipeline.text import clean

COLOURS = 8
MOST_POINTS = 400
"""The most points of a line. Of a longer line, each stretch keeps its lowest and highest point."""
MOST_MARKED = 30
WIDTH, HEIGHT = 340, 196
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 8.0, 24.0
_DASHES = ("none", "6 3", "2 3", "7 3 2 3")
MOST_TOLD_APART = COLOURS * len(_DASHES)
_APART = 4.0
"""Between the points of two groups at one place."""
_FAINT = Markup('<g opacity=".4">{}</g>')
_SVG = Markup(
    '<svg viewBox="0 0 {} {}" aria-hidden="true" focusable="false" style="font-size:10.5px"{}>'
    "{}</svg>"
)
_BAR = Markup(
    '<rect style="fill:{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">'
    "<title>{}</title></rect>"
)


@dataclass(frozen=True)
class Estimate:
    """A number at a place on an axis, with an optional interval."""

    at: float
    value: float
    low: float | None = None
    high: float | None = None
    name: str = ""


def lines(named: Sequence[Points], diagonal: bool = False, aside: Sequence[Points] = ()) -> Markup:
    """Draw one line for each sequence of points, in the order of the legend; skip empty ones.

    Args:
        diagonal: also draw the line on which x equals y, both from 0 to 1.
        aside: further lines, hidden until the reader shows them.
    """
    shown = [_drawable(points) for points in (*named, *aside)]
    own = [point for points in shown[: len(named)] for point in points]
    frames = dict(_frames(own, "", diagonal))
    if aside:
        frames |= dict(_frames([p for points in shown for p in points], "all-", diagonal))
    first = next(iter(frames))
    x, y = frames[first]
    counted = not diagonal and all(at == int(at) for points in shown for at, _ in points)
    parts = [_frame(kind, *axes, counted, is_hidden=kind != first) for kind, axes in frames.items()]
    if diagonal:
        parts.append(_level((x(0), y(0)), (x(1), y(1))))
    parts += [
        _line(points, index, index >= len(named), x, y)
        for index, points in enumerate(shown)
        if points
    ]
    return _svg(parts, Markup(' data-frame="{:g} {:g} {:g} {:g}"').format(
        x.start, x.end, y.start, y.end
    ))  # fmt: skip


def _drawable(points: Points) -> Points:
    return thinned([point for point in points if all(map(math.isfinite, point))])


def _frames(points: Points, prefix: str, diagonal: bool) -> Iterator[tuple[str, tuple[Axis, Axis]]]:
    """The pairs of axes on which the points can be drawn, by name; the linear pair first."""
    if diagonal:
        yield f"{prefix}linear", (_across([0.0, 1.0]), _upward([0.0, 1.0]))
        return
    x, y = _across(at for at, _ in points), _upward(value for _, value in points)
    yield f"{prefix}linear", (x, y)
    if (logarithmic := y.as_logarithm(value for _, value in points)) is not None:
        yield f"{prefix}logarithmic", (x, logarithmic)


def estimates(
    groups: Sequence[Sequence[Estimate]],
    places: Mapping[float, str],
    logarithmic: bool = False,
    levels: Sequence[float] = (),
) -> Markup:
    """Draw points with intervals over a setting; join a group's points if no two share a place.

    Groups stand a little apart from each other, so that none hides another. More groups than there
    are colours are drawn faintly in one colour.

    Args:
        places: labels on the axis, by value.
        levels: values of results without the setting, drawn as horizontal lines.
    """
    every = [estimate for group in groups for estimate in group]
    ends = [end for e in every for end in (e.value, e.low, e.high) if end is not None]
    x, y = _across(places, room=0.12), _upward([*ends, *levels])
    if logarithmic:
        x = x.as_logarithm(places) or x
    parts = [_grid(y, y.ticks()), _bottom(_apart(places, x), x)]
    parts += [_level((LEFT, y(level)), (WIDTH - RIGHT, y(level))) for level in levels]
    are_told_apart, drawn = len(groups) <= COLOURS, list[Markup]()
    for index, group in enumerate(groups):
        number = index if are_told_apart else 0
        beside = _APART * (index - (len(groups) - 1) / 2) if are_told_apart else 0.0
        ordered = sorted(group, key=lambda estimate: estimate.at)
        if len({estimate.at for estimate in ordered}) == len(ordered):
            drawn.append(_path([(x(e.at) + beside, y(e.value)) for e in ordered], number))
        drawn += [_estimate(e, number, x(e.at) + beside, y) for e in ordered]
    if not are_told_apart:
        drawn = [_FAINT.format(Markup("").join(drawn))]
    return _svg([*parts, *drawn])


def bars(counts: Mapping[int, int], most_bars: int = 24) -> Markup:
    """A histogram of whole numbers with bars of equal width."""
    low, high = min(counts), max(counts)
    span = max(1, -(-(high - low + 1) // most_bars))
    heights: dict[int, int] = {}
    for value, count in counts.items():
        start = low + (value - low) // span * span
        heights[start] = heights.get(start, 0) + count
    x = Axis(low - 0.5, max(heights) + span - 0.5, LEFT, WIDTH - RIGHT)
    y = Axis(0.0, max(heights.values()) * 1.05, HEIGHT - BOTTOM, TOP)
    parts = [_grid(y, _whole(y.ticks())), _bottom(_whole(x.ticks(6)), x)]
    for start, count in sorted(heights.items()):
        left, right = x(start - 0.5), x(start + span - 0.5)
        what = str(start) if span == 1 else f"{start} to {start + span - 1}"
        parts.append(_BAR.format(
            colour(0), left + 0.5, y(count), max(right - left - 1, 0.5), y(0) - y(count),
            f"{what}: {count}",
        ))  # fmt: skip
    return _svg(parts)


def thinned(points: Points) -> Points:
    """About `MOST_POINTS` points: the lowest and highest of each stretch, so every peak stays."""
    if len(points) <= MOST_POINTS:
        return points
    every = -(-2 * len(points) // MOST_POINTS)
    kept = [points[0]]
    for start in range(0, len(points), every):
        stretch = points[start : start + every]
        kept += sorted({min(stretch, key=_height), max(stretch, key=_height)})
    return [*kept, points[-1]]


def colour(index: int) -> str:
    """The colour of line number `index`, as CSS."""
    return f"var(--series-{index % COLOURS})"


def key(index: int) -> Markup:
    """The piece of line number `index` that stands in a legend."""
    return Markup(
        '<svg class="key" viewBox="0 0 26 6" aria-hidden="true"><line x1="1" y1="3" x2="25" y2="3" '
        'style="stroke:{};stroke-width:2.4;stroke-dasharray:{}"/></svg>'
    ).format(colour(index), _dashes(index))


def _dashes(index: int) -> str:
    return _DASHES[index // COLOURS % len(_DASHES)]


def _height(point: tuple[float, float]) -> float:
    return point[1]


def _across(values: Iterable[float], room: float = 0.02) -> Axis:
    return Axis.over(values, LEFT, WIDTH - RIGHT, room)


def _upward(values: Iterable[float]) -> Axis:
    return Axis.over(values, HEIGHT - BOTTOM, TOP)


def _svg(parts: Iterable[Markup], attributes: str = "") -> Markup:
    return _SVG.format(WIDTH, HEIGHT, attributes, Markup("").join(parts))


def _frame(kind: str, x: Axis, y: Axis, counted: bool, is_hidden: bool) -> Markup:
    """One pair of axes that a reader can choose, with their ends as attributes for the script.

    Args:
        counted: the horizontal axis counts, so only whole numbers get ticks.
    """
    ticks = x.ticks(6)
    return Markup('<g data-axes="{}" data-x="{!r} {!r}" data-y="{!r} {!r}"{}>{}{}</g>').format(
        kind, x.low, x.high, y.low, y.high,
        Markup(' display="none"') if is_hidden else "",
        _grid(y, y.ticks()), _bottom((counted and _whole(ticks)) or ticks, x),
    )  # fmt: skip


def _grid(axis: Axis, ticks: Sequence[tuple[float, str]]) -> Markup:
    """Horizontal lines with numbers to their left."""
    ends = LEFT, WIDTH - RIGHT
    rows = (
        Markup('<path d="M{:g},{:.1f}H{:g}"/>').format(ends[0], axis(at), ends[1])
        for at, _ in ticks
    )
    texts = (
        Markup('<text x="{:g}" y="{:.1f}">{}</text>').format(LEFT - 5, axis(at) + 3.5, label)
        for at, label in ticks
    )
    return Markup(
        '<g style="stroke:var(--line);stroke-width:.7">{}</g>'
        '<g style="fill:var(--muted)" text-anchor="end">{}</g>'
    ).format(Markup("").join(rows), Markup("").join(texts))


def _bottom(ticks: Iterable[tuple[float, str]], axis: Axis) -> Markup:
    """The labels below the horizontal axis."""
    texts = (
        Markup('<text x="{:.1f}" y="{}">{}</text>').format(axis(at), HEIGHT - 7, clean(label))
        for at, label in ticks
    )
    return Markup('<g style="fill:var(--muted)" text-anchor="middle">{}</g>').format(
        Markup("").join(texts)
    )


def _whole(ticks: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(at, label) for at, label in ticks if at == int(at)]


def _apart(places: Mapping[float, str], axis: Axis) -> Iterator[tuple[float, str]]:
    """The labels, without those that would overlap the previous one."""
    free = -math.inf
    for at, label in sorted(places.items()):
        half = 3.1 * len(label) + 2
        if axis(at) - half >= free:
            yield at, label
            free = axis(at) + half


def _line(points: Points, index: int, is_aside: bool, x: Axis, y: Axis) -> Markup:
    """A line with its numbers as attributes; a short line marks its points."""
    places = [(x(at), y(value)) for at, value in points]
    attributes = Markup(' data-series="{}" data-x="{}" data-y="{}"{}').format(
        index,
        " ".join(f"{at:.8g}" for at, _ in points),
        " ".join(f"{value:.6g}" for _, value in points),
        Markup(' display="none"') if is_aside else "",
    )
    return _path(places, index, attributes, is_marked=len(points) <= MOST_MARKED)


def _path(
    places: Sequence[tuple[float, float]], index: int, attributes: str = "", is_marked: bool = False
) -> Markup:
    mark = "marker:url(#dot);" if is_marked else ""
    return Markup(
        '<polyline points="{}" style="fill:none;stroke:{};stroke-width:1.6;stroke-dasharray:{};'
        'stroke-linejoin:round;stroke-linecap:round;{}"{}/>'
    ).format(
        " ".join(f"{x:.1f},{y:.1f}" for x, y in (places if len(places) > 1 else [*places] * 2)),
        colour(index),
        _dashes(index),
        mark,
        attributes,
    )


def _level(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    """A straight dashed line: a result without the setting, or the diagonal on which x equals y."""
    return Markup(
        '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" '
        'style="stroke:var(--muted);stroke-width:.9;stroke-dasharray:4 3"/>'
    ).format(*start, *end)


def _estimate(estimate: Estimate, index: int, at: float, y: Axis) -> Markup:
    low, high = estimate.low, estimate.high
    interval = ""
    whisker = Markup("")
    if low is not None and high is not None:
        interval = f" ({short(low)} to {short(high)})"
        whisker = _path([(at, y(low)), (at, y(high))], index)
    tooltip = f"{clean(estimate.name)}: {estimate.value:.4g}{interval}"
    return whisker + Markup(
        '<circle style="fill:{}" cx="{:.1f}" cy="{:.1f}" r="3.4"><title>{}</title></circle>'
    ).format(colour(index), at, y(estimate.value), tooltip)
