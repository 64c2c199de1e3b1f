"""What is said of a step that failed, once the run is over: one sentence that says what to do.

The traceback stays in the step's log. Of a bug in project code, the frames of that code follow; of
a worker that died without a word, the end of its log, which is all that there is.
"""

import contextlib

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from pipeline.errors import TemperError
from pipeline.store.layout import Store
from pipeline.store.logs import tail
from pipeline.text import cut, visible
from pipeline.wire.spec import Report


def show_failure(
    console: Console, store: Store, name: str, message: str, log: str, again: str | None = None
) -> None:
    """Say of one step what went wrong, where its whole log is, and how to try it alone.

    Args:
        log: path of the attempt's log; empty where no attempt was made.
        again: the command that runs only this step.
    """
    heading = Text.assemble(("✗ ", "bold red"), (name, "bold red"), f": {message}")
    console.print()
    console.print(heading, soft_wrap=True)
    if log:
        lines = _details(store, log)
        told = Text("\n".join(visible(cut(line)) for line in lines), "dim")
        if lines:
            console.print(Padding(told, (0, 0, 0, 4), expand=False))
        _point_to(console, "whole log", store.url_of(log))
    if again is not None:
        _point_to(console, "only this step, again", again)


def _details(store: Store, log: str) -> list[str]:
    """What else there is to show of a failed attempt."""
    with contextlib.suppress(OSError, TemperError):
        if (data := store.read(f"{log.rpartition('/')[0]}/report.json")) is not None:
            return list(Report.from_json(data).excerpt)
    return tail(store, log)


def _point_to(console: Console, what: str, where: str) -> None:
    console.print(f"  {what}: {where}", markup=False, highlight=False, soft_wrap=True)
