"""The most time that a run may take: ``budget="2h"``.

A plan that takes longer by its estimate does not start. A run that has taken so long stops as with
Ctrl-C: workers save their scratch, and the next run goes on from there.
"""

import contextlib
import re
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.base.errors import TemperError
from pipeline.base.text import about
from pipeline.plan.planning import Plan

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of it
    from pipeline.estimate.estimates import Estimates

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_PART = r"(\d+(?:\.\d+)?)\s*(min|[smhd])\s*"


class OverBudget(TemperError):
    """The run would take longer than its budget, or has done so; what is done is in the store."""

    status = 4


class _OutOfTime(KeyboardInterrupt):
    """Ends the run as Ctrl-C does."""


def seconds_of(budget: str) -> float:
    """
    Raises:
        TemperError: it is no duration.
    """
    text = str(budget).strip()
    if not re.fullmatch(f"({_PART})+", text):
        raise TemperError(f"budget={text}: write a duration, as in 90m, 2h or 1h30m")
    return sum(float(amount) * _UNITS[unit] for amount, unit in re.findall(_PART, text))


def require_within(
    budget: str | None, plan: Plan, estimates: "Estimates | None", jobs: int
) -> None:
    """
    Raises:
        OverBudget: the plan takes longer, by the estimates of those steps that have one.
    """
    from pipeline.estimate.remaining import left_of

    if budget is None or estimates is None:
        return
    seconds, unknown = left_of(estimates.ahead(plan), jobs)
    if seconds > seconds_of(budget):
        least = "at least" if unknown else "about"
        raise OverBudget(
            f"the plan takes {least} {about(seconds)}, and budget={budget}: raise it, or leave "
            "something out; nothing has run"
        )


@contextlib.contextmanager
def held(budget: str | None) -> Iterator[None]:
    """Stop the block when it has taken so long.

    Raises:
        OverBudget: it was stopped.
    """
    if budget is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise TemperError("only a run of the main thread can have a budget; leave budget out")

    def stop(*_: object) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds_of(budget), 0.001))
    try:
        yield
    except _OutOfTime:
        raise OverBudget(f"budget={budget} is used up; what is done is kept, run again") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
