"""How long a run still takes: its steps laid out over those that may run at once."""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ahead:
    """A step that is running or has still to run.

    Attributes:
        seconds: that it still takes; ``None`` if nobody knows.
        needs: the names of steps that come before it.
    """

    name: str
    seconds: float | None
    needs: frozenset[str] = frozenset()
    is_running: bool = False


@dataclass(frozen=True)
class Left:
    """Seconds that are left, and of how many steps nobody knows: these are counted as nothing."""

    seconds: float
    unknown: int

    @property
    def is_complete(self) -> bool:
        return self.unknown == 0


def left_of(steps: Iterable[Ahead], jobs: int) -> Left:
    """How long steps take of which so many run at once, each as soon as it can, in their order.

    Args:
        steps: inputs before what needs them; what a step needs and is not among them is there.
    """
    ahead = {step.name: step for step in steps}
    waiting: dict[str, set[str]] = {n: set(s.needs & ahead.keys()) for n, s in ahead.items()}
    followers: dict[str, list[str]] = {}
    for name, needs in waiting.items():
        for needed in needs:
            followers.setdefault(needed, []).append(name)
    order = {name: number for number, name in enumerate(ahead)}
    ready = [(not s.is_running, order[n], n) for n, s in ahead.items() if not waiting[n]]
    heapq.heapify(ready)
    busy: list[tuple[float, int, str]] = []
    now = 0.0
    while ready or busy:
        while ready and len(busy) < jobs:
            _, number, name = heapq.heappop(ready)
            heapq.heappush(busy, (now + (ahead[name].seconds or 0.0), number, name))
        now, _, ended = heapq.heappop(busy)
        for name in followers.get(ended, ()):
            waiting[name].discard(ended)
            if not waiting[name]:
                heapq.heappush(ready, (True, order[name], name))
    return Left(now, sum(step.seconds is None for step in ahead.values()))


def learned(taken: Mapping[str, float], foreseen: Mapping[str, float]) -> float:
    """By what to multiply what is foreseen of the steps to come, told by those that have ended in
    this run: what all of them took, against what had been foreseen. Never more than tenfold."""
    both = taken.keys() & foreseen.keys()
    expected = sum(foreseen[name] for name in both)
    if not expected:
        return 1.0
    # as if ten seconds had gone as foreseen: a short step does not tell of a long one
    return min(10.0, max(0.1, (sum(taken[n] for n in both) + 10) / (expected + 10)))
