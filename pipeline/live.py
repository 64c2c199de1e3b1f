"""How a run looks while it works.

In a terminal: one line a step with its state, where it runs, its time, and for a running step its
own progress, pace and last metrics. A DAG with more steps than the window has lines is told in
short: what runs, what failed, what is next, and how many there are of the rest. Elsewhere (a file,
CI): one plain line an event.

The board reads how far a running step is from the store, so it looks the same wherever the step
runs. It costs the driver little: running steps alone are looked at, and twice a second.
"""

import contextlib
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipeline.board import clock, cut, display_names, parse_progress, progress_text, visible
from pipeline.errors import TemperError
from pipeline.logs import GrowingLog, newest_log, tail
from pipeline.plan import Plan, Resolver, State
from pipeline.step import Step

REFRESH_PER_SECOND = 4
READ_SECONDS = 0.5
PLAIN_PROGRESS_SECONDS = 15.0
PACE_SECONDS = 60.0
"""Over how much of the recent past a pace is taken."""
MOST_ROWS = 40
"""Drawn at once, however tall the window is: a line costs time at each refresh."""
MOST_WAITING = 3
"""Of steps whose turn has not come, when there is no room for all."""
QUIET, NORMAL, VERBOSE = -1, 0, 1
_STYLES = {"done": "green", "cached": "dim", "failed": "bold red", "skipped": "yellow"}
_MARKS = {"done": "✓", "cached": "·", "failed": "✗", "skipped": "–"}
_ENDED = ("done", "cached", "failed", "skipped")


class Pace:
    """How fast a step gets on, from what was seen of it lately."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, done: float, now: float) -> None:
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # begun anew
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

    def text(self, total: float | None) -> str:
        """As in ``2.5/s, 12s left``, or ``8.0s each`` where one takes longer than a second."""
        rate = self.per_second
        if not rate:
            return ""
        pace = f"{rate:.3g}/s" if rate >= 1 else f"{clock(1 / rate)} each"
        if total is None:
            return pace
        left = max(0.0, total - self._seen[-1][1]) / rate
        return f"{pace}, {clock(left)} left"


@dataclass
class Row:
    """One step on the board."""

    step: Step
    name: str
    place: str
    state: str = "waiting"
    message: str = ""
    log: str = ""
    started: float = 0.0
    seconds: float = 0.0
    key: str = ""
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    progress: Mapping[str, Any] | None = None
    pace: Pace = field(default_factory=Pace)
    looked: float = 0.0
    printed: float = 0.0
    growing: GrowingLog | None = None
    log_is_told: bool = False


class Board:
    """The live view of a run; its :meth:`observe` is the engine's observer.

    Args:
        verbosity: ``QUIET`` shows failures alone; ``VERBOSE`` also what workers print.
        place: where a step runs, in few words.
    """

    def __init__(
        self,
        console: Console,
        plan: Plan,
        resolver: Resolver,
        verbosity: int = NORMAL,
        place: Callable[[Step], str] = lambda step: "local",
    ):
        self.console = console
        self.resolver = resolver
        self.verbosity = verbosity
        self.started = time.time()
        self._stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.started))
        names = display_names(plan)
        self.rows = {
            planned.step.fingerprint: Row(
                planned.step,
                visible(names[planned.step.fingerprint]),
                place(planned.step),
                "cached" if planned.state is State.CACHED else "waiting",
                key=planned.key or "",
            )
            for planned in plan.steps
        }
        self.names = {fingerprint: row.name for fingerprint, row in self.rows.items()}
        self._lock = threading.Lock()

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "failed"]

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """How each step went, by fingerprint, for the record of the run."""
        return {fingerprint: self._outcome(row) for fingerprint, row in self.rows.items()}

    def _outcome(self, row: Row) -> dict[str, Any]:
        outcome: dict[str, Any] = {"state": row.state, "seconds": round(row.seconds, 3)}
        if row.started:
            outcome["place"] = row.place
        if row.message:
            outcome["message"] = row.message
        # what cannot be read, the run has said
        with contextlib.suppress(OSError, TemperError):
            if (made := self.resolver.artifact(row.step)) is not None:
                outcome |= {"key": made.key, "attempt": made.attempt}
        return outcome

    @property
    def live_in_terminal(self) -> bool:
        return self.console.is_terminal and not self.console.is_dumb_terminal

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Show the run until the block ends."""
        with contextlib.ExitStack() as stack:
            if self.verbosity > QUIET and self.live_in_terminal:
                view = Live(
                    get_renderable=self.renderable,
                    console=self.console,
                    refresh_per_second=REFRESH_PER_SECOND,
                )
                stack.enter_context(view)
            if self.verbosity > QUIET:
                stack.enter_context(self._regularly(self._print_what_is_new))
            yield
        self._mark_skipped()

    def observe(self, fingerprint: str, state: str, message: str) -> None:
        """Take note of a step's new state, told by the scheduler."""
        row = self.rows[fingerprint]
        if row.state in (state, "done", "cached", "failed"):
            return
        with self._lock:
            if state == "running":
                row.started = time.time()
            elif state == "done":
                row.seconds = time.time() - row.started if row.started else 0.0
                made = self.resolver.artifact(row.step)
                state = "done" if made and made.attempt >= self._stamp else "cached"
            elif state == "failed":
                row.seconds = time.time() - row.started if row.started else 0.0
                row.message, row.log = _failure(message)
            row.state = state
        if self.verbosity > QUIET and not self.live_in_terminal:
            self._print_event(row)

    # --- in a terminal -----------------------------------------------------------------------

    def renderable(self) -> Group:
        """The steps as they are now, as far as there is room, and how many there are of each."""
        rows = list(self.rows.values())
        room = min(MOST_ROWS, max(8, self.console.size.height - 3))
        shown = rows if len(rows) <= room else _most_telling(rows, room)
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=2)
        table.add_column(no_wrap=True, max_width=max(20, self.console.size.width // 2))
        table.add_column(width=8)
        table.add_column(no_wrap=True)
        table.add_column(justify="right", width=7, no_wrap=True)
        # not no_wrap: a long line here would make rich shrink the columns before it
        table.add_column(ratio=1)
        for row in shown:
            table.add_row(*self._cells(row))
        return Group(table, *([] if len(shown) == len(rows) else [self._counts()]))

    def _counts(self) -> Text:
        states = Counter(row.state for row in self.rows.values())
        parts = [f"{count} {state}" for state in (*_ENDED, "running", "waiting")
                 if (count := states[state])]  # fmt: skip
        return Text(f"   {', '.join(parts)}; {clock(time.time() - self.started)}", "dim")

    def _cells(self, row: Row) -> tuple[Any, ...]:
        name = Text(row.name, no_wrap=True, overflow="ellipsis")
        place = Text("" if row.state == "cached" else row.place, "dim")
        if row.state == "running":
            name.stylize("bold")
            seconds = clock(time.time() - row.started)
            return row.spinner, name, "running", place, seconds, self._progress(row)
        style = _STYLES.get(row.state, "dim")
        name.stylize(style)
        seconds = clock(row.seconds) if row.seconds else ""
        return (
            Text(_MARKS.get(row.state, " "), style), name, Text(row.state, style), place, seconds,
            Text(row.message, style, no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip

    def _progress(self, row: Row) -> Any:
        progress = self._read_progress(row)
        if not progress:
            return Text("starting", "dim")
        told = progress_text(progress, row.pace.text(progress["total"]))
        text = Text(told, no_wrap=True, overflow="ellipsis")
        if not progress["total"]:
            return text
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(progress["total"], progress["done"], width=16), text)
        return grid

    def _read_progress(self, row: Row) -> Mapping[str, Any] | None:
        now = time.monotonic()
        if now - row.looked < READ_SECONDS:
            return row.progress
        row.looked = now
        store = self.resolver.store
        # what is wrong, the run will say
        with contextlib.suppress(OSError, ValueError, TemperError):
            if key := self._key(row):
                data = store.read(store.progress_path(row.step.name, key))
                row.progress = parse_progress(data or b"") or row.progress
        if row.progress:
            row.pace.note(row.progress["done"], now)
        return row.progress

    def _key(self, row: Row) -> str:
        if not row.key:
            with contextlib.suppress(OSError, TemperError):  # what is wrong, the run will say
                if resolved := self.resolver.current_key_and_recipe(row.step):
                    row.key = resolved[0]
        return row.key

    # --- plain lines -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _regularly(self, look: Callable[[], None]) -> Iterator[None]:
        stop = threading.Event()

        def report() -> None:
            while not stop.wait(1.0):
                look()

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            look()

    def _print_what_is_new(self) -> None:
        for row in list(self.rows.values()):
            if row.state == "running" and not self.live_in_terminal:
                self._print_progress(row)
            if self.verbosity >= VERBOSE and row.started and not row.log_is_told:
                self._print_log(row)

    def _print_progress(self, row: Row) -> None:
        now = time.time()
        progress = self._read_progress(row)
        if now - max(row.printed, row.started) < PLAIN_PROGRESS_SECONDS:
            return
        if progress:
            row.printed = now
            self._print(f"{row.name}: {progress_text(progress, row.pace.text(progress['total']))}")

    def _print_event(self, row: Row) -> None:
        at = {"done": f" in {clock(row.seconds)}", "running": f" ({row.place})"}.get(row.state, "")
        message = f": {row.message}" if row.message else ""
        self._print(f"{row.name}: {row.state}{at}{message}")

    def _print_log(self, row: Row) -> None:
        """What the worker has printed since the last look, and those of earlier tries."""
        store, over = self.resolver.store, row.state != "running"
        with contextlib.suppress(OSError, TemperError):
            path = newest_log(store, row.step.name, self._key(row), since=self._stamp)
            if row.growing and path != row.growing.path:  # another try has begun
                self._print_lines(row, row.growing.rest())
                row.growing = None
            if path and row.growing is None:
                row.growing = GrowingLog(store, path)
            if row.growing:
                self._print_lines(row, row.growing.rest() if over else row.growing.new_lines())
        row.log_is_told = over

    def _print_lines(self, row: Row, lines: Iterable[str]) -> None:
        for line in lines:
            self._print(f"{row.name} | {cut(visible(line))}")

    def _print(self, line: str) -> None:
        elapsed = clock(time.time() - self.started)
        self.console.print(f"[{elapsed}] {line}", markup=False, highlight=False, soft_wrap=True)

    # --- after the run -----------------------------------------------------------------------

    def _mark_skipped(self) -> None:
        if not self.failed:
            return
        for row in self.rows.values():
            if row.state == "waiting":
                row.state, row.message = "skipped", "needs a step that failed"

    def show_failures(self, again: Callable[[str], str] | None = None) -> None:
        """For each failed step: what went wrong, the end of its log, where the whole log is, and
        what to type to try it alone.

        Args:
            again: the command that runs only the step which is called so.
        """
        for row in self.failed:
            self.console.print(f"\n[bold red]✗ {escape(row.name)}[/]: {escape(row.message)}")
            if row.log:
                lines = tail(self.resolver.store, row.log)
                told = Text("\n".join(visible(cut(line)) for line in lines), "dim")
                self.console.print(Padding(told, (0, 0, 0, 4), expand=False))
                self._point_to("whole log", self.resolver.store.url_of(row.log))
            if again is not None and (key := self._key(row)):
                self._point_to("only this step, again", again(f"{row.step.name}@{key[:8]}"))

    def show_lines(self, lines: Iterable[str]) -> None:
        """What others have to say at the end."""
        for line in lines if self.verbosity > QUIET else ():
            self.console.print(Text(visible(cut(line)), "dim"), soft_wrap=True)

    def _point_to(self, what: str, where: str) -> None:
        self.console.print(f"  {what}: {where}", markup=False, highlight=False, soft_wrap=True)


def _most_telling(rows: Sequence[Row], room: int) -> list[Row]:
    """As many steps as there is room for, in the order of the plan: those that failed or run, the
    next ones, and the last that ended."""
    by_state = {state: [r for r in rows if r.state == state] for state in ("failed", "running")}
    waiting = [row for row in rows if row.state == "waiting"][:MOST_WAITING]
    chosen = [*by_state["running"], *by_state["failed"], *waiting][: room - 1]
    ended = [row for row in rows if row.state in ("done", "skipped")]
    ended.sort(key=lambda row: row.started + row.seconds)
    left = room - 1 - len(chosen)
    kept = {row.step.fingerprint for row in (*chosen, *(ended[-left:] if left else []))}
    return [row for row in rows if row.step.fingerprint in kept]


def _failure(message: str) -> tuple[str, str]:
    """The one-line message and the log's path that ``StepTask.on_failure`` joined."""
    with contextlib.suppress(ValueError):
        message = json.loads(message)
    text, _, log = message.rpartition("\n")
    return visible(cut(text or message)), log
