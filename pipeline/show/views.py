"""Views: the shapes of values in which an artifact can show its content.

A kind names a function that makes views of its files. Temper calls it when somebody looks at the
artifact, never when a step runs. The kind names the function as text, so that code for display is
part of no key:

    class Evaluation(Artifact):
        views = "steps.views:evaluation"

    def evaluation(made: Made) -> Iterator[View]:
        yield Texts("What it answers", [Text(row, prompt, answer), …])

If a kind names no function, its ``summary.md`` and ``metrics.jsonl`` are shown. A view holds values
without markup; the code that draws it escapes them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pipeline.base.errors import TemperError
from pipeline.dag.artifact import Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.show.artifact_handle import DamagedFile, Made
from pipeline.show.metrics_log import METRICS, unfinished_log
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest

SUMMARY = "summary.md"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Note:
    """A text in Markdown; HTML in it is shown as text."""

    title: str
    text: str
    section: ClassVar[str] = "Notes"


@dataclass(frozen=True)
class Curves:
    """Numbers over a counter, by name, the most important first.

    Attributes:
        prominent: how many lines are shown at first; the others on a click.
        diagonal: whether to draw the line on which x equals y.
        note: a sentence on what to look for.
        gaps: how many values of a line are not drawn, for the reason `undrawn`.
    """

    title: str
    axis: str
    lines: Mapping[str, Points]
    prominent: int = 6
    diagonal: bool = False
    section: str = "Curves"
    note: str = ""
    gaps: Mapping[str, int] = field(default_factory=dict)
    undrawn: ClassVar[str] = "because they are NaN, infinite or too large for a plot"


@dataclass(frozen=True)
class Text:
    """One answer to one prompt. Answers of several artifacts to the same row are shown side by
    side.

    Attributes:
        remark: a remark on the answer, such as how it ended.
        checks: whether the answer passes each rule that was checked, by the name of the rule.
        by: the author of the answer, if the texts of an artifact have several: for example a model
            after each iteration.
    """

    row: str
    prompt: str
    answer: str
    remark: str = ""
    checks: Mapping[str, bool] = field(default_factory=dict)
    by: str = ""


@dataclass(frozen=True)
class Texts:
    title: str
    rows: Sequence[Text]
    section: ClassVar[str] = "Samples"


@dataclass(frozen=True)
class Table:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    section: str = "Data"


@dataclass(frozen=True)
class Histogram:
    """The count of each whole number, such as a length in tokens; several histograms by name."""

    title: str
    axis: str
    counts: Mapping[str, Mapping[int, int]]
    section: ClassVar[str] = "Data"

    def __post_init__(self) -> None:
        there = {
            name: {n: count for n, count in of.items() if count} for name, of in self.counts.items()
        }
        object.__setattr__(self, "counts", there)  # what never occurs has no bar


@dataclass(frozen=True)
class Measure:
    """The meaning of a metric. A metric without a measure is shown under its own name.

    Attributes:
        metric: its name in the manifest.
        title: its title in words.
        group: metrics of one group are shown together.
        is_share: whether it lies between 0 and 1; the shares of a group are drawn on one scale.
        better: 1 if more is better, -1 if less is better, 0 if neither.
        change_of: the metric whose difference from the baseline this metric is.
        p: the metric that holds the p-value of this difference.
    """

    metric: str
    title: str
    group: str = ""
    is_share: bool = False
    better: int = 0
    change_of: str = ""
    p: str = ""


@dataclass(frozen=True)
class Measures:
    """The measures of an artifact, the most important first. The first one that is a change is the
    change that the artifact was made to show.

    Attributes:
        baseline: the argument of the step that holds the baseline of changes.
    """

    measures: Sequence[Measure]
    baseline: str = ""
    section: ClassVar[str] = "Results"


View = Note | Curves | Texts | Table | Histogram | Measures
MakeViews = Callable[[Made], Iterable[View]]
Loader = Callable[[Path], Any]
_LOADER, _IS_TAKEN = "__temper_loader__", "__temper_is_taken__"


def loaded_by(loader: Loader) -> Callable[[MakeViews], MakeViews]:
    """Register how :meth:`Made.load` loads artifacts of a kind, on the function that makes its
    views.

    Args:
        loader: receives the local folder of the artifact's files.
    """

    def mark(make_views: MakeViews) -> MakeViews:
        setattr(make_views, _LOADER, loader)
        return make_views

    return mark


def loader_of(make_views: MakeViews) -> Loader | None:
    return getattr(make_views, _LOADER, None)


def offered_if(is_taken: Callable[[Made], bool]) -> Callable[[MakeViews], MakeViews]:
    """Register which artifacts of a kind its command of ``temper.next`` takes, on the function that
    makes its views; without this, the command takes all of them."""

    def mark(make_views: MakeViews) -> MakeViews:
        setattr(make_views, _IS_TAKEN, is_taken)
        return make_views

    return mark


def is_offered(made: Made, make_views: MakeViews) -> bool:
    return getattr(make_views, _IS_TAKEN, lambda _: True)(made)


def views_of(made: Made, resolve: Callable[[Manifest], Kind]) -> list[View]:
    """The views that an artifact's kind makes of it.

    If the kind is unknown here, or its function fails, the default views are shown: looking at an
    old artifact must not require that today's code can read it.

    Args:
        resolve: returns the kind of an artifact. It must not read the name of the view function
            from the store: only the kind's own code may name a function that is called.
    """
    try:
        if (views := resolve(made.manifest).views) is not None:
            return list(resolve_reference(views)(made))
    except DamagedFile as damage:
        return [Note(made.manifest.step, str(damage))]
    except Exception:
        pass  # the default views follow
    try:
        return [*summary(made), *curves(made)]
    except DamagedFile as damage:
        return [Note(made.manifest.step, str(damage))]
    except TemperError:
        return []


def summary(made: Made) -> Iterator[View]:
    """The artifact's ``summary.md``, if it has one."""
    if text := made.text(SUMMARY):
        yield Note(made.manifest.step, text)


def curves(
    made: Made,
    first: Sequence[str] = (),
    axis: str = "step",
    titles: Mapping[str, str] | None = None,
    unit: str = "step",
) -> Iterator[View]:
    """Every number in the artifact's ``metrics.jsonl`` over its ``axis``.

    Args:
        first: names of the numbers to show first, if they exist.
        titles: titles of numbers, by name.
        unit: the title of the axis.
    """
    records = list(made.records(METRICS))
    lines, gaps, called = lines_of(records, first, axis), gaps_of(records, axis), titles or {}
    if lines or gaps:
        prominent = sum(name in lines for name in first) or Curves.prominent
        named = {called.get(name, name): points for name, points in lines.items()}
        lost = {called.get(name, name): count for name, count in gaps.items()}
        yield Curves(made.manifest.step, unit, named, prominent, gaps=lost)


def unfinished_views(store: Store, step: str, key: str) -> list[View]:
    """The curves of a step that still runs, from its last checkpoint."""
    records = unfinished_log(store, step, key)
    lines, gaps = lines_of(records), gaps_of(records)
    return [Curves(step, "step", lines, gaps=gaps)] if lines or gaps else []


def lines_of(
    records: Iterable[Mapping[str, Any]], first: Sequence[str] = (), axis: str = "step"
) -> dict[str, Points]:
    """Every number of records over their ``axis``, by name; the names in `first` come first."""
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in first}
    for record in records:
        at: Any = record.get(axis)
        if not _is_finite(at):
            continue
        for name, value in record.items():
            if name != axis and _is_finite(value):
                lines.setdefault(name, []).append((float(at), float(value)))
    return {name: points for name, points in lines.items() if points}


def gaps_of(records: Iterable[Mapping[str, Any]], axis: str = "step") -> dict[str, int]:
    """How many values of records no plot can show, by name."""
    values = (item for record in records for item in record.items())
    lost = (n for n, v in values if isinstance(v, int | float) and n != axis and not _is_finite(v))
    return dict(Counter(lost))


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False
