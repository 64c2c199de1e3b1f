"""The live view of a run.

In a terminal it shows one line for each step: its state, where it runs, its time, and for a running
step its progress, pace and last metrics. If the DAG has more steps than the window has lines, it
shows running, failed and next steps, and counts the rest. Elsewhere (a file, CI) it prints one
plain line for each event.

The board reads the progress of a running step from the store, so it works the same wherever the
step runs. It costs the driver little: it reads the progress of running steps only, twice a second.
"""

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import TemperError
from pipeline.base.repeating import repeating
from pipeline.base.text import about, clock, cut, visible
from pipeline.dag.step import Step
from pipeline.estimate.remaining import Ahead, left_of
from pipeline.plan.planning import Plan, State, display_names
from pipeline.plan.resolver import Resolver
from pipeline.plan.unfinished import Unfinished
from pipeline.show.failures import show_failure
from pipeline.show.step_progress import Pace, parse_progress, progress_text
from pipeline.store.lease import Leases
from pipeline.store.logs import GrowingLog, newest_log
from pipeline.store.manifest import Manifest
from pipeline.store.runs import read_run

REFRESH_PER_SECOND = 4
READ_SECONDS = 0.5
PLAIN_PROGRESS_SECONDS = 15.0
MOST_ROWS = 40
"""The most rows drawn at once, even in a taller window: each row costs time at each refresh."""
MOST_WAITING = 3
"""The most waiting steps shown if there is no room for all steps."""
QUIET, NORMAL, VERBOSE = -1, 0, 1
WIDE, NARROW = 100, 60
"""From ``WIDE`` columns on, the board shows places and wide progress bars; in a window with fewer
than ``NARROW``, it leaves out the states, which have marks, and the bars."""
LEFT_SECONDS = 1.0
"""How often the remaining time is computed."""
ASK_SECONDS = 5.0
"""How often the board looks up who holds the lease of a step."""
_STYLES = {
    "done": "green", "cached": "dim", "failed": "bold red", "skipped": "yellow",
    "stopped": "yellow", "paused": "cyan",
}  # fmt: skip
_MARKS = {
    "done": "✓", "cached": "·", "failed": "✗", "skipped": "–", "stopped": "■", "paused": "‖",
}  # fmt: skip
_ENDED = tuple(_STYLES)


@dataclass
class Row:
    """One step on the board.

    Attributes:
        maker: the other run that makes this step, in words; empty if this run makes it.
        is_mine: whether this run was seen to hold the step's lease.
        said: what the plain lines last said of the running step.
    """

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
    asked: float = 0.0
    maker: str = ""
    is_mine: bool = False
    said: str = ""
    growing: GrowingLog | None = None
    log_is_printed: bool = False


class Board:
    """The live view of a run; its :meth:`observe` is the engine's observer.

    Args:
        verbosity: ``QUIET`` shows only failures; ``VERBOSE`` also shows what workers print.
        place: describes in a few words where a step runs.
        ahead: the steps that this run will make, with their estimated seconds.
        jobs: how many steps run at once.
        run: the name of the run.
    """

    def __init__(
        self,
        console: Console,
        plan: Plan,
        resolver: Resolver,
        verbosity: int = NORMAL,
        place: Callable[[Step], str] = lambda step: "local",
        ahead: Sequence[Ahead] = (),
        jobs: int = 1,
        run: str = "",
    ):
        self.console = console
        self._ahead = {step.name: step for step in ahead}
        self._jobs, self._run = jobs, run
        self._left_text, self._left_at = "", -LEFT_SECONDS
        self.resolver = resolver
        self.verbosity = verbosity
        self.started = time.monotonic()
        self._stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
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

    @property
    def paused(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state == "paused"]

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """The outcome of each step, by fingerprint, for the record of the run."""
        return {fingerprint: self.outcome(fingerprint) for fingerprint in self.rows}

    def outcome(self, fingerprint: str) -> dict[str, Any]:
        """The outcome of one step: state, seconds, place, message, and its artifact's attempt."""
        row = self.rows[fingerprint]
        outcome: dict[str, Any] = {"state": row.state, "seconds": round(row.seconds, 3)}
        if row.started:
            outcome["place"] = row.place
        if row.message:
            outcome["message"] = row.message
        # the run itself reports a store that cannot be read
        with contextlib.suppress(OSError, TemperError):
            if (made := self.resolver.artifact(row.step)) is not None:
                outcome |= {"step": made.step, "key": made.key, "attempt": made.attempt}
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
            try:
                yield
            except BaseException:
                self._mark_stopped()
                raise
            self._mark_skipped()

    def observe(self, fingerprint: str, state: str, message: str) -> None:
        """Record a step's new state, which the scheduler reports."""
        row = self.rows[fingerprint]
        if row.state in (state, "done", "cached", "failed"):
            return
        with self._lock:
            if state in ("done", "paused", "failed") and row.started:
                row.seconds = time.monotonic() - row.started
            if state == "running":
                row.started = time.monotonic()
            elif state == "done":
                made = self.resolver.artifact(row.step)
                state = "done" if made and self._is_mine(made) else "cached"
                if made and state == "cached" and (row.maker or made.attempt >= self._stamp):
                    row.message = f"made by {row.maker or self._maker_of(made)}"
            elif state == "failed":
                row.message, row.log = _failure(message)
            row.state = state
        # whether a step runs here, or waits for another run, its lease says a moment later
        if self.verbosity > QUIET and not self.live_in_terminal and state != "running":
            self._print_event(row)

    def _is_mine(self, made: Manifest) -> bool:
        if self._run:
            return made.provenance.get("run") == self._run
        return made.attempt >= self._stamp

    def _maker_of(self, made: Manifest) -> str:
        """The run that made an artifact while this run was waiting, in words."""
        with contextlib.suppress(OSError, TemperError):
            run = read_run(self.resolver.store, str(made.provenance.get("run")))
            return f"another run ({run.host}, pid {run.pid})"
        return "another run"

    # --- in a terminal -----------------------------------------------------------------------

    def renderable(self) -> Group:
        """The rows of the steps that fit the window, and a line with totals and the remaining
        time."""
        rows = list(self.rows.values())
        room = min(MOST_ROWS, max(8, self.console.size.height - 3))
        shown = rows if len(rows) <= room else _most_telling(rows, room)
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=1)
        narrowest = 12 if self._is_narrow else 20
        table.add_column(no_wrap=True, max_width=max(narrowest, self.console.size.width // 3))
        if not self._is_narrow:
            table.add_column(width=8)
        if self._shows_places:
            table.add_column(no_wrap=True)
        table.add_column(justify="right", width=7, no_wrap=True)
        # without no_wrap: a long line here would make rich shrink the columns before it
        table.add_column(ratio=1)
        for row in shown:
            table.add_row(*self._cells(row))
        return Group(table, self._total(all_shown=len(shown) == len(rows)))

    @property
    def _is_narrow(self) -> bool:
        """Leave out states, of which marks remain, and bars, so that progress has room."""
        return self.console.size.width < NARROW

    @property
    def _shows_places(self) -> bool:
        """Show where steps run if the window is wide, or if any step runs elsewhere."""
        return self.console.size.width >= WIDE or any(
            row.place not in ("", "local") for row in self.rows.values()
        )

    def _total(self, all_shown: bool) -> Text:
        """For example ``4 of 10 steps, 2m10s; about 3 min left``."""
        states = Counter(row.state for row in self.rows.values())
        made = states["done"] + states["cached"]
        parts = [f"{made} of {len(self.rows)} steps"]
        if not all_shown:
            parts = [f"{states[state]} {state}" for state in (*_ENDED, "running", "waiting")
                     if states[state]]  # fmt: skip
        elapsed = clock(time.monotonic() - self.started)
        goes_on = states["running"] or (states["waiting"] and not states["stopped"])
        left = self._left() if goes_on else ""
        return Text(f"  {', '.join(parts)}; {elapsed}{left}", "dim")

    def _left(self) -> str:
        """For example ``; about 3 min left``, for all remaining steps; computed once a second."""
        if time.monotonic() - self._left_at >= LEFT_SECONDS:
            self._left_text, self._left_at = self._work_out_left(), time.monotonic()
        return self._left_text

    def _work_out_left(self) -> str:
        ahead = [
            replace(step, seconds=self._seconds_left(row, step.seconds),
                    is_running=row.state == "running")
            for name, step in self._ahead.items()
            if (row := self.rows[name]).state in ("running", "waiting")
        ]  # fmt: skip
        left = left_of(ahead, self._jobs)
        if left.unknown == len(ahead):
            return ""
        return f"; {'more than' if left.unknown else 'about'} {about(left.seconds)} left"

    def _seconds_left(self, row: Row, foreseen: float | None) -> float | None:
        """The seconds that one step still needs: from its pace if it has one, else from its
        estimate."""
        if row.state == "running" and row.progress:
            by_pace = row.pace.left(row.progress["total"], time.monotonic())
            if by_pace:  # 0 at the end of its count, when the step still has to write its artifact
                return by_pace
        if foreseen is None:
            return None
        elapsed = time.monotonic() - row.started if row.started else 0.0
        return max(0.0, foreseen - elapsed)

    def _cells(self, row: Row) -> tuple[Any, ...]:
        name = Text(row.name, no_wrap=True, overflow="ellipsis")
        place = [Text("" if row.state == "cached" else row.place, "dim")]
        place = place if self._shows_places else []
        style = _STYLES.get(row.state, "dim")
        if row.state == "running":
            name.stylize("bold")
            seconds, progress = clock(time.monotonic() - row.started), self._progress(row)
            state = [] if self._is_narrow else ["waiting" if row.maker else "running"]
            return row.spinner, name, *state, *place, seconds, progress
        state = [] if self._is_narrow else [Text(row.state, style)]
        name.stylize(style)
        seconds = clock(row.seconds) if row.seconds else ""
        return (
            Text(_MARKS.get(row.state, " "), style), name, *state, *place, seconds,
            Text(row.message, style, no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip

    def _progress(self, row: Row) -> Any:
        progress = self._read_progress(row)
        text = Text(self._status(row), no_wrap=True, overflow="ellipsis")
        if not progress or not progress["total"] or self._is_narrow:
            return text
        width = 16 if self.console.size.width >= WIDE else 6
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(progress["total"], progress["done"], width=width), text)
        return grid

    def _status(self, row: Row) -> str:
        """The progress that a running step has written, or the other run that makes the step."""
        if maker := self._other_maker(row):
            return f"made by {maker}"
        if not row.progress:
            return "starting"
        left = row.pace.left(row.progress["total"], time.monotonic())
        left_text = f"{clock(left)} left" if left else ""
        return progress_text(row.progress, row.pace.text, left_text) or "starting"

    def _other_maker(self, row: Row) -> str:
        """The other run that holds the step's lease, in words; looked up every ``ASK_SECONDS``."""
        now = time.monotonic()
        pause = ASK_SECONDS if row.is_mine or row.maker else READ_SECONDS
        if self._run and now - row.asked > pause and (key := self._key(row)):
            row.asked = now
            store = self.resolver.store
            with contextlib.suppress(OSError, TemperError):  # as in `_read_progress`
                holder = Leases(store.objects, store.root, self._run).holder(row.step.name, key)
                if holder is not None:
                    row.is_mine = holder.run == self._run
                    other = f"another run ({holder.host}, pid {holder.pid})"
                    row.maker = "" if row.is_mine else other
        return row.maker

    def _read_progress(self, row: Row) -> Mapping[str, Any] | None:
        now = time.monotonic()
        if now - row.looked < READ_SECONDS:
            return row.progress
        row.looked = now
        store = self.resolver.store
        # the run itself reports these errors
        with contextlib.suppress(OSError, ValueError, TemperError):
            if key := self._key(row):
                data = store.read(store.progress_path(row.step.name, key))
                row.progress = parse_progress(data or b"") or row.progress
        if row.progress:
            row.pace.note(row.progress["done"], now)
        return row.progress

    def _key(self, row: Row) -> str:
        if not row.key and (resolved := self.resolver.current_key_and_recipe(row.step)):
            row.key = resolved[0]
        return row.key

    # --- plain lines -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _regularly(self, look: Callable[[], None]) -> Iterator[None]:
        try:
            with repeating(1.0, look, "board"):
                yield
        finally:
            look()

    def _print_what_is_new(self) -> None:
        for row in list(self.rows.values()):
            if row.state == "running" and not self.live_in_terminal:
                self._print_progress(row)
            if self.verbosity >= VERBOSE and row.started and not row.log_is_printed:
                self._print_log(row)

    def _print_progress(self, row: Row) -> None:
        now = time.monotonic()
        maker, progress = self._other_maker(row), self._read_progress(row)
        said = f"waits for {maker}" if maker else self._start_of(row)
        if row.said != said and (row.is_mine or maker or not self._run):
            row.said = said
            self._print(f"{row.name}: {said}")
        if now - max(row.printed, row.started) < PLAIN_PROGRESS_SECONDS:
            return
        if status := self._status(row) if progress or row.maker else "":
            row.printed = now
            self._print(f"{row.name}: {status}")

    def _print_event(self, row: Row) -> None:
        at = f" in {clock(row.seconds)}" if row.state == "done" else ""
        is_said = bool(row.said) or row.state not in ("done", "failed") or row.place == "local"
        where = "" if is_said else f" ({row.place})"
        message = f": {row.message}" if row.message else ""
        self._print(f"{row.name}: {row.state}{at}{where}{message}")

    def _start_of(self, row: Row) -> str:
        is_job = row.place.partition(",")[0] not in ("", "local")  # it may have to wait
        return f"{'submitted' if is_job else 'running'} ({row.place})"

    def _print_log(self, row: Row) -> None:
        """Print what the worker has written to its log since the last look, also to earlier
        tries."""
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
        row.log_is_printed = over

    def _print_lines(self, row: Row, lines: Iterable[str]) -> None:
        for line in lines:
            self._print(f"{row.name} | {cut(visible(line))}")

    def _print(self, line: str) -> None:
        elapsed = clock(time.monotonic() - self.started)
        self.console.print(f"[{elapsed}] {line}", markup=False, highlight=False, soft_wrap=True)

    # --- after the run -----------------------------------------------------------------------

    def _mark_skipped(self) -> None:
        if not self.failed:
            return
        for row in self.rows.values():
            if row.state == "waiting":
                row.state, row.message = "skipped", "needs a step that failed"

    def _mark_stopped(self) -> None:
        """Mark running steps as stopped, with their progress and whether a checkpoint keeps it."""
        for row in self.rows.values():
            if row.state != "running":
                continue
            row.looked = 0.0
            progress = self._read_progress(row)
            row.seconds = time.monotonic() - row.started
            reached = f"at {progress_text({**progress, 'metrics': {}, 'doing': ''})}" if (
                progress and progress["done"]
            ) else ""  # fmt: skip
            kept, _ = Unfinished(self.resolver.store).of(row.step.name, self._key(row))
            row.state = "stopped"
            row.message = ", ".join(filter(None, (reached, "saved" if kept else "nothing saved")))

    def show_failures(self, again: Callable[[str], str] | None = None) -> None:
        """Print what went wrong in each failed step; see :mod:`pipeline.show.failures`.

        Args:
            again: makes the command that runs only the step with this name.
        """
        for row in self.failed:
            command = None
            if again is not None and (key := self._key(row)):
                command = again(f"{row.step.name}@{key[:8]}")
            show_failure(self.console, self.resolver.store, row.name, row.message, row.log, command)

    def show_lines(self, lines: Iterable[str]) -> None:
        """Print further lines at the end of the run, for example those of the sinks."""
        for line in lines if self.verbosity > QUIET else ():
            self.console.print(Text(visible(cut(line)), "dim"), soft_wrap=True)


def _most_telling(rows: Sequence[Row], room: int) -> list[Row]:
    """The steps to show if there is no room for all, in the order of the plan: running and failed
    steps, the next ones, and the last that ended."""
    by_state = {state: [r for r in rows if r.state == state] for state in ("failed", "running")}
    waiting = [row for row in rows if row.state == "waiting"][:MOST_WAITING]
    chosen = [*by_state["running"], *by_state["failed"], *waiting][: room - 1]
    ended = [row for row in rows if row.state in ("done", "skipped")]
    ended.sort(key=lambda row: row.started + row.seconds)
    left = room - 1 - len(chosen)
    kept = {row.step.fingerprint for row in (*chosen, *(ended[-left:] if left else []))}
    return [row for row in rows if row.step.fingerprint in kept]


def _failure(message: str) -> tuple[str, str]:
    """Splits the message that ``StepTask.on_failure`` sends: one line of text, and the log's
    path."""
    with contextlib.suppress(ValueError):
        message = json.loads(message)
    text, _, log = message.rpartition("\n")
    return visible(cut(text or message)), log
