"""Estimates how long a run still takes, by simulating the schedule of its steps."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Ahead:
    """A step that is running or will run: its name, the seconds that it still takes (``None`` if
    unknown), and the names of the steps before it."""

    name: str
    seconds: float | None
    needs: frozenset[str] = frozenset()
    is_running: bool = False


class Left(NamedTuple):
    """The seconds left, and how many steps have no estimate and count as 0 s."""

    seconds: float
    unknown: int


def left_of(steps: Iterable[Ahead], jobs: int) -> Left:
    """Simulate steps of which `jobs` run at once, each as soon as possible, in their order.

    Args:
        steps: inputs before the steps that need them. A needed step that is missing here is done.
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
