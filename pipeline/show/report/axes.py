"""Axes of plots, linear or logarithmic: they map values to coordinates and choose tick labels."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_LARGEST = 1e280  # differences between larger values overflow
_ROOM = 0.05
_SAME = 1e-12
"""Relative; two values that are closer than this are drawn at one place."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_SHORTENED_FROM = 1e4


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, room: float = _ROOM) -> "Axis":
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
        room = (last - first) * _ROOM if last - first > _SAME else 0.3
        return replace(self, low=10 ** (first - room), high=10 ** (last + room), logarithmic=True)

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        value, low, high = _bounded(value), self.low, self.high
        if self.logarithmic:
            value, low, high = math.log10(max(value, low)), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round values on the axis, each with its label."""
        if self.logarithmic and len(found := list(self._decades())) > 1:
            return [(value, short(value)) for value in found]
        step = _round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [(i * step, short(i * step, step)) for i in range(first, last + 1)]

    def _decades(self) -> Iterator[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        every = max(1, (last - first) // 4)
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        for power in range(first, last + 1, every):
            for factor in factors:
                if self.low <= (value := factor * 10.0**power) <= self.high:
                    yield value


def short(value: float, step: float | None = None) -> str:
    """A number as a tick label: ``0.05``, ``12k``, ``2e-05``; `step` sets the number of digits."""
    if value == 0:
        return "0"
    size = abs(value)
    for unit, suffix in _SUFFIXES:
        if _SHORTENED_FROM <= size < 1e12 and size >= unit:
            return f"{value / unit:.4g}{suffix}"
    if size < 1e-4 or size >= 1e12:
        return f"{value:.3g}"
    if step is None:
        return f"{value:.4g}"
    text = f"{value:.{max(0, 2 - math.floor(math.log10(step)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = [_bounded(value) for value in values]
    return min(known, default=0.0), max(known, default=1.0)


def _bounded(value: float) -> float:
    """The value, clamped to a range in which arithmetic neither overflows nor underflows."""
    return 0.0 if abs(value) < 1 / _LARGEST else min(max(value, -_LARGEST), _LARGEST)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in _STEPS if factor * power >= rough * 0.999)
