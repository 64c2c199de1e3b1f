"""Compares the metrics logs of two artifacts: where they part, and how far; and their items."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.show.metrics import is_number

ITEMS = "answers.jsonl"
"""The file in which a step records what each ``row`` got; items are compared where it differs."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Parting:
    """A metric that differs between two logs.

    Attributes:
        at: the first step at which it differs.
        old, new: its values there; ``None`` if a log has no such value.
        absolute: the largest |new − old| over all steps; ``None`` if no two values are numbers.
        relative: the largest |new − old| / max(|old|, |new|) over all steps.

    Both are infinite where a value is not finite.
    """

    metric: str
    at: Any
    old: Any
    new: Any
    absolute: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class LogDiff:
    """
    Attributes:
        axis: what the records count, such as ``step``.
        shared: how many steps both logs have.
        ends: the last step of each log.
        partings: the metrics that differ at shared steps, those that differ first come first.
    """

    axis: str
    shared: int
    ends: tuple[Any, Any]
    partings: Sequence[Parting]


def diff_logs(old: Sequence[Record], new: Sequence[Record]) -> LogDiff | None:
    """Compare two logs, whose records begin with the step that they are about; ``None`` if one of
    them is empty or if they count different things."""
    axes = {next(iter(record), None) for record in (*old[:1], *new[:1])}
    if not old or not new or len(axes) > 1 or (axis := axes.pop()) is None:
        return None
    ours, theirs = ({record.get(axis): record for record in log} for log in (old, new))
    shared = [at for at in ours if at in theirs]
    values: dict[str, list[tuple[Any, Any, Any]]] = {}
    for at in shared:
        for name in {**ours[at], **theirs[at]}:
            one, other = ours[at].get(name), theirs[at].get(name)
            if not _same(one, other):
                values.setdefault(name, []).append((at, one, other))
    places = {at: number for number, at in enumerate(shared)}
    partings = sorted((_parting(*item) for item in values.items()), key=lambda p: places[p.at])
    return LogDiff(axis, len(shared), (old[-1].get(axis), new[-1].get(axis)), partings)


@dataclass(frozen=True)
class Flip:
    """A number of an item, such as a score of an answer, that two artifacts have differently."""

    row: str
    name: str
    old: float
    new: float


def flips(old: Sequence[Record], new: Sequence[Record]) -> list[Flip]:
    """The numbers that differ in records of the same ``row``, in the order of `old`."""
    theirs = {record["row"]: record for record in new if "row" in record}
    return [
        Flip(str(record["row"]), name, value, other)
        for record in old
        if "row" in record and record["row"] in theirs
        for name, value in record.items()
        if is_number(value) and is_number(other := theirs[record["row"]].get(name))
        if not _same(value, other)
    ]


def _same(one: Any, other: Any) -> bool:
    both_nan = all(isinstance(value, float) and math.isnan(value) for value in (one, other))
    return both_nan or (one == other and type(one) is type(other))


def _parting(metric: str, values: Sequence[tuple[Any, Any, Any]]) -> Parting:
    apart = [_apart(one, other) for _, one, other in values if is_number(one) and is_number(other)]
    if not apart:
        return Parting(metric, *values[0])
    return Parting(metric, *values[0], *map(max, zip(*apart, strict=True)))


def _apart(one: float, other: float) -> tuple[float, float]:
    if not math.isfinite(one) or not math.isfinite(other):
        return math.inf, math.inf
    distance, size = abs(other - one), max(abs(one), abs(other))
    return distance, distance / size if size else 0.0
