"""How a run looks in the terminal before and after: the plan, the results. While it works, see
:mod:`pipeline.live`.
"""

import io
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline import variants
from pipeline.manifest import Manifest
from pipeline.plan import Plan, State
from pipeline.store import Store
from pipeline.sweep import comparable_metrics, compare, metric_text

LONGEST_LINE = 500
LONGEST_NAME = 80
LONGEST_SUMMARY = 6000
MOST_METRICS = 40
"""Of one step; ``temper show`` prints all."""
LONGEST_PLAN = 60
"""Beyond so many steps, those that are cached are counted and not listed."""
_LABELS = {
    State.CACHED: "cached",
    State.RUN: "run",
    State.MAYBE: "run if changed",
    State.BLOCKED: "wait",
}


def show_plan(console: Console, plan: Plan, whole: bool = False) -> None:
    """What would run and why, one line a step.

    Args:
        whole: list also very many cached steps.
    """
    names = display_names(plan)
    table = Table(box=None, padding=(0, 2), header_style="bold", title_justify="left")
    for heading in ("step", "plan", "why"):
        table.add_column(heading, overflow="fold")
    folded = Counter[str]()
    for planned in plan.steps:
        plain = planned.state is State.CACHED and not planned.reason
        if plain and not whole and len(plan.steps) > LONGEST_PLAN:
            folded[planned.step.name] += 1
            continue
        style = "dim" if planned.state is State.CACHED else "cyan"
        label = Text(_LABELS[planned.state], style)
        why = Text(visible(planned.reason), "dim")
        table.add_row(_named(names[planned.step.fingerprint]), label, why)
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
            line = escape(visible(str(notice)))
            console.print(f"[yellow]![/] {manifest.step}: {line}", soft_wrap=True)


def show_places(console: Console, store: Store, results: Mapping[str, Manifest]) -> None:
    """Where the files of each result lie; of a single file, where it is."""
    shown = {name: _named(name).plain for name in results}
    width = max(map(len, shown.values()), default=0)
    for name, manifest in results.items():
        only = f"/{next(iter(manifest.files))}" if len(manifest.files) == 1 else ""
        line = f"{shown[name]:{width}}  {store.url_of(store.content_path(manifest))}{visible(only)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_results(console: Console, store: Store, results: Mapping[str, Manifest]) -> None:
    """Summaries, one table of metrics per kind of result, and where everything lies."""
    summaries = {
        name: summary
        for name, manifest in results.items()
        if (summary := store.read(f"{store.content_path(manifest)}/summary.md"))
    }
    for name, summary in summaries.items():
        if len(summaries) > 1:
            console.print(_named(name, "bold"))
        console.print(_markdown(summary.decode(errors="replace")))
    by_step: dict[str, dict[str, Manifest]] = {}
    for name, manifest in results.items():
        by_step.setdefault(manifest.step, {})[name] = manifest
    for group in by_step.values():
        if metrics := comparable_metrics(group.values()):
            console.print(_results_of_one_kind(console, group, metrics[:MOST_METRICS]))
            if (more := len(metrics) - MOST_METRICS) > 0:
                line = f"and {more} more metrics: temper show {next(iter(group.values())).name}"
                console.print(Text(line, "dim"), soft_wrap=True)
    show_places(console, store, results)


def _markdown(text: str) -> Markdown:
    """Markdown in which HTML and links are text, without what would command the terminal."""
    from markdown_it import MarkdownIt

    lines = "\n".join(map(visible, cut(text, LONGEST_SUMMARY).splitlines()))
    shown = Markdown(lines)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown.parsed = parser.disable(["link", "image", "autolink", "reference"]).parse(lines)
    return shown


def _named(name: str, style: str = "") -> Text:
    """What somebody has called something, on one line and not without end."""
    return Text(visible(cut(name, LONGEST_NAME)), style)


def _results_of_one_kind(
    console: Console, group: Mapping[str, Manifest], metrics: Sequence[str]
) -> RenderableType:
    """A column for each result; where these do not fit, a row for each."""
    step = next(iter(group.values())).step
    table = Table(title=step, title_justify="left", header_style="bold", title_style="bold")
    table.add_column("")
    for name in group:
        table.add_column(_named(name), justify="right")
    for metric in metrics:
        cells = [metric_text(manifest.metrics.get(metric)) for manifest in group.values()]
        table.add_row(_named(metric), *cells)
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


def progress_text(progress: Mapping[str, Any], pace: str = "") -> str:
    done, total = progress["done"], progress["total"]
    parts = [f"{done:g}/{total:g}" if total else f"{done:g}", *([pace] if pace else [])]
    metrics = itertools.islice(progress["metrics"].items(), MOST_METRICS)
    return cut("  ".join(parts + [f"{name} {_number(value)}" for name, value in metrics]))


def cut(text: str, longest: int = LONGEST_LINE) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def visible(text: str) -> str:
    """One line without control characters, which could repaint the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in text)


def clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def display_names(plan: Plan) -> dict[str, str]:
    """What to call each step, by fingerprint: its name; where a DAG has it more than once, with the
    result that it is behind, or the settings in which it differs."""
    results = {step.fingerprint: name for name, step in reversed([*plan.roots.items()])}
    total = Counter(planned.step.name for planned in plan.steps)
    labels = variants.names(variants.of_steps(planned.step for planned in plan.steps))
    names: dict[str, str] = {}
    for planned in plan.steps:
        name, fingerprint = planned.step.name, planned.step.fingerprint
        which = results.get(fingerprint, labels[fingerprint])
        names[fingerprint] = f"{name} ({which})" if total[name] > 1 and which else name
    return names
