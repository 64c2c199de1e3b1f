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
from dataclasses import dataclass, replace

from markupsafe import Markup

from pipeline.base.text import clean
from pipeline.show.views import Points

COLOURS = 8
MOST_POINTS = 400
"""The most points of a line. Of a longer line, each stretch keeps its lowest and highest point."""
MOST_MARKED = 30
WIDTH, HEIGHT = 340, 196
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 8.0, 24.0
_DASHES = ("none", "6 3", "2 3", "7 3 2 3")
MOST_TOLD_APART = COLOURS * len(_DASHES)
_LARGEST = 1e280  # differences between larger values overflow
_SAME = 1e-12
"""Relative; two values that are closer than this are drawn at one place."""
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
class Axis:
    """Maps values from `low` to `high` to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, room: float = 0.05) -> "Axis":
        """A linear axis that shows all values, with some room at both ends."""
        low, high = _ends(values)
        size = max(abs(low), abs(high))
        span = high - low if high - low > size * _SAME else size or 1.0
        return cls(low - span * room, high + span * room, start, end)

    def as_logarithm(self, values: Iterable[float]) -> "Axis | None":
        """A logarithmic axis with the same coordinates; ``None`` unless all values are above 0."""
        low, high = _ends(values)
        if low <= 0:
            return None
        first, last = math.log10(low), math.log10(high)
        room = (last - first) * 0.05 if last - first > _SAME else 0.3
        return replace(self, low=10 ** (first - room), high=10 ** (last + room), logarithmic=True)

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        value, low, high = _bounded(value), self.low, self.high
        if self.logarithmic:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round values on the axis, each with its label."""
        found = list(self._decades()) if self.logarithmic else []
        if len(found) < 2:
            rough = (self.high - self.low) / most
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(power * f for f in (1.0, 2.0, 2.5, 5.0, 10.0) if power * f >= rough * 0.999)
            ends = math.ceil(self.low / step), math.floor(self.high / step)
            found = [index * step for index in range(ends[0], ends[1] + 1)]
        return [(value, f"{value:.5g}") for value in found]

    def _decades(self) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        for power in range(first, last + 1, max(1, (last - first) // 4)):
            yield from (at for f in factors if self.low <= (at := f * 10.0**power) <= self.high)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = [_bounded(value) for value in values]
    return min(known, default=0.0), max(known, default=1.0)


def _bounded(value: float) -> float:
    """The value, clamped to a range in which arithmetic neither overflows nor underflows."""
    return 0.0 if abs(value) < 1 / _LARGEST else min(max(value, -_LARGEST), _LARGEST)


@dataclass(frozen=True)
class Estimate:
    """A number at a place on an axis, with an optional interval."""

    at: float
    value: float
    low: float | None = None
    high: float | None = None
    name: str = ""


def lines(named: Sequence[Points], diagonal: bool = False) -> Markup:
    """Draw one line for each sequence of points, in the order of the legend; skip empty ones.

    Args:
        diagonal: also draw the line on which x equals y, both from 0 to 1.
    """
    shown = [thinned([p for p in points if all(map(math.isfinite, p))]) for points in named]
    places = [at for points in shown for at, _ in points]
    values = [value for points in shown for _, value in points]
    x = _across([0.0, 1.0] if diagonal else places)
    y = _upward([0.0, 1.0] if diagonal else values)
    counted = not diagonal and all(at == int(at) for at in places)
    parts = [_frame("linear", x, y, counted)]
    if not diagonal and (logarithmic := y.as_logarithm(values)) is not None:
        parts.append(_frame("logarithmic", x, logarithmic, counted))
    if diagonal:
        parts.append(_level((x(0), y(0)), (x(1), y(1))))
    parts += [_line(points, index, x, y) for index, points in enumerate(shown) if points]
    return _svg(parts, Markup(' data-frame="{:g} {:g} {:g} {:g}"').format(
        x.start, x.end, y.start, y.end
    ))  # fmt: skip


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


def _frame(kind: str, x: Axis, y: Axis, counted: bool) -> Markup:
    """One pair of axes that a reader can choose, with their ends as attributes for the script.

    Args:
        counted: the horizontal axis counts, so only whole numbers get ticks.
    """
    ticks = x.ticks(6)
    return Markup('<g data-axes="{}" data-x="{!r} {!r}" data-y="{!r} {!r}"{}>{}{}</g>').format(
        kind, x.low, x.high, y.low, y.high,
        Markup(' display="none"') if y.logarithmic else "",
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


def _line(points: Points, index: int, x: Axis, y: Axis) -> Markup:
    """A line with its numbers as attributes; a short line marks its points."""
    places = [(x(at), y(value)) for at, value in points]
    attributes = Markup(' data-series="{}" data-x="{}" data-y="{}"').format(
        index,
        " ".join(f"{at:.8g}" for at, _ in points),
        " ".join(f"{value:.6g}" for _, value in points),
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
        interval = f" ({low:.4g} to {high:.4g})"
        whisker = _path([(at, y(low)), (at, y(high))], index)
    tooltip = f"{clean(estimate.name)}: {estimate.value:.4g}{interval}"
    return whisker + Markup(
        '<circle style="fill:{}" cx="{:.1f}" cy="{:.1f}" r="3.4"><title>{}</title></circle>'
    ).format(colour(index), at, y(estimate.value), tooltip)
