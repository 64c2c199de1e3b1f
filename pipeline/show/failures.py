"""Prints, at the end of a run, what went wrong in each failed step and what to do: one sentence.

The traceback stays in the step's log. For a bug in project code, the frames of that code follow the
sentence. If a worker died without a report, the end of its log follows.
"""

import contextlib

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pipeline.base.errors import TemperError
from pipeline.base.text import cut, visible
from pipeline.store.layout import Store
from pipeline.store.logs import tail
from pipeline.wire.spec import Report


def show_failure(
    console: Console, store: Store, name: str, message: str, log: str, again: str | None = None
) -> None:
    """Print what went wrong in one step, where its log is, and the command that runs it again.

    Args:
        log: path of the attempt's log; empty if there was no attempt.
        again: the command that runs only this step.
    """
    heading = Text.assemble(("✗ ", "bold red"), (name, "bold red"), f": {message}")
    console.print()
    console.print(heading, soft_wrap=True)
    if log:
        lines = _details(store, log)
        details = Text("\n".join(visible(cut(line)) for line in lines), "dim")
        if lines:
            console.print(Padding(details, (0, 0, 0, 4), expand=False))
        _point_to(console, "whole log", store.url_of(log))
    if again is not None:
        _point_to(console, "only this step, again", again)


def _details(store: Store, log: str) -> list[str]:
    """Lines from the attempt's report, or the end of its log if there is no report."""
    with contextlib.suppress(OSError, TemperError):
        if (data := store.read(f"{log.rpartition('/')[0]}/report.json")) is not None:
            return list(Report.from_json(data).excerpt)
    return tail(store, log)


def _point_to(console: Console, what: str, where: str) -> None:
    console.print(f"  {what}: {where}", markup=False, highlight=False, soft_wrap=True)
