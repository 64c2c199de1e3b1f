"""Curves: one plot for each number, with all artifacts of a story."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.show.report import figures
from pipeline.show.report.report_model import ReportedStep, Story, steps_with
from pipeline.show.report.sweeps import Panel
from pipeline.show.report.wording import number
from pipeline.show.views import Curves, Histogram, Points


@dataclass(frozen=True)
class Drawn:
    """The curves of one title.

    Attributes:
        view: the first artifact's, whose title, axis and note stand for all.
        legend: the name of each line, by the number of its colour; empty if there is one line.
        more: panels that the page shows on a click.
        gaps: what is not drawn, in words; empty if everything is.
        ends: number, artifact, first value, last value and count of points of each line.
    """

    view: Curves
    legend: Sequence[str]
    panels: Sequence[Panel]
    more: Sequence[Panel]
    gaps: str
    ends: Sequence[tuple[str, str, float, float, int]]


MOST_GAPS = 6
"""The most lines of which a report says that values are not drawn."""

Group = Sequence[tuple[ReportedStep, Curves]]


def curves(story: Story, section: str) -> list[Drawn]:
    """The curves of a section, in one group for each title."""
    groups: dict[str, list[tuple[ReportedStep, Curves]]] = {}
    for reported, view in steps_with(story.steps, Curves):
        if view.section == section:
            groups.setdefault(view.title, []).append((reported, view))
    return [_drawn(group) for group in groups.values()]


def _drawn(group: Group) -> Drawn:
    first = group[0][1]
    names = list(dict.fromkeys(name for _, view in group for name in view.lines))
    panels = [_panel(name, group) for name in names]
    ends = [
        (name, reported.label or reported.step, *_first_and_last(view.lines[name]))
        for name in names
        for reported, view in group
        if name in view.lines
    ]
    return Drawn(
        view=first,
        legend=[r.label or r.step for r, _ in group] if len(group) > 1 else [],
        panels=panels[: first.prominent],
        more=panels[first.prominent :],
        gaps=", ".join(_gaps(group)),
        ends=ends,
    )


def _gaps(group: Group) -> Iterator[str]:
    """Each line of which values are not drawn, with their number."""
    found = [
        f"{name} of {reported.label or reported.step} ({count} of them)"
        for reported, view in group
        for name, count in view.gaps.items()
    ]
    yield from found[:MOST_GAPS]
    if len(found) > MOST_GAPS:
        yield f"and {len(found) - MOST_GAPS} more lines"


def _panel(name: str, group: Group) -> Panel:
    ends = "; ".join(
        f"{reported.label or reported.step}: {number(first)} to {number(last)} in {count} points"
        for reported, view in group
        if name in view.lines
        for first, last, count in [_first_and_last(view.lines[name])]
    )
    drawn = [view.lines.get(name, ()) for _, view in group]
    svg = figures.lines(drawn, group[0][1].diagonal)
    return Panel(name, svg, f"{name} over {group[0][1].axis}. {ends}")


def _first_and_last(points: Points) -> tuple[float, float, int]:
    return points[0][1], points[-1][1], len(points)


def histograms(story: Story) -> Iterator[tuple[str, str, Sequence[Panel]]]:
    """Title, axis and panels of each histogram."""
    for reported, view in steps_with(story.steps, Histogram):
        panels = [
            Panel(name, figures.bars(counts), _counted(name, view.axis, counts))
            for name, counts in view.counts.items()
            if counts
        ]
        yield f"{view.title}: {reported.name}", view.axis, panels


def _counted(name: str, axis: str, counts: Mapping[int, int]) -> str:
    total = sum(counts.values())
    mean = sum(value * count for value, count in counts.items()) / total
    return f"{name}: {total} rows of {min(counts)} to {max(counts)} {axis}, {mean:.1f} on average"
