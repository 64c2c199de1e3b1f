"""The report as one HTML file that loads nothing.

Everything that is not the page's own goes through Jinja's autoescaping and :func:`clean`; Markdown
is rendered without HTML, links and images. The page's policy (a ``Content-Security-Policy`` in it)
refuses every request, and every script but its own.
"""

import base64
import hashlib
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.board import clock
from pipeline.manifest import Manifest
from pipeline.record import shown
from pipeline.report import figures, graph
from pipeline.report.story import Story, Told, told_with
from pipeline.sweep import comparable_metrics, is_interval, is_number
from pipeline.views import Curves, Histogram, Note, Points, Table, Text, Texts

LONGEST_TEXT = 6000
MOST_SAMPLES = 12
MOST_PANELS = 12
MOST_COLUMNS = 5
"""Of results in a table; more of them become rows."""
_FOLDER = Path(__file__).parent
_BIDI_CONTROLS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_GLYPHS = {
    "done": "✓", "cached": "·", "failed": "✗", "skipped": "–", "running": "…", "waiting": "○",
}  # fmt: skip


def render(story: Story, made_at: str = "") -> str:
    """The whole file.

    Args:
        made_at: a time to name at its foot; without one, equal stories give equal bytes.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
    )
    environment.filters |= {
        "clock": clock, "number": number, "when": when, "glyph": lambda s: _GLYPHS.get(s, "○"),
        "markdown": lambda text: Markup(markdown(text)), "json": pretty,
        "exact": exact, "rough": rough, "fold": fold, "shown": shown, "settings": _settings,
        "breakable": lambda text: breakable(fold(text, 80)),
    }  # fmt: skip
    script = (_FOLDER / "page.js").read_text("utf-8")
    return environment.get_template("page.html.j2").render(
        story=story,
        style=Markup((_FOLDER / "page.css").read_text("utf-8")),
        script=Markup(script),
        script_hash=_digest(script),
        drawing=graph.draw({told.id: told.inputs for told in story.steps}),
        numbers={told.id: index for index, told in enumerate(story.steps, start=1)},
        told={told.id: told for told in story.steps},
        box=graph.BOX,
        groups=list(_result_groups(story)),
        effects=list(_effects(story)),
        beside=list(_side_by_side(story)),
        curves=[_drawn_curves(group) for group in _curve_groups(story, "Curves")],
        more_results=[_drawn_curves(group) for group in _curve_groups(story, "Results")],
        samples=list(_samples(story)),
        tables=[(told, view) for told, view in told_with(story.steps, Table)],
        histograms=list(_histograms(story)),
        notes=list(told_with(story.steps, Note)),
        versions=_versions(story),
        made_at=made_at,
    )


# --- text ----------------------------------------------------------------------------------------


def clean(value: object) -> str:
    """A text as it can be shown: what would move, hide or break other text is made visible.

    Control characters become their pictures, bidirectional overrides their code points, halves of
    surrogate pairs a replacement character. Very long texts are cut, and say so.
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


def markdown(text: str) -> str:
    """Markdown as HTML, in which HTML, links and images are text."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
    # of the sections that they stand in, headings are parts
    tokens = parser.parse(clean(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h4"
    return (
        parser.renderer.render(tokens, parser.options, {})
        .replace("<table>", _TABLE)
        .replace("<pre>", _PRE)
    )


_TABLE = '<table class="plain">'
_PRE = '<pre tabindex="0">'  # it may scroll, so the keyboard must reach it


def number(value: Any) -> str:
    """A number in at most four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def rough(value: float) -> str:
    """The end of an interval: three digits say enough."""
    return f"{value:.3g}"


def exact(value: Any) -> str:
    """A number with all its digits, as the manifest has it."""
    return json.dumps(value)


def pretty(value: Any) -> str:
    """A setting or a metric as JSON, on one line while it is short."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) < 90 else json.dumps(value, ensure_ascii=False, indent=1, default=str)


def _settings(told: Told) -> dict[str, Any]:
    """A step's settings; which classes they are fields of says nothing more."""
    return {path: v for path, v in told.settings.items() if not path.endswith(" type")}


def when(stamp: str) -> str:
    """The time with which the name of a run or an attempt begins, in UTC."""
    try:
        return time.strftime("%-d %b %Y, %H:%M", time.strptime(stamp[:15], "%Y%m%dT%H%M%S"))
    except ValueError:
        return stamp


def fold(text: object, longest: int = 25) -> str:
    """A name cut to a length, where it must fit into a box."""
    line = " ".join(clean(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def breakable(text: str) -> Any:
    """A dotted name that may be broken between its words."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"([._/])", r"\1<wbr>", str(escape(text))))


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


# --- results -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A number with its interval, and where they lie in the range of their metric, in per cent."""

    value: Any
    low: float | None = None
    high: float | None = None
    left: float = 0.0
    width: float = 0.0
    dot: float = 0.0


@dataclass(frozen=True)
class Group:
    """Results of one step: ``cells[metric][result]``."""

    step: str
    names: Sequence[str]
    metrics: Sequence[str]
    cells: Mapping[str, Mapping[str, Cell]]
    same: Mapping[str, Any]

    @property
    def is_wide(self) -> bool:
        return len(self.names) > MOST_COLUMNS


def _result_groups(story: Story) -> Iterator[Group]:
    by_step: dict[str, dict[str, Manifest]] = {}
    for name, told in story.results.items():
        if told.manifest is not None:
            by_step.setdefault(told.step, {})[name] = told.manifest
    for step, made in sorted(by_step.items(), key=lambda group: -len(group[1])):
        metrics = comparable_metrics(made.values())
        values = {m: {n: manifest.metrics.get(m) for n, manifest in made.items()} for m in metrics}
        same = {
            metric: next(iter(of.values()))
            for metric, of in values.items()
            if len(made) > 1 and len({exact(value) for value in of.values()}) == 1
        }
        apart = [metric for metric in metrics if metric not in same]
        if metrics:
            cells = {metric: _cells(values[metric]) for metric in apart}
            yield Group(step, list(made), apart, cells, same)


def _cells(values: Mapping[str, Any]) -> dict[str, Cell]:
    ends = [end for value in values.values() if is_interval(value) for end in _ends(value)]
    points = [_middle(value) for value in values.values() if is_number(value) or is_interval(value)]
    low, high = min([*ends, *points], default=0.0), max([*ends, *points], default=1.0)
    span = (high - low) or 1.0

    def cell(value: Any) -> Cell:
        if not is_interval(value):
            return Cell(value)
        left, right = ((end - low) / span * 100 for end in _ends(value))
        dot = (value["value"] - low) / span * 100
        return Cell(value["value"], value["low"], value["high"], left, right - left, dot)

    return {name: cell(value) for name, value in values.items()}


def _ends(value: Mapping[str, float]) -> tuple[float, float]:
    return value["low"], value["high"]


def _middle(value: Any) -> float:
    return value["value"] if is_interval(value) else value


# --- what a setting does -------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    name: str
    svg: str
    description: str


@dataclass(frozen=True)
class Effect:
    """One setting of a sweep, and each metric over it.

    Attributes:
        series: of further settings, what the lines differ in, with the colour of each.
        levels: results that do not have the setting.
    """

    setting: str
    axis: str
    panels: Sequence[Panel]
    series: Sequence[tuple[str, str]]
    levels: Sequence[str]


def _effects(story: Story) -> Iterator[Effect]:
    """Small multiples: for every setting in which results differ, each metric that does too."""
    for group in _result_groups(story):
        for setting, varied in _varied(story, group):
            yield _effect(story, group, setting, varied)


def _once(story: Story, group: Group) -> list[str]:
    """The names of a group's results, one for each, in their order."""
    return list({story.results[name].id: name for name in reversed(group.names)}.values())[::-1]


def _varied(story: Story, group: Group) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every setting in which results of a group differ, with its values by result."""
    for setting, values in story.parameters.items():
        varied = {name: values[name] for name in _once(story, group) if name in values}
        if len(set(map(str, varied.values()))) > 1:
            yield setting, varied


def _side_by_side(story: Story) -> Iterator[tuple[str, Sequence[Panel]]]:
    """Each metric of results that no setting tells apart, such as those of several losses."""
    for group in _result_groups(story):
        names = _once(story, group)
        if len(names) > 1 and not any(_varied(story, group)):
            yield group.step, list(_beside(group, names))


def _beside(group: Group, names: Sequence[str]) -> Iterator[Panel]:
    places = {float(at): fold(name, 12) for at, name in enumerate(names)}
    for metric in islice(_shared_by(group, names), MOST_PANELS):
        cells = {at: group.cells[metric][name] for at, name in enumerate(names)}
        drawn = [
            figures.Estimate(float(at), cell.value, cell.low, cell.high)
            for at, cell in cells.items()
            if cell.value is not None
        ]
        described = ", ".join(f"{n}: {number(group.cells[metric][n].value)}" for n in names)
        svg = figures.estimates([drawn], places, joined=False)
        yield Panel(metric, svg, f"{metric} of each result: {described}")


def _shared_by(group: Group, names: Sequence[str]) -> Iterator[str]:
    """The metrics that several of these results have, and not all alike."""
    for metric, cells in group.cells.items():
        known = sum(cells[name].value is not None for name in names)
        if known > 1 and _differs(cells, names):
            yield metric


def _effect(story: Story, group: Group, setting: str, varied: Mapping[str, Any]) -> Effect:
    numeric = all(is_number(value) and not isinstance(value, bool) for value in varied.values())
    kinds = list(dict.fromkeys(map(_label, varied.values())))
    at = {n: float(v) if numeric else float(kinds.index(_label(v))) for n, v in varied.items()}
    places = {at[name]: fold(_label(value), 12) for name, value in varied.items()}
    positive = numeric and min(at.values()) > 0
    logarithmic = positive and max(at.values()) / min(at.values()) >= 8
    series = _series(story, setting, varied)
    levels = [name for name in group.names if name not in story.parameters[setting]]
    panels = []
    telling = (m for m in group.metrics if _differs(group.cells[m], varied))
    for metric in islice(telling, MOST_PANELS):
        cells = group.cells[metric]
        drawn = [
            [
                figures.Estimate(at[n], cells[n].value, cells[n].low, cells[n].high)
                for n in names
                if cells[n].value is not None
            ]
            for names in series.values()
        ]
        known = [float(cells[n].value) for n in levels if cells[n].value is not None]
        described = ", ".join(f"{n}: {number(cells[n].value)}" for n in group.names)
        if any(drawn):
            svg = figures.estimates([d for d in drawn if d], places, logarithmic, known)
            panels.append(Panel(metric, svg, f"{metric} by {setting}: {described}"))
    legend = [(name, figures.colour(i)) for i, name in enumerate(series)] if len(series) > 1 else []
    axis = f"{setting} (logarithmic)" if logarithmic else setting
    return Effect(setting, axis, panels, legend, levels)


def _differs(cells: Mapping[str, Cell], names: Iterable[str]) -> bool:
    """Whether a metric is not the same for all of these results."""
    return len({(cells[n].value, cells[n].low, cells[n].high) for n in names}) > 1


def _series(story: Story, setting: str, varied: Mapping[str, Any]) -> dict[str, list[str]]:
    """Results by the values of all the other settings in which they differ."""
    found: dict[str, list[str]] = {}
    for name in varied:
        others = (
            f"{other}={_label(values[name])}"
            for other, values in story.parameters.items()
            if other != setting and name in values
        )
        found.setdefault(" ".join(others), []).append(name)
    return found


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- curves, samples, data -----------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Curves of one title, of several artifacts in one picture each."""

    title: str
    axis: str
    legend: Sequence[tuple[str, str]]
    panels: Sequence[Panel]
    more: Sequence[Panel]
    ends: Sequence[tuple[str, str, float, float, int]]


def _curve_groups(story: Story, section: str) -> list[list[tuple[Told, Curves]]]:
    groups: dict[str, list[tuple[Told, Curves]]] = {}
    for told, view in told_with(story.steps, Curves):
        if view.section == section:
            groups.setdefault(view.title, []).append((told, view))
    return list(groups.values())


def _drawn_curves(group: Sequence[tuple[Told, Curves]]) -> Drawn:
    first = group[0][1]
    names = list(dict.fromkeys(name for _, view in group for name in view.lines))
    panels = [_curve_panel(name, group) for name in names]
    legend = [(told.label, figures.colour(index)) for index, (told, _) in enumerate(group)]
    ends = [
        (name, told.label or told.step, *_first_and_last(view.lines[name]))
        for name in names
        for told, view in group
        if name in view.lines
    ]
    return Drawn(
        title=first.title,
        axis=first.axis,
        legend=legend if len(group) > 1 else [],
        panels=panels[: first.prominent],
        more=panels[first.prominent :],
        ends=ends,
    )


def _curve_panel(name: str, group: Sequence[tuple[Told, Curves]]) -> Panel:
    points = [view.lines.get(name, ((math.nan, math.nan),)) for _, view in group]
    svg = figures.lines(points, group[0][1].diagonal)
    ends = "; ".join(
        f"{told.label or told.step}: {number(first)} to {number(last)} in {count} points"
        for told, view in group
        if name in view.lines
        for first, last, count in [_first_and_last(view.lines[name])]
    )
    return Panel(name, svg, f"{name} over {group[0][1].axis}. {ends}")


def _first_and_last(points: Points) -> tuple[float, float, int]:
    return points[0][1], points[-1][1], len(points)


@dataclass(frozen=True)
class Sample:
    row: str
    prompt: str
    answers: Sequence[tuple[str, Text]]


def _samples(story: Story) -> Iterator[tuple[str, Sequence[Sample], Sequence[Sample]]]:
    """Texts of one title, all artifacts' answers to a prompt together: the first, and the rest."""
    groups: dict[str, dict[tuple[str, str], list[tuple[str, Text]]]] = {}
    for told, view in told_with(story.steps, Texts):
        for text in view.rows:
            rows = groups.setdefault(view.title, {})
            answer = (told.label or told.step, text)
            rows.setdefault((text.row, text.prompt), []).append(answer)
    for title, rows in groups.items():
        samples = [Sample(row, prompt, answers) for (row, prompt), answers in rows.items()]
        yield title, samples[:MOST_SAMPLES], samples[MOST_SAMPLES:]


def _histograms(story: Story) -> Iterator[tuple[str, str, Sequence[Panel]]]:
    for told, view in told_with(story.steps, Histogram):
        panels = [
            Panel(name, figures.bars(counts), _counted(name, view.axis, counts))
            for name, counts in view.counts.items()
            if counts
        ]
        yield f"{view.title}: {told.name}", view.axis, panels


def _counted(name: str, axis: str, counts: Mapping[int, int]) -> str:
    total = sum(counts.values())
    mean = sum(value * count for value, count in counts.items()) / total
    return f"{name}: {total} rows of {min(counts)} to {max(counts)} {axis}, {mean:.1f} on average"


# --- provenance ----------------------------------------------------------------------------------


def _versions(story: Story) -> dict[str, list[str]]:
    """What the artifacts were made by and on, each fact with all its values."""
    found: dict[str, dict[str, None]] = {}
    for told in story.steps:
        for name, value in _facts(told.manifest):
            found.setdefault(name, {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _facts(manifest: Manifest | None) -> Iterable[tuple[str, str]]:
    if manifest is None:
        return
    provenance = manifest.provenance
    for name in ("commit", "host", "python"):
        if provenance.get(name):
            yield name, str(provenance[name])
    if "dirty" in provenance:
        yield "uncommitted changes", str(provenance["dirty"] or "none")
    packages = provenance.get("packages")
    for name, version in (packages if isinstance(packages, Mapping) else {}).items():
        yield str(name), str(version)
