"""How a run looks in the terminal: the plan, the live view, the failures, the results.

In a terminal the live view is one line per step with its state, time, and for a running step its
own progress; elsewhere (a file, CI) one plain line per event. The board reads how far a running
step is from the store, so it looks the same wherever the step runs.
"""

import contextlib
import io
import itertools
import json
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.plan import Plan, Resolver, State
from pipeline.step import Step
from pipeline.store import Store
from pipeline.sweep import comparable_metrics, compare, metric_text

REFRESH_PER_SECOND = 4
PLAIN_PROGRESS_SECONDS = 15.0
LOG_LINES = 12
LOG_BYTES = 64 * 2**10
"""Of a log, only so much of its end is read."""
LONGEST_LINE = 500
MOST_METRICS = 40
"""Of one step; ``temper show`` prints all."""
LONGEST_PLAN = 60
"""Beyond so many steps, those that are cached are counted and not listed."""
_STYLES = {"done": "green", "cached": "dim", "failed": "bold red", "skipped": "yellow"}
_LABELS = {
    State.CACHED: "cached",
    State.RUN: "run",
    State.MAYBE: "run if changed",
    State.BLOCKED: "wait",
}


def show_plan(console: Console, plan: Plan) -> None:
    """What would run and why, one line a step."""
    names = _display_names(plan)
    table = Table(box=None, padding=(0, 2), header_style="bold", title_justify="left")
    for heading in ("step", "plan", "why"):
        table.add_column(heading, overflow="fold")
    folded = Counter[str]()
    for planned in plan.steps:
        plain = planned.state is State.CACHED and not planned.reason
        if plain and len(plan.steps) > LONGEST_PLAN:
            folded[planned.step.name] += 1
            continue
        style = "dim" if planned.state is State.CACHED else "cyan"
        label = Text(_LABELS[planned.state], style)
        table.add_row(Text(names[planned.step.fingerprint]), label, Text(planned.reason, "dim"))
    for name, count in folded.items():
        table.add_row(Text(f"{name} × {count}"), Text("cached", "dim"), "")
    console.print(table)
    console.print(_plan_summary(plan), highlight=False)


def _plan_summary(plan: Plan) -> str:
    run, maybe = len(plan.in_state(State.RUN, State.BLOCKED)), len(plan.in_state(State.MAYBE))
    cached = len(plan.in_state(State.CACHED))
    if plan.is_complete:
        what = f"all {cached} steps are" if cached > 1 else "the only step is"
        return f"[green]{what} cached: nothing to run[/]"
    parts = [f"{run + maybe} to run", f"{cached} cached"]
    if maybe:
        parts[0] += f" ({maybe} only if an input changes)"
    return "[bold]" + ", ".join(parts) + "[/]"


@dataclass
class _Row:
    """One step on the board."""

    step: Step
    name: str
    state: str = "waiting"
    message: str = ""
    log: str = ""
    started: float = 0.0
    seconds: float = 0.0
    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    progress: Mapping[str, Any] | None = None
    printed: float = 0.0


class Board:
    """The live view of a run; its :meth:`observe` is the engine's observer."""

    def __init__(self, console: Console, plan: Plan, resolver: Resolver):
        self.console = console
        self.resolver = resolver
        self.started = time.time()
        self._stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self.started))
        names = _display_names(plan)
        self.rows = {
            planned.step.fingerprint: _Row(
                planned.step,
                names[planned.step.fingerprint],
                "cached" if planned.state is State.CACHED else "waiting",
            )
            for planned in plan.steps
        }
        self._lock = threading.Lock()

    @property
    def failed(self) -> list[_Row]:
        return [row for row in self.rows.values() if row.state == "failed"]

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """How each step went, by fingerprint, for the record of the run."""
        return {fingerprint: self._outcome(row) for fingerprint, row in self.rows.items()}

    def _outcome(self, row: _Row) -> dict[str, Any]:
        outcome: dict[str, Any] = {"state": row.state, "seconds": round(row.seconds, 3)}
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
        if self.live_in_terminal:
            with Live(
                get_renderable=self.renderable,
                console=self.console,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=False,
            ):
                yield
        else:
            with self._plain_progress():
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
        if not self.live_in_terminal:
            self._print_event(row)

    # --- rendering ---------------------------------------------------------------------------

    def renderable(self) -> Table:
        """One row a step, as it is now."""
        table = Table(box=None, padding=(0, 1), show_header=False)
        table.add_column(width=2)
        table.add_column(no_wrap=True)
        table.add_column(width=8)
        table.add_column(justify="right", width=7, no_wrap=True)
        # not no_wrap: a long line here would make rich shrink the columns before it
        table.add_column(ratio=1)
        for row in self.rows.values():
            table.add_row(*self._cells(row))
        return table

    def _cells(self, row: _Row) -> tuple[Any, ...]:
        if row.state == "running":
            seconds = clock(time.time() - row.started)
            detail = self._progress(row)
            return row.spinner, Text(row.name, "bold"), "running", seconds, detail
        mark = {"done": "✓", "cached": "·", "failed": "✗", "skipped": "–"}.get(row.state, " ")
        style = _STYLES.get(row.state, "dim")
        seconds = clock(row.seconds) if row.seconds else ""
        return (
            Text(mark, style), Text(row.name, style), Text(row.state, style), seconds,
            Text(row.message, style, no_wrap=True, overflow="ellipsis"),
        )  # fmt: skip

    def _progress(self, row: _Row) -> Any:
        progress = self._read_progress(row)
        if not progress:
            return Text("starting", "dim")
        text = Text(progress_text(progress), no_wrap=True, overflow="ellipsis")
        if not progress["total"]:
            return text
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(progress["total"], progress["done"], width=16), text)
        return grid

    def _read_progress(self, row: _Row) -> Mapping[str, Any] | None:
        store = self.resolver.store
        # what is wrong, the run will say
        with contextlib.suppress(OSError, ValueError, TemperError):
            resolved = self.resolver.key_and_recipe(row.step)
            data = resolved and store.read(store.progress_path(row.step.name, resolved[0]))
            row.progress = parse_progress(data or b"") or row.progress
        return row.progress

    # --- plain lines -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _plain_progress(self) -> Iterator[None]:
        stop = threading.Event()

        def report() -> None:
            while not stop.wait(1.0):
                for row in [r for r in self.rows.values() if r.state == "running"]:
                    self._print_progress(row)

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _print_progress(self, row: _Row) -> None:
        now = time.time()
        if now - max(row.printed, row.started) < PLAIN_PROGRESS_SECONDS:
            return
        if progress := self._read_progress(row):
            row.printed = now
            self._print(f"{row.name}: {progress_text(progress)}")

    def _print_event(self, row: _Row) -> None:
        seconds = f" in {clock(row.seconds)}" if row.state == "done" else ""
        message = f": {row.message}" if row.message else ""
        self._print(f"{row.name}: {row.state}{seconds}{message}")

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

    def show_failures(self) -> None:
        """For each failed step: what went wrong, the end of its log, where the whole log is."""
        for row in self.failed:
            self.console.print(f"\n[bold red]✗ {escape(row.name)}[/]: {escape(row.message)}")
            if row.log:
                tail = _tail(self.resolver.store, row.log)
                self.console.print(Padding(Text(tail, "dim"), (0, 0, 0, 4)))
                self.console.print(
                    f"  whole log: {escape(self.resolver.store.url_of(row.log))}", soft_wrap=True
                )


def make_console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; elsewhere wide enough that lines stay whole."""
    # a terminal that lacks a character is no reason to fail
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=160)


def show_error(message: str) -> None:
    """A foreseen problem, as one line on standard error."""
    line = f"error: {visible(' '.join(message.split()))}"
    make_console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def show_notices(console: Console, manifests: Iterable[Manifest]) -> None:
    """What steps want a person to know of their result, such as rows that were dropped."""
    for manifest in manifests:
        for notice in manifest.metrics.get("notices", ()):
            console.print(f"[yellow]![/] {manifest.step}: {escape(notice)}", soft_wrap=True)


def show_results(console: Console, store: Store, results: Mapping[str, Manifest]) -> None:
    """Summaries, one table of metrics per kind of result, and where everything lies."""
    summaries = {
        name: summary
        for name, manifest in results.items()
        if (summary := store.read(f"{store.content_path(manifest)}/summary.md"))
    }
    for name, summary in summaries.items():
        if len(summaries) > 1:
            console.print(Text(name, "bold"))
        console.print(Markdown(summary.decode(errors="replace")))
    by_step: dict[str, dict[str, Manifest]] = {}
    for name, manifest in results.items():
        by_step.setdefault(manifest.step, {})[name] = manifest
    for group in by_step.values():
        if metrics := comparable_metrics(group.values()):
            console.print(_results_table(console, group, metrics[:MOST_METRICS]))
            if (more := len(metrics) - MOST_METRICS) > 0:
                line = f"and {more} more metrics: temper show {next(iter(group.values())).name}"
                console.print(Text(line, "dim"), soft_wrap=True)
    width = max(map(len, results), default=0)
    for name, manifest in results.items():
        line = f"{name:{width}}  {store.url_of(store.content_path(manifest))}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _results_table(
    console: Console, group: Mapping[str, Manifest], metrics: Sequence[str]
) -> Table:
    """A column for each result; where these do not fit, a row for each."""
    step = next(iter(group.values())).step
    table = Table(title=step, title_justify="left", header_style="bold", title_style="bold")
    table.add_column("")
    for name in group:
        table.add_column(Text(name), justify="right")
    for metric in metrics:
        cells = [metric_text(manifest.metrics.get(metric)) for manifest in group.values()]
        table.add_row(Text(metric), *cells)
    unlimited = console.options.update_width(sys.maxsize)
    fits = console.measure(table, options=unlimited).maximum <= console.width
    if fits:
        return table
    return compare(group, metrics if len(metrics) == MOST_METRICS else None)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def parse_progress(data: bytes) -> Mapping[str, Any] | None:
    """What a step has written of how far it is; ``None`` if that is nothing, or damaged."""
    try:
        progress = json.loads(data)
        done, total, metrics = progress["done"], progress["total"], progress.get("metrics", {})
        if all(map(math.isfinite, (done, total or 0))) and isinstance(metrics, dict):
            return {"done": done, "total": total, "metrics": metrics}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass
    return None


def progress_text(progress: Mapping[str, Any]) -> str:
    done, total = progress["done"], progress["total"]
    parts = [f"{done:g}/{total:g}" if total else f"{done:g}"]
    metrics = itertools.islice(progress["metrics"].items(), MOST_METRICS)
    return _cut("  ".join(parts + [f"{name} {_number(value)}" for name, value in metrics]))


def _failure(message: str) -> tuple[str, str]:
    """The one-line message and the log's path that ``StepTask.on_failure`` joined."""
    with contextlib.suppress(ValueError):
        message = json.loads(message)
    text, _, log = message.rpartition("\n")
    return visible(_cut(text or message)), log


def _tail(store: Store, log: str) -> str:
    """The last lines of a log, long ones cut short."""
    lines = _end(store, log).decode(errors="replace").splitlines()[-LOG_LINES:]
    return "\n".join(visible(_cut(line)) for line in lines)


def _end(store: Store, path: str) -> bytes:
    """The last bytes of a file, where its file system can begin there; otherwise all of it."""
    try:
        return store.objects.fs.cat_file(path, start=-LOG_BYTES)
    except Exception:  # such as a server that knows no ranges, each with errors of its own
        return store.read(path) or b""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"


def visible(text: str) -> str:
    """One line without control characters, which could repaint the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}m{seconds:02d}s"


def _display_names(plan: Plan) -> dict[str, str]:
    """What to call each step: its name; where a DAG has it more than once, with the result it is,
    or a number, behind."""
    results = {step.fingerprint: name for name, step in plan.roots.items()}
    total = Counter(planned.step.name for planned in plan.steps)
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for planned in plan.steps:
        name, fingerprint = planned.step.name, planned.step.fingerprint
        seen[name] += 1
        which = results.get(fingerprint, f"{seen[name]}")
        names[fingerprint] = f"{name} ({which})" if total[name] > 1 else name
    return names
