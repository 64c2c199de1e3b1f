"""What there is to see of an artifact: a few shapes of values, and who says which.

A kind names a function that makes views of its files. It is called when somebody looks, never when
a step runs; the name is a text, so that code which only shows is no part of any key:

    class Evaluation(Artifact):
        views = "steps.views:evaluation"

    def evaluation(made: Made) -> Iterator[View]:
        yield Texts("What it answers", [Text(row, prompt, answer), …])

Of a kind that names none, files with known names are shown: ``summary.md`` and ``metrics.jsonl``.
A view holds values and no markup; who draws it escapes them.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pipeline.dag.artifact import Kind
from pipeline.dag.canonical import resolve_reference
from pipeline.errors import TemperError
from pipeline.show.logged import METRICS
from pipeline.show.made import Made
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
    """Numbers over a counter, by name, the most telling first.

    Attributes:
        prominent: how many are shown at once; the others are a click away.
        diagonal: whether to draw the line on which both axes are equal.
        note: what to look for, in a sentence.
    """

    title: str
    axis: str
    lines: Mapping[str, Points]
    prominent: int = 6
    diagonal: bool = False
    section: str = "Curves"
    note: str = ""


@dataclass(frozen=True)
class Text:
    """One text that answers one prompt; equal rows of several artifacts are shown side by side.

    Attributes:
        remark: what is to be said of the answer, such as how it ended.
        checks: by the name of each rule that the answer was held against, whether it passes.
        by: who answers, where the texts of one artifact have several authors, such as a model
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
    """How often each whole number was counted, such as lengths in tokens; by name."""

    title: str
    axis: str
    counts: Mapping[str, Mapping[int, int]]
    section: ClassVar[str] = "Data"


@dataclass(frozen=True)
class Measure:
    """What a metric of a manifest means. Metrics without a measure are shown by their own names.

    Attributes:
        metric: its name in the manifest.
        title: what to call it, in words.
        group: metrics of one group stand together.
        is_share: from 0 to 1; the shares of a group are drawn on one scale.
        better: 1 if more of it is better, -1 if less is, 0 if neither.
        change_of: this is how much that metric differs from the baseline's.
        p: the metric that says how likely a difference as large is by chance.
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
    """The metrics of an artifact in words, the most telling first: of the changes, the first is
    the one that the artifact was made to show.

    Attributes:
        baseline: the argument of the step that holds what changes are measured against.
    """

    measures: Sequence[Measure]
    baseline: str = ""
    section: ClassVar[str] = "Results"


View = Note | Curves | Texts | Table | Histogram | Measures
MakeViews = Callable[[Made], Iterable[View]]
Loader = Callable[[Path], Any]
_LOADER = "__temper_loader__"


def loaded_by(loader: Loader) -> Callable[[MakeViews], MakeViews]:
    """Say, beside the views of a kind, how :meth:`Made.load` loads such an artifact.

    Args:
        loader: called with the local folder of its files.
    """

    def mark(make_views: MakeViews) -> MakeViews:
        setattr(make_views, _LOADER, loader)
        return make_views

    return mark


def loader_of(make_views: MakeViews) -> Loader | None:
    """What :func:`loaded_by` has said of a view function."""
    return getattr(make_views, _LOADER, None)


def views_of(made: Made, resolve: Callable[[Manifest], Kind]) -> list[View]:
    """What its kind shows of an artifact.

    A kind that is not known here, or whose function fails, shows what every kind shows: a look at
    an old artifact must not depend on today's code being able to read it.

    Args:
        resolve: the kind of an artifact. Only that is to be asked of a store: the function that
            makes its views is named by the kind itself.
    """
    with contextlib.suppress(Exception):
        if (views := resolve(made.manifest).views) is not None:
            return list(resolve_reference(views)(made))
    with contextlib.suppress(TemperError):
        return [*summary(made), *curves(made)]
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
        first: names of the numbers to show first, as far as they are there.
        titles: what to call numbers, by name.
        unit: what to call the axis.
    """
    lines = lines_of(made.records(METRICS), first, axis)
    if lines:
        prominent = sum(name in lines for name in first) or Curves.prominent
        named = {(titles or {}).get(name, name): points for name, points in lines.items()}
        yield Curves(made.manifest.step, unit, named, prominent)


def lines_of(
    records: Iterable[Mapping[str, Any]], first: Sequence[str] = (), axis: str = "step"
) -> dict[str, Points]:
    """Every number of records over their ``axis``, by name, those named ``first`` first."""
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in first}
    for record in records:
        at: Any = record.get(axis)
        if not _is_finite(at):
            continue
        for name, value in record.items():
            if name != axis and _is_finite(value):
                lines.setdefault(name, []).append((float(at), float(value)))
    return {name: points for name, points in lines.items() if points}


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
