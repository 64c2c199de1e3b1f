"""Tables of results: one table for each step, one row for each metric, related rows together.

The kind of an artifact explains its metrics (:class:`pipeline.show.views.Measures`): the title,
whether the metric is a change, and which other metric is its p-value. A metric without an
explanation has a row under its own name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.show.comparison import family_name
from pipeline.show.metrics import (
    SIGNIFICANT,
    comparable_metrics,
    has_width,
    is_interval,
    is_number,
    pooled,
)
from pipeline.show.report.report_model import ReportedStep, Story
from pipeline.show.report.wording import exact
from pipeline.show.views import Measure, Measures

MOST_COLUMNS = 5
"""The most results that are columns of a table; with more results, each is a row."""
OTHERS = ""


@dataclass(frozen=True)
class Bar:
    """An interval as a bar, in per cent of the scale. ``zero`` is where a change of 0 lies."""

    left: float
    width: float
    dot: float
    zero: float | None


@dataclass(frozen=True)
class Cell:
    """A number with its interval.

    Attributes:
        p: the p-value of a change; ``None`` if there is no test.
        better: 1 if more is better, -1 if less is, 0 if neither.
    """

    value: Any
    low: float | None = None
    high: float | None = None
    bar: Bar | None = None
    p: float | None = None
    better: int = 0

    @property
    def tone(self) -> str:
        """``good``, ``bad`` or ``changed`` for a significant change; empty for any other number."""
        if self.p is None or self.p >= SIGNIFICANT or not is_number(self.value):
            return ""
        worth = self.value * self.better
        return "good" if worth > 0 else "bad" if worth < 0 else "changed"


@dataclass(frozen=True)
class Row:
    measure: Measure
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Group:
    """The results of one step as rows of cells; a row has one cell for each result.

    Attributes:
        sections: rows by the title of their section; metrics without explanation last, untitled.
        same: metrics that have the same value in all results.
    """

    step: str
    names: Sequence[str]
    sections: Mapping[str, Sequence[Row]]
    same: Mapping[str, Cell]

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self.sections.values() for row in rows]

    @property
    def has_intervals(self) -> bool:
        return any(cell.low is not None for row in self.rows for cell in row.cells.values())

    @property
    def has_bars(self) -> bool:
        return any(cell.bar for row in self.rows for cell in row.cells.values())

    @property
    def is_wide(self) -> bool:
        return len(self.names) > MOST_COLUMNS


def result_groups(story: Story) -> Iterator[Group]:
    """A group for each step that has results with numbers; the step with the most results first."""
    by_step: dict[str, dict[str, ReportedStep]] = {}
    for name, reported in story.results.items():
        if reported.manifest is not None:
            by_step.setdefault(reported.step, {})[name] = reported
    for step, results in sorted(by_step.items(), key=lambda group: -len(group[1])):
        group = group_of(step, results)
        if group.sections or group.same:
            yield group


def groups_over_seeds(story: Story) -> Iterator[Group]:
    """The means of results that differ in seeds alone, as a group for each step."""
    by_step: dict[str, dict[str, ReportedStep]] = {}
    for family in story.families:
        several = [story.results[name] for name in family]
        made = [reported.manifest for reported in several if reported.manifest]
        mean = replace(made[0], metrics=pooled([manifest.metrics for manifest in made]))
        name = family_name(family, story.parameters)
        by_step.setdefault(mean.step, {})[name] = replace(several[0], manifest=mean)
    for step, results in by_step.items():
        yield group_of(f"{step}: mean over seeds, and below it the lowest and the highest", results)


def group_of(step: str, results: Mapping[str, ReportedStep]) -> Group:
    metrics = {
        name: reported.manifest.metrics for name, reported in results.items() if reported.manifest
    }
    rows = [_row(measure, metrics) for measure in _measures(results.values())]
    same = {row.measure.title: _only(row) for row in rows if len(results) > 1 and _is_same(row)}
    sections: dict[str, list[Row]] = {}
    for row in rows:
        if row.measure.title not in same:
            sections.setdefault(row.measure.group, []).append(row)
    others = {OTHERS: sections.pop(OTHERS)} if OTHERS in sections else {}
    drawn = {title: _scaled(of) for title, of in (sections | others).items()}
    return Group(step, list(results), drawn, same)


def measures_of(reported: ReportedStep) -> Measures:
    """The measures that explain an artifact's metrics; empty if its kind declares none."""
    return next((view for view in reported.views if isinstance(view, Measures)), Measures(()))


def _measures(results: Iterable[ReportedStep]) -> list[Measure]:
    """A measure for each metric that some result has: declared measures first, then plain names."""
    results = list(results)
    known = comparable_metrics(reported.manifest for reported in results if reported.manifest)
    explained = {m.metric: m for reported in results for m in measures_of(reported).measures}
    tests = {measure.p for measure in explained.values()}
    plain = (Measure(name, name) for name in known if name not in explained | dict.fromkeys(tests))
    return [*(m for m in explained.values() if m.metric in known), *plain]


def _row(measure: Measure, metrics: Mapping[str, Mapping[str, Any]]) -> Row:
    def cell(of: Mapping[str, Any]) -> Cell:
        value, p = of.get(measure.metric), of.get(measure.p) if measure.p else None
        p = p if is_number(p) else None
        if is_interval(value):
            ends = (value["low"], value["high"]) if has_width(value) else (None, None)
            return Cell(value["value"], *ends, p=p, better=measure.better)
        return Cell(value if is_number(value) else None, p=p, better=measure.better)

    return Row(measure, {name: cell(of) for name, of in metrics.items()})


def _is_same(row: Row) -> bool:
    return len({(exact(c.value), c.low, c.high) for c in row.cells.values()}) == 1


def _only(row: Row) -> Cell:
    return next(iter(row.cells.values()))


# --- bars ----------------------------------------------------------------------------------------


def _scaled(rows: Sequence[Row]) -> list[Row]:
    """The rows with bars. Shares of one section have a common scale, other rows one scale each."""
    changes = [row for row in rows if row.measure.is_share and row.measure.p]
    largest = max((abs(end) for row in changes for end in _ends(row)), default=0.0)

    def scale(row: Row) -> tuple[float, float]:
        if row.measure.is_share:
            return (-largest, largest) if row.measure.p else (0.0, 1.0)
        ends = [*_ends(row), *((0.0,) if row.measure.p else ())]
        return min(ends, default=0.0), max(ends, default=1.0)

    return [_with_bars(row, *scale(row)) if _is_drawn(row) else row for row in rows]


def _is_drawn(row: Row) -> bool:
    """Whether a row gets bars: it has two intervals to compare, or one to compare with zero."""
    intervals = sum(cell.low is not None for cell in row.cells.values())
    return intervals > 1 or (intervals == 1 and bool(row.measure.p))


def _ends(row: Row) -> list[float]:
    cells = row.cells.values()
    return [end for c in cells for end in (c.value, c.low, c.high) if end is not None]


def _with_bars(row: Row, low: float, high: float) -> Row:
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return (value - low) / span * 100

    def drawn(cell: Cell) -> Cell:
        if cell.low is None or cell.high is None:
            return cell
        left, right = place(cell.low), place(cell.high)
        zero = place(0.0) if row.measure.p else None
        return replace(cell, bar=Bar(left, right - left, place(cell.value), zero))

    return Row(row.measure, {name: drawn(cell) for name, cell in row.cells.items()})
