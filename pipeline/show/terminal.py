"""Prints plans before a run, and results after it. :mod:`pipeline.show.live` shows a run while it
works.
"""

import contextlib
import io
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import TemperError
from pipeline.base.redaction import shown
from pipeline.base.text import about, clock, counted, cut, size, visible
from pipeline.dag.artifact import Kind
from pipeline.dag.canonical import reference_to, resolve_reference
from pipeline.plan.planning import Plan, State, display_names
from pipeline.show.artifact_handle import Made
from pipeline.show.comparison import named
from pipeline.show.metrics import (
    LEGEND,
    MARK,
    comparable_metrics,
    label,
    labels_of,
    marked,
    without_p_values,
)
from pipeline.show.results import side_by_side
from pipeline.show.views import is_offered
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store, open_store
from pipeline.store.manifest import Manifest

if TYPE_CHECKING:  # imported late: a cached plan has no estimates, and few results have a summary
    from rich.markdown import Markdown

    from pipeline.estimate.estimates import Estimate, Estimates

LONGEST_SUMMARY = 6000
MOST_SUMMARIES = 3
"""The most summaries printed; the many of a sweep would hide its comparison."""
MOST_METRICS = 40
"""The most metrics printed of one step; ``temper show`` prints all."""
_LABEL_WIDTH = 20
"""The least width of a metric's label, where labels wrap."""
MOST_WARNINGS = 3
LONGEST_PLAN = 60
"""A plan with more steps counts its cached steps instead of listing them."""
UNKNOWN = "–"
_LABELS = {
    State.CACHED: "cached",
    State.RUN: "run",
    State.MAYBE: "run if changed",
    State.BLOCKED: "wait",
}


def show_plan(
    console: Console,
    plan: Plan,
    whole: bool = False,
    estimates: "Estimates | None" = None,
    jobs: int = 1,
) -> None:
    """Print the plan: one line for each step, with its state, its estimated cost, and the reason.

    Args:
        whole: list cached steps even in a very long plan.
        jobs: how many steps run at once.
    """
    names = display_names(plan)
    estimated = estimates if estimates is not None and estimates.of else None
    rows: list[tuple[Text, Text, list[str], Text]] = []
    folded = Counter[str]()
    for planned in plan.steps:
        plain = planned.state is State.CACHED and not planned.reason
        if plain and not whole and len(plan.steps) > LONGEST_PLAN:
            folded[planned.step.name] += 1
            continue
        style = "dim" if planned.state is State.CACHED else "cyan"
        label = Text(_LABELS[planned.state], style)
        why = Text(visible(planned.reason), "dim")
        costs = _costs(estimated.of.get(planned.step.fingerprint)) if estimated else []
        rows.append((named(names[planned.step.fingerprint]), label, costs, why))
    for name, count in folded.items():
        rows.append((Text(f"{name} × {count}"), Text("cached", "dim"), [""] * len(COSTS), Text()))
    console.print(_plan_table(rows, console.width, bool(estimated)))
    total = _total(plan, estimated, jobs) if estimated else ""
    console.print(_plan_summary(plan) + total, highlight=False)
    if neutral := [*dict.fromkeys(p.step.name for p in plan.steps if p.looks_neutral)]:
        same = "only names, places, documentation, hints or messages seem to differ"
        after = f", and {counted(more, 'step')} after them" if (more := _kept_by(plan)) else ""
        console.print(
            f"{', '.join(neutral)}: {same}; temper accept --neutral keeps them{after}", style="dim"
        )
    for warning in _warnings(names, estimated) if estimated else ():
        console.print(Text(f"! {warning}", "yellow"), soft_wrap=True)


def _kept_by(plan: Plan) -> int:
    """How many steps would not run if what looks neutral were accepted, apart from these steps."""
    kept: dict[str, bool] = {}
    for planned in plan.steps:
        above = all(kept[i.step.fingerprint] for i in planned.step.inputs)
        is_kept = planned.state is State.MAYBE or planned.looks_neutral
        kept[planned.step.fingerprint] = planned.state is State.CACHED or (above and is_kept)
    maybe = plan.in_state(State.MAYBE)
    return sum(kept[planned.step.fingerprint] for planned in maybe)


COSTS = ("time", "memory", "disk")
WHY_COLUMNS = 30
"""A plan in a narrow window shows no memory and no disk if its reasons would have less room."""


def _plan_table(
    rows: Sequence[tuple[Text, Text, list[str], Text]], width: int, is_estimated: bool
) -> Table:
    """A plan as a table: a step's name, state, costs and reason in each row."""
    words = (len(word) for name, *_ in rows for word in name.plain.split())
    longest = min(max(words, default=0), width * 2 // 5)  # a name is cut at spaces only
    cells = [[state.plain, *costs] for _, state, costs, _ in rows]
    columns = [max(map(len, column), default=0) for column in zip(*cells, strict=True)]
    room = width - longest - sum(columns) - 2 * len(columns) - 4
    headings = COSTS[: 1 if room < WHY_COLUMNS else None] if is_estimated else ()
    table = Table(box=None, padding=(0, 1), header_style="bold", title_justify="left")
    table.add_column("step", overflow="fold", min_width=max(12, longest))
    table.add_column("plan", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for name, state, costs, why in rows:
        table.add_row(name, state, *costs[: len(headings)], why)
    return table


def _costs(estimate: "Estimate | None") -> list[str]:
    """Estimated time, memory and disk of a step, where known; empty for a cached step."""
    if estimate is None:
        return [""] * len(COSTS)
    rough = "~" if estimate.is_rough else ""
    devices = f" × {estimate.hardware.devices}" if estimate.hardware.devices else ""
    return [
        UNKNOWN if estimate.seconds is None else rough + about(estimate.seconds),
        UNKNOWN if estimate.memory is None else size(estimate.memory) + devices,
        UNKNOWN if estimate.disk is None else size(estimate.disk),
    ]


def _total(plan: Plan, estimates: "Estimates", jobs: int) -> str:
    """For example ``: about 2 min, 1.4 GB to write, 38 GB free``."""
    from pipeline.estimate.remaining import left_of

    seconds, unknown = left_of(estimates.ahead(plan), jobs)
    every = len(estimates.of)
    parts = [f"{'at least' if unknown else 'about'} {about(seconds)}"] if unknown < every else []
    if unknown:
        has_run = any(e.has_run for e in estimates.of.values() if e.seconds is None)
        why = "never run on such inputs" if has_run else "never run on such hardware"
        parts.append(f"time of {counted(unknown, 'step')} unknown ({why})")
    if any(estimate.disk is not None for estimate in estimates.of.values()):
        parts.append(f"{size(estimates.disk)} to write")
        parts += [f"{size(estimates.free)} free"] if estimates.free is not None else []
    return ": " + ", ".join(parts) if parts else ""


def _disk_warnings(estimates: "Estimates") -> Iterator[str]:
    if estimates.fits_disk or estimates.free is None:
        return
    beside = estimates.peak_disk - estimates.disk
    besides = f", and checkpoints of {size(beside)} while it runs," if beside else ""
    yield (
        f"the disk of the store has {size(estimates.free)} free, and all results together take "
        f"about {size(estimates.disk)}{besides} so it will be full before the end: make room "
        "(temper gc, temper evict), ask for less, or set store= to another disk"
    )


def _warnings(names: Mapping[str, str], estimates: "Estimates") -> Iterator[str]:
    """Warnings about too little disk or memory."""
    yield from _disk_warnings(estimates)
    too_large = [(n, estimate) for n, estimate in estimates.of.items() if estimate.fits is False]
    for fingerprint, estimate in too_large[:MOST_WARNINGS]:
        if estimate.memory and estimate.capacity:
            where = (
                f"on each {estimate.hardware.model}" if estimate.hardware.devices else "of memory"
            )
            yield (
                f"{names[fingerprint]} needs about {size(estimate.memory)} {where}, which has "
                f"{size(estimate.capacity)}: lower tokens_per_forward, or give it more devices"
            )

    if (more := len(too_large) - MOST_WARNINGS) > 0:
        yield f"and {more} more steps that need more memory than there is"


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
    """A console as wide as the terminal. If the output is no terminal, its lines have 160
    columns."""
    # a character that the terminal's encoding lacks must not raise
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=160)


def show_error(message: str) -> None:
    """Print an error message as one line on standard error."""
    line = f"error: {visible(shown(' '.join(message.split())))}"
    make_console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def show_notices(console: Console, manifests: Iterable[Manifest]) -> None:
    """Print the notices of steps about their results, for example that rows were dropped; what
    several artifacts of a step say alike is printed once."""
    notices = Counter(
        f"{manifest.step}: {escape(visible(str(notice)))}"
        for manifest in manifests
        for notice in manifest.metrics.get("notices", ())
    )
    for line, times in notices.items():
        often = f" ({times} times)" if times > 1 else ""
        console.print(f"[yellow]![/] {line}{often}", soft_wrap=True)


def show_kept_from_workers(console: Console, variables: Collection[str]) -> None:
    """Print which environment variables that this program has changed do not reach steps."""
    text = (
        f"! steps do not see the present values of {', '.join(variables)}: this program changed "
        "them after its start, and no key has them. Pass as arguments what results depend on; set "
        "others in launcher.local.env, in Python LocalConfig(env={…}), or before Python starts"
    )
    console.print(visible(text), style="yellow", markup=False, highlight=False, soft_wrap=True)


def show_unrecorded(console: Console, fault: TemperError) -> None:
    """Print that a run whose steps were all cached is not on record, and why."""
    text = f"note: {fault}, so its runs and its folder latest do not show this run"
    console.print(visible(text), style="dim", markup=False, highlight=False, soft_wrap=True)


def show_places(console: Console, store: Store, results: Mapping[str, Manifest]) -> None:
    """Print the folder of each result in the store; for a result with one file, the file."""
    shown = {name: named(name).plain for name in results}
    width = max(map(len, shown.values()), default=0)
    for name, manifest in results.items():
        only = f"/{next(iter(manifest.files))}" if len(manifest.files) == 1 else ""
        line = f"{shown[name]:{width}}  {store.url_of(store.content_path(manifest))}{visible(only)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_end(console: Console, made: Sequence[Manifest], seconds: float) -> None:
    """Print how long a run took and what it made; nothing if it made no artifact."""
    if made:
        written = size(sum(manifest.size for manifest in made))
        line = f"done in {clock(seconds)}: {counted(len(made), 'step')} made, {written} written"
        console.print(Text(line, "bold"), soft_wrap=True)


def show_next(
    console: Console,
    store: Store,
    experiment: str,
    kinds: Mapping[str, Kind],
    results: Mapping[str, Manifest],
) -> None:
    """Print one line with commands to try next; one uses the last result that a command accepts.

    A package declares such a command, and the kind of artifact that it takes, as an entry point of
    the group ``temper.next``. The kind itself does not name the command, since a kind's code is
    part of keys.
    """
    option = "" if _is_usual(store) else f" --store {shlex.quote(shown(store.url))}"
    commands = [f"temper report{option}"]
    taken = {entry.value: entry.name for entry in entry_points(group="temper.next")}
    for name, kind in reversed([*kinds.items()]):
        command = taken.get(reference_to(kind))
        if command is not None and _is_offered(kind, Made(results[name], store)):
            named = shlex.quote(f"{experiment}/{name}")
            commands.insert(0, f"temper {command} {named}{option}")
            break
    console.print(Text(visible(f"next: {'  or  '.join(commands)}"), "dim"), soft_wrap=True)


def _is_offered(kind: Kind, made: Made) -> bool:
    """Whether the kind's command takes this artifact; not if that cannot be found out."""
    with contextlib.suppress(Exception):  # of a library that views need, or a damaged file
        return kind.views is None or is_offered(made, resolve_reference(kind.views))
    return False


def _is_usual(store: Store) -> bool:
    """Whether commands use this store without a ``--store`` option."""
    with contextlib.suppress(TemperError):  # TEMPER_STORE may be no valid store
        return open_store(None).url == store.url
    return False


def show_title(console: Console, title: str) -> None:
    if title:
        console.print(Text(visible(title), "bold"), soft_wrap=True)


def show_outcome(console: Console, catalog: Catalog, results: Mapping[str, Manifest]) -> None:
    """Print what the results show, in a sentence: the headline of their report."""
    from pipeline.show.report.headline import outcome

    if found := outcome(results, catalog):
        style = {"good": "bold green", "bad": "bold red"}.get(found.tone, "bold")
        console.print(Text(visible(found.sentence), style))
        for line in found.also:
            console.print(Text(visible(f"  {line}"), "dim"))


def show_results(console: Console, catalog: Catalog, results: Mapping[str, Manifest]) -> None:
    """Print summaries, one table of metrics for each step, and where the files are."""
    store = catalog.store
    summaries = {
        name: summary
        for name, manifest in results.items()
        if (summary := store.read(f"{store.content_path(manifest)}/summary.md"))
    }
    if len(summaries) > MOST_SUMMARIES:
        line = f"{len(summaries)} results have a summary, which temper show and the report print"
        console.print(Text(line, "dim"), soft_wrap=True)
        summaries = {}
    for name, summary in summaries.items():
        if len(summaries) > 1:
            console.print(named(name, "bold"))
        console.print(_markdown(summary.decode(errors="replace")))
    by_step: dict[str, dict[str, Manifest]] = {}
    for name, manifest in results.items():
        by_step.setdefault(manifest.step, {})[name] = manifest
    for group in by_step.values():
        if metrics := without_p_values(comparable_metrics(group.values())):
            console.print(_results_of_one_kind(console, catalog, group, metrics[:MOST_METRICS]))
            if (more := len(metrics) - MOST_METRICS) > 0:
                line = f"and {more} more metrics: temper show {next(iter(group.values())).name}"
                console.print(Text(line, "dim"), soft_wrap=True)
    show_places(console, store, results)


def _markdown(text: str) -> "Markdown":
    """Markdown whose HTML and links stay text, without control characters for the terminal."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    lines = "\n".join(map(visible, cut(text, LONGEST_SUMMARY).splitlines()))
    shown = Markdown(lines)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    shown.parsed = parser.disable(["link", "image", "autolink", "reference"]).parse(lines)
    return shown


def _results_of_one_kind(
    console: Console, catalog: Catalog, group: Mapping[str, Manifest], metrics: Sequence[str]
) -> RenderableType:
    """A table with a column for each result. If it is too wide, intervals go below their values,
    and labels wrap; if that is too wide as well, or if results differ in settings, the table has a
    row for each result."""
    compared = side_by_side(group, catalog, metrics if len(metrics) == MOST_METRICS else None)
    if compared.settings:
        return compared
    unlimited = console.options.update_width(sys.maxsize)
    for stacked in (False, True):
        table = _metrics_table(group, metrics, stacked)
        width = console.measure(table, options=unlimited)
        if (width.minimum if stacked else width.maximum) <= console.width:
            return table
    return compared


def _metrics_table(group: Mapping[str, Manifest], metrics: Sequence[str], stacked: bool) -> Table:
    first = next(iter(group.values()))
    labels = labels_of(first)
    table = Table(
        title=first.step, title_justify="left", header_style="bold", title_style="bold",
        box=SIMPLE_HEAD if stacked else HEAVY_HEAD, padding=(0, 0 if stacked else 1),
        min_width=len(first.step),  # else a long name is cut in two above a narrow table
    )  # fmt: skip
    table.add_column("", min_width=_LABEL_WIDTH if stacked else None)
    for name in group:
        table.add_column(named(name), justify="right", no_wrap=stacked)
    for metric in metrics:
        cells = [marked(manifest.metrics, metric) for manifest in group.values()]
        if any(cell.endswith(MARK) for cell in cells):
            table.caption, table.caption_justify = LEGEND, "left"
        if stacked:
            cells = [cell.replace(" (", "\n(") for cell in cells]
        table.add_row(named(label(metric, labels)), *cells)
    for column in table.columns[1:] if stacked else ():
        # rich takes the longest word for the minimum, also where lines may not wrap
        lines = "\n".join([str(column.header), *map(str, column.cells)]).splitlines()
        column.min_width = max(map(cell_len, lines))
    return table
