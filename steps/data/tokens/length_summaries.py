"""Summaries of sequence lengths: exact quantiles, a plain-text histogram, and an estimate of how
well rows would fill packed sequences of a fixed length."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

BARS, WIDTH = 10, 40


def quantiles(lengths: Mapping[int, int]) -> dict[str, float]:
    """`mean`, `median`, `p95` and `max` of lengths; `lengths` maps each length to its count."""
    total = sum(lengths.values())
    if not total:
        return {}
    return {
        "mean": round(sum(length * count for length, count in lengths.items()) / total, 1),
        "median": _quantile(lengths, 0.5),
        "p95": _quantile(lengths, 0.95),
        "max": max(lengths),
    }


def plot(title: str, lengths: Mapping[int, int]) -> str:
    """A histogram as a Markdown code block, in at most ten bars of equal span."""
    return "\n".join(["```text", title, *_bars(lengths), "```"]) + "\n"


def _quantile(lengths: Mapping[int, int], share: float) -> int:
    ordered = sorted(lengths.items())
    needed = share * sum(lengths.values())
    reached = accumulate(count for _, count in ordered)
    return next(length for (length, _), so_far in zip(ordered, reached, strict=True)
                if so_far >= needed)  # fmt: skip


def _bars(lengths: Mapping[int, int]) -> Iterator[str]:
    if not lengths:
        return
    span = _span(max(lengths))
    bins = Counter[int]()
    for length, count in lengths.items():
        bins[length // span] += count
    tallest = max(bins.values())
    digits, places = len(str((max(bins) + 1) * span)), len(str(tallest))
    for index in range(min(bins), max(bins) + 1):
        count = bins[index]
        bar = "█" * round(WIDTH * count / tallest) or ("▏" if count else "")
        first, last = index * span, (index + 1) * span - 1
        yield f"{first:>{digits}} to {last:>{digits}}  {count:>{places}}  {bar}".rstrip()


def _span(longest: int) -> int:
    """The smallest round bin width for which ten bins cover the longest length."""
    power = 1
    while True:
        for step in (1, 2, 5):
            if BARS * step * power > longest:
                return step * power
        power *= 10


@dataclass(frozen=True)
class Packing:
    """Sequences of `room` tokens that hold `tokens` tokens of `rows` rows."""

    room: int
    rows: int
    tokens: int
    sequences: int

    @property
    def filled(self) -> float:
        """The share of the sequences that is not padding."""
        return self.tokens / (self.room * self.sequences) if self.sequences else 0.0

    @property
    def filled_unpacked(self) -> float:
        """The same with a sequence for every row."""
        return self.tokens / (self.room * self.rows) if self.rows else 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows} rows of {self.tokens} tokens fit into {self.sequences} sequences of "
            f"{self.room} tokens, {self.filled:.1%} full; one row a sequence: "
            f"{self.filled_unpacked:.1%}"
        )


def packed(lengths: Mapping[int, int], room: int) -> Packing:
    """Pack rows; `lengths` maps each length to its number of rows. A row longer than `room` counts
    as one full sequence.

    The method is best-fit decreasing: from the longest row on, each row goes where it leaves the
    least room. Rows of equal length are placed together, so the cost depends on the number of
    distinct lengths, not of rows.
    """
    left, sequences = Counter[int](), 0
    for length in sorted(lengths, reverse=True):
        size, waiting = min(length, room), lengths[length]
        while waiting:
            fits = [space for space in left if space >= size and left[space]]
            if not fits:
                per = room // size if size else waiting
                whole, rest = divmod(waiting, per)
                sequences += whole + bool(rest)
                left[room - per * size] += whole
                left[room - rest * size] += bool(rest)
                break
            space = min(fits)
            each = min(space // size if size else waiting, waiting)
            used = min(left[space], waiting // each)
            left[space] -= used
            left[space - each * size] += used
            waiting -= used * each
    tokens = sum(min(length, room) * count for length, count in lengths.items())
    return Packing(room, sum(lengths.values()), tokens, sequences)
