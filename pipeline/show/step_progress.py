"""The progress that a running step has written, as one line of text, and the step's pace."""

import itertools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from pipeline.base.text import clock, cut, visible
from pipeline.store.layout import Store
from pipeline.store.untrusted_input import parse_json

LONGEST_ACTIVITY = 80
MOST_METRICS = 40
PACE_SECONDS = 60.0
"""The pace of a step is measured over this period."""


def parse_progress(data: bytes) -> Mapping[str, Any] | None:
    """The progress that a step has written; ``None`` if the data is empty or damaged."""
    try:
        progress = parse_json(data)
        done, total, metrics = progress["done"], progress["total"], progress.get("metrics", {})
        doing = progress.get("doing", "")
        if all(map(math.isfinite, (done, total or 0))) and isinstance(metrics, dict):
            activity = visible(cut(doing, LONGEST_ACTIVITY)) if isinstance(doing, str) else ""
            return {"done": done, "total": total, "metrics": metrics, "doing": activity}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass
    return None


def progress_of(store: Store, step: str, key: str) -> str:
    """The progress that a step has written, as text; empty if it has written none."""
    progress = parse_progress(store.read(store.progress_path(step, key)) or b"")
    return progress_text(progress) if progress else ""


def progress_text(progress: Mapping[str, Any], pace: str = "", left: str = "") -> str:
    """Progress as one line, the most important first: time left, current activity, loss, count,
    pace, then the other metrics."""
    done, total, metrics = progress["done"], progress["total"], dict(progress["metrics"])
    count = f"{done:g}/{total:g}" if total else f"{done:g}" if done else ""
    loss = {"loss": metrics.pop("loss")} if "loss" in metrics else {}
    rest = itertools.islice(metrics.items(), MOST_METRICS)
    parts = [
        left,
        progress["doing"],
        *(f"{name} {_number(value)}" for name, value in loss.items()),
        count,
        pace,
        *(f"{name} {_number(value)}" for name, value in rest),
    ]
    return cut("  ".join(filter(None, parts)))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Pace:
    """The speed of a step, from its progress over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, done: float, now: float) -> None:
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # the step started again
        if not self._seen or done > self._seen[-1][1]:
            self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > PACE_SECONDS:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else None

    @property
    def text(self) -> str:
        """For example ``2.5/s``, or ``8.0s each`` if one unit takes longer than a second."""
        rate = self.per_second
        if not rate:
            return ""
        return f"{rate:.3g}/s" if rate >= 1 else f"{clock(1 / rate)} each"

    def left(self, total: float | None, now: float) -> float | None:
        """Seconds until ``total`` is reached; ``None`` while the pace is unknown."""
        rate = self.per_second
        if not rate or not total:
            return None
        since, done = self._seen[-1]
        return max(0.0, (total - done) / rate - (now - since))
