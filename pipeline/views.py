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
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, ClassVar

from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.store import Store

SUMMARY, METRICS = "summary.md", "metrics.jsonl"
LARGEST_FILE = 64 * 2**20
"""Bytes; a larger file is not read to be looked at."""

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
    """

    title: str
    axis: str
    lines: Mapping[str, Points]
    prominent: int = 6
    diagonal: bool = False
    section: str = "Curves"


@dataclass(frozen=True)
class Text:
    """One text that answers one prompt; equal rows of several artifacts are shown side by side.

    Attributes:
        remark: what is to be said of the answer, such as which rules it keeps.
    """

    row: str
    prompt: str
    answer: str
    remark: str = ""


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


View = Note | Curves | Texts | Table | Histogram
MakeViews = Callable[["Made"], Iterable[View]]


@dataclass(frozen=True)
class Made:
    """An artifact as a view function sees it, wherever its store is."""

    manifest: Manifest
    store: Store = field(repr=False)

    def names(self, pattern: str) -> list[str]:
        """Files of the artifact whose names match, with the wildcards of a shell, sorted."""
        return sorted(n for n in self.manifest.files if fnmatch(n, pattern))

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if there is none, or it is too large to look at.

        Raises:
            TemperError: the store cannot be read.
        """
        entry = self.manifest.files.get(name)
        if entry is None or entry.size > LARGEST_FILE:
            return None
        return self.store.read(f"{self.store.content_path(self.manifest)}/{name}")

    def text(self, name: str) -> str | None:
        data = self.read(name)
        return None if data is None else data.decode(errors="replace")

    def records(self, name: str) -> list[dict[str, Any]]:
        """The objects of a JSON Lines file; lines that are none are left out."""
        found = []
        for line in (self.read(name) or b"").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(record := json.loads(line), dict):
                    found.append(record)
        return found


def views_of(made: Made, resolve: Callable[[str], Any]) -> list[View]:
    """What its kind shows of an artifact.

    A kind that cannot be imported here, or whose function fails, shows what every kind shows: a
    look at an old artifact must not depend on today's code being able to read it.

    Args:
        resolve: imports what ``module:name`` names.
    """
    with contextlib.suppress(Exception):
        kind = resolve(made.manifest.kind or "")
        return list(resolve(kind.views)(made))
    with contextlib.suppress(TemperError):
        return [*summary(made), *curves(made)]
    return []


def summary(made: Made) -> Iterator[View]:
    """The artifact's ``summary.md``, if it has one."""
    if text := made.text(SUMMARY):
        yield Note(made.manifest.step, text)


def curves(made: Made, first: Sequence[str] = (), axis: str = "step") -> Iterator[View]:
    """Every number in the artifact's ``metrics.jsonl`` over its ``axis``.

    Args:
        first: names of the numbers to show first, as far as they are there.
    """
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in first}
    for record in made.records(METRICS):
        at: Any = record.get(axis)
        if not _is_finite(at):
            continue
        for name, value in record.items():
            if name != axis and _is_finite(value):
                lines.setdefault(name, []).append((float(at), float(value)))
    if found := {name: points for name, points in lines.items() if points}:
        prominent = sum(name in found for name in first) or Curves.prominent
        yield Curves(made.manifest.step, axis, found, prominent)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
