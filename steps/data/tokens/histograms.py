"""Statistics of sequence lengths: exact quantiles and a plain-text histogram."""

from collections import Counter
from collections.abc import Iterator, Mapping
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
