"""The effect of settings: each metric plotted over every setting in which results differ.

A seed is no quantity: results that differ in seeds alone are one dot.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import fsum
from typing import Any

from markupsafe import Markup

from pipeline.plan.variants import is_seed
from pipeline.show.comparison import family_name
from pipeline.show.metrics import is_number
from pipeline.show.report import figures
from pipeline.show.report.report_model import Story
from pipeline.show.report.scoreboard import Cell, Group, Row
from pipeline.show.report.wording import fold, number

MOST_PANELS = 12


@dataclass(frozen=True)
class Panel:
    """A plot with its title, and a description of its content for readers who cannot see it."""

    name: str
    svg: Markup
    description: str


@dataclass(frozen=True)
class Effect:
    """One setting of a sweep, and each metric over it.

    Attributes:
        series: the names of the lines, by the number of their colour: values of the other settings.
        lines: the number of lines, which have no names if there are more than colours.
        levels: results that do not have the setting.
        is_mean: whether dots are means over seeds.
    """

    setting: str
    axis: str
    panels: Sequence[Panel]
    series: Sequence[str]
    lines: int
    levels: Sequence[str]
    is_mean: bool


@dataclass(frozen=True)
class _Places:
    """The values of a setting along an axis.

    Attributes:
        at: the coordinate of each result, by name.
        labels: the tick label at each coordinate.
    """

    at: Mapping[str, float]
    labels: Mapping[float, str]
    logarithmic: bool


def effects(story: Story, groups: Sequence[Group]) -> Iterator[Effect]:
    """Plots for every setting in which the results of a group differ, if a metric differs too."""
    for group in groups:
        for setting in story.parameters:
            values = _values(story, group, setting)
            if not is_seed(setting) and len(set(map(str, values.values()))) > 1:
                effect = _effect(story, group, setting, values)
                if effect.panels:
                    yield effect


def _values(story: Story, group: Group, setting: str) -> dict[str, Any]:
    """The values of a setting by result; an artifact that has several names occurs once."""
    values = story.parameters[setting]
    once = {story.results[name].id: name for name in reversed(group.names)}
    return {name: values[name] for name in reversed(once.values()) if name in values}


def _effect(story: Story, group: Group, setting: str, values: Mapping[str, Any]) -> Effect:
    places, series = _places(values), _series(story, setting, values)
    levels = [name for name in group.names if name not in story.parameters[setting]]
    varying = (row for row in group.rows if _differs(row.cells, values))
    panels = [
        _panel(row, _title(row, group.rows), setting, places, series, levels, story)
        for row in islice(varying, MOST_PANELS)
    ]
    axis = f"{setting} (logarithmic)" if places.logarithmic else setting
    named = list(series) if 1 < len(series) <= figures.COLOURS else []
    is_mean = any(name in values for family in story.families for name in family)
    return Effect(setting, axis, panels, named, len(series), levels, is_mean)


def _places(values: Mapping[str, Any]) -> _Places:
    """Numbers at their value, other values at equal distances."""
    numeric = all(is_number(value) and not isinstance(value, bool) for value in values.values())
    kinds = list(dict.fromkeys(map(_label, values.values())))
    at = {n: float(v) if numeric else float(kinds.index(_label(v))) for n, v in values.items()}
    labels = {at[name]: fold(_label(value), 12) for name, value in values.items()}
    positive = numeric and min(at.values()) > 0
    return _Places(at, labels, positive and max(at.values()) / min(at.values()) >= 8)


def _series(story: Story, setting: str, values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The results, grouped by their values of all other settings."""
    found: dict[str, list[str]] = {}
    for name in values:
        others = (
            f"{other}={_label(of[name])}"
            for other, of in story.parameters.items()
            if other != setting and name in of and not is_seed(other)
        )
        found.setdefault(" ".join(others), []).append(name)
    return found


def _differs(cells: Mapping[str, Cell], names: Mapping[str, Any]) -> bool:
    known = {(cells[n].value, cells[n].low, cells[n].high) for n in names}
    return len(known) > 1


def _title(row: Row, rows: Sequence[Row]) -> str:
    """The title of a metric; with its group, if another metric has the same title."""
    measure = row.measure
    is_shared = sum(other.measure.title == measure.title for other in rows) > 1
    return f"{measure.group}: {measure.title}" if is_shared and measure.group else measure.title


def _panel(
    row: Row,
    title: str,
    setting: str,
    places: _Places,
    series: Mapping[str, Sequence[str]],
    levels: Sequence[str],
    story: Story,
) -> Panel:
    """A plot of one metric with a line for each series."""
    lines = [
        [_dot(row, of, places, story) for of in _dots(names, row, story)]
        for names in series.values()
    ]
    beside = [row.cells[n].value for n in levels if row.cells[n].value is not None]
    svg = figures.estimates(lines, places.labels, places.logarithmic, beside)
    described = ", ".join(f"{name}: {number(cell.value)}" for name, cell in row.cells.items())
    return Panel(title, svg, f"{title} by {setting}: {described}")


def _dots(names: Sequence[str], row: Row, story: Story) -> Iterator[list[str]]:
    """The results of each dot of a line: those that differ in seeds alone together."""
    together = {name: [*family] for family in story.families for name in family}
    for name in names:
        of = together.get(name, [name])
        if name == of[0] and all(row.cells[one].value is not None for one in of):
            yield of


def _dot(row: Row, of: Sequence[str], places: _Places, story: Story) -> figures.Estimate:
    at, cell = places.at[of[0]], row.cells[of[0]]
    if len(of) == 1:
        return figures.Estimate(at, cell.value, cell.low, cell.high, of[0])
    values = [row.cells[name].value for name in of]
    name = family_name(of, story.parameters)
    return figures.Estimate(at, fsum(values) / len(values), min(values), max(values), name)


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
