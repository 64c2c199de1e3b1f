"""Prints artifacts, runs and leases to the terminal.

Text that Temper did not write (names, settings, metrics, paths) is printed as text, with visible
control characters: never as markup, and never as commands to the terminal.
"""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.highlighter import JSONHighlighter
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import TemperError
from pipeline.base.text import clock, counted, visible
from pipeline.cli.differences.compare import (
    RECIPE_FIELDS,
    Comparison,
    Difference,
    compare,
    inputs,
    settings,
)
from pipeline.cli.differences.log_diff import Flip, LogDiff
from pipeline.cli.differences.run_diff import RunDiff
from pipeline.cli.explanation import Explanation
from pipeline.cli.maintenance.acceptance import Outdated
from pipeline.cli.maintenance.garbage import Findings, Garbage
from pipeline.cli.maintenance.verify import Damage
from pipeline.plan.labels import recorded_labels
from pipeline.show.metrics import is_number, metric_text
from pipeline.show.step_progress import MOST_METRICS, progress_of
from pipeline.store.activity import Lease
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import SHOWN_DIGITS
from pipeline.store.names.tags import Tag
from pipeline.store.runs import UNKNOWN, Run

MOST_DIFFERENCES = 8
"""The most differences of one kind that are printed for a step of two runs."""
MOST_ITEMS = 20
"""The most items with other scores that are printed."""
_MOST_NAMES = 4
ROOM_FOR_COUNTS = 100
"""A list of runs in a narrower terminal counts no steps, so that commands can be told apart."""
LEAST_LABEL = 16
"""How narrow the column may be that says of which variant an artifact is."""
_STATE_STYLES = {"done": "green", "cached": "dim", "failed": "bold red", "killed": "bold red"}
_STATE_STYLES |= {"damaged": "bold red", "evicted": "yellow", "superseded": "dim"}


def text(value: object, style: str = "") -> Text:
    return Text(visible(str(value)), style)


def show_line(console: Console, value: object, style: str = "") -> None:
    console.print(text(value, style), highlight=False, soft_wrap=True)


def show_artifacts(console: Console, catalog: Catalog, manifests: Iterable[Manifest]) -> None:
    """Print a line for each artifact, with its state; a narrow terminal gets fewer columns."""
    manifests = list(manifests)
    labels = recorded_labels(catalog.store, manifests)
    states = [state_of(catalog, manifest) for manifest in manifests]
    columns = {
        "artifact": [text(manifest.name) for manifest in manifests],
        "of": [text(labels[manifest.attempt], "dim") for manifest in manifests],
        "kind": [text((manifest.kind or "").rpartition(":")[2], "dim") for manifest in manifests],
        "made (UTC)": [text(_when(manifest.attempt)) for manifest in manifests],
        "seconds>": [text(f"{manifest.seconds:.1f}") for manifest in manifests],
        "files>": [text(len(manifest.files)) for manifest in manifests],
        "size>": [text(decimal(manifest.size)) for manifest in manifests],
        "": [text(state, _STATE_STYLES.get(state, "")) for state in states],
    }
    for heading in ("files>", "kind", "seconds>", "made (UTC)", "size>"):
        if _least_width(columns) > console.width:
            del columns[heading]
    table = _table(*columns)
    for heading, column in zip(columns, table.columns, strict=True):
        column.no_wrap = heading != "of"  # a name that is cut into lines cannot be copied
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    console.print(table)


def _least_width(columns: Mapping[str, Sequence[Text]]) -> int:
    """The least width of a table in which only the column ``of`` is folded."""
    widths = {
        heading: max([len(heading.removesuffix(">")), *(cell.cell_len for cell in cells)])
        for heading, cells in columns.items()
    }
    return sum(widths.values()) - max(0, widths["of"] - LEAST_LABEL) + 2 * len(widths)


def show_tags(console: Console, tags: Sequence[Tag], damaged: Sequence[TemperError]) -> None:
    """Print a line for each tag with its artifact, and one for each that cannot be read."""
    table = _table("tag", "artifact", "tagged (UTC)")
    for tag in tags:
        table.add_row(text(tag.name), text(tag.artifact), text(tag.time[:-1].replace("T", " ")))
    if tags:
        console.print(table)
    for error in damaged:
        show_line(console, f"! {error}", "yellow")
    if not tags and not damaged:
        show_line(console, "no artifact has a tag; give one with: temper tag STEP[@KEY] NAME")


def state_of(catalog: Catalog, manifest: Manifest) -> str:
    """``evicted``, ``damaged``, or ``superseded`` by a later generation; empty otherwise."""
    loss = catalog.loss(manifest)
    latest = catalog.latest(manifest.step, manifest.key)
    if latest is not None and latest.generation > manifest.generation:
        return "superseded"
    return loss.value if loss else ""


def show_manifest(console: Console, manifest: Manifest) -> None:
    data = json.dumps(json.loads(manifest.to_json()), indent=2, ensure_ascii=False)
    safe = re.sub(r"[^\n\x20-\x7e]", _escaped, data)
    console.print(JSONHighlighter()(Text(safe)), soft_wrap=True)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else json.dumps(character)[1:-1]


def show_lines(console: Console, lines: Iterable[str]) -> None:
    """Print each line as soon as it arrives."""
    for line in lines:
        console.file.write(f"{visible(line)}\n")  # not through rich: it is slow on long lines
        console.file.flush()


def show_leases(console: Console, store: Store, leases: Iterable[Lease]) -> None:
    """Print who makes which step now, and its progress."""
    table = _table("step", "host", "pid>", "run", "since (UTC)", "", "progress")
    for lease in leases:
        holder = lease.holder
        if holder is None:
            continue
        gone = holder.is_gone()
        table.add_row(
            text(f"{lease.step}@{lease.key[:SHOWN_DIGITS]}"),
            text(holder.host),
            str(holder.pid),
            text(holder.run),
            text(holder.since[:19].replace("T", " ")),
            text("its process is gone" if gone else "", "bold red"),
            text(progress_of(store, lease.step, lease.key)),
        )
    console.print(table)


def show_runs(console: Console, runs: Iterable[Run]) -> None:
    counts = ("done", "cached", "failed") if console.width >= ROOM_FOR_COUNTS else ()
    table = _table(
        "run, by its time (UTC)", "outcome", "took>", *(f"{n}>" for n in counts), "command"
    )
    table.columns[0].no_wrap = True  # a name that is cut into lines cannot be copied
    for run in runs:
        outcome = run.shown_outcome()
        table.add_row(
            text(run.name),
            text(outcome, _STATE_STYLES.get(outcome, "")),
            clock(run.shown_seconds()),
            *(str(run.count(name)) for name in counts),
            Text(visible(run.typed()), "dim", no_wrap=True, overflow="ellipsis"),
        )
    console.print(table)


def show_run(console: Console, run: Run) -> None:
    """Print one run with a line for each step."""
    outcome = run.shown_outcome()
    took = clock(run.shown_seconds())
    ended = f"last sign of life after {took}" if outcome == "killed" else f"in {took}"
    show_line(console, f"{run.name}: {outcome}, {ended}", "bold")
    for name, value in (
        ("command", shlex.join(run.command)),
        ("in", run.cwd),
        ("on", f"{run.host} (pid {run.pid})" if run.host else ""),
        ("commit", run.commit),
    ):
        if value:
            show_line(console, f"{name:8} {value}")
    table = _table("step", "state", "key", "took>", "on", "why")
    for entry in run.steps:
        state = str(entry.get("state", ""))
        table.add_row(
            text(entry["step"]),
            text(state, _STATE_STYLES.get(state, "")),
            text(str(entry.get("key") or "")[:SHOWN_DIGITS]),
            clock(entry["seconds"]) if entry.get("seconds") else "",
            text(str(entry.get("place") or "")),
            text(entry.get("message") or entry.get("why") or "", "dim"),
        )
    console.print(table)


def show_explanation(console: Console, explained: Explanation) -> None:
    """Print why an artifact was made, from which inputs, and which artifacts use it."""
    manifest = explained.manifest
    provenance = manifest.provenance
    tagged = f", tagged {', '.join(explained.tags)}" if explained.tags else ""
    show_line(console, f"{manifest.name}{tagged}", "bold")
    made = f"made {_when(manifest.attempt)} in {clock(manifest.seconds)}"
    show_line(console, f"{made} by the run {provenance.get('run')} on {provenance.get('host')}")
    _show_values(console, "settings", settings(manifest))
    _show_values(console, "inputs", inputs(manifest))
    show_line(console, "what it depends on", "bold")
    version = manifest.made_by.get("version")
    if version is not None:
        show_line(console, f"  version {version!r} is declared")
    for line in (*explained.discovered, explained.state, *explained.outdated):
        show_line(console, f"  {line}")
    _show_why(console, explained)
    show_line(console, "used by", "bold")
    for other in explained.uses:
        show_line(console, f"  {other.name}")
    if not explained.uses:
        show_line(console, "  nothing", "dim")


def _show_why(console: Console, explained: Explanation) -> None:
    show_line(console, "why", "bold")
    manifest, nearest = explained.manifest, explained.nearest
    if again := manifest.generation:
        times = "once" if again == 1 else f"{again} times"
        show_line(console, f"  it had been made {times} before, and was made again")
    if nearest is None:
        show_line(console, f"  the first of {manifest.step} in this store")
        return
    show_line(console, f"  the nearest made before it is {nearest.name}; what differs:")
    compared = compare(nearest, manifest)
    differences = [*compared.settings, *compared.inputs, *_code_lines(compared)]
    for difference in differences:
        show_line(console, f"    {difference}")
    if not differences:
        show_line(console, "    code that was not recorded")


def show_comparison(console: Console, old: Manifest, new: Manifest, compared: Comparison) -> None:
    show_line(console, f"{old.name} → {new.name}", "bold")
    for title, differences in (
        ("settings", compared.settings),
        ("inputs", compared.inputs),
        ("code", _code_lines(compared)),
        ("files", compared.files),
    ):
        same = f", {compared.same_files} the same" if title == "files" else ""
        count = counted(len(differences), "difference") if differences else "no difference"
        show_line(console, f"{title}: {count}{same}", "bold")
        for difference in differences:
            show_line(console, f"  {difference}")
    if compared.metrics:
        table = _table("metric", f"{old.name}>", f"{new.name}>")
        for metric in compared.metrics:
            changed = "" if metric.old == metric.new else "bold"
            table.add_row(
                text(metric.name), text(metric.old or ""), text(metric.new or "", changed)
            )
        console.print(table)


def show_log_diff(console: Console, found: LogDiff) -> None:
    """Print where two logs part, and how far."""
    one, other = found.ends
    ends = "" if one == other else f"; they end at {one} and {other}"
    where = f"{counted(found.shared, found.axis)} in both{ends}"
    if not found.partings:
        show_line(console, f"log: no difference, {where}", "bold")
        return
    first = found.partings[0]
    told = f"log: parts at {found.axis} {first.at}, in {first.metric}; {where}"
    show_line(console, told, "bold")
    table = _table("metric", f"from {found.axis}>", "A>", "B>", "largest difference>", "relative>")
    for parting in found.partings[:MOST_METRICS]:
        most = "" if parting.absolute is None else f"{parting.absolute:.3g}"
        share = "" if parting.relative is None else f"{parting.relative:.3g}"
        values = (
            f"{v:.9g}" if is_number(v) else metric_text(v) for v in (parting.old, parting.new)
        )
        table.add_row(*map(text, (parting.metric, parting.at, *values, most, share)))
    console.print(table)


def show_flips(console: Console, found: Sequence[Flip]) -> None:
    """Print the items whose scores differ."""
    rows = len({flip.row for flip in found})
    show_line(console, f"items: {counted(rows, 'item')} with other numbers", "bold")
    table = _table("item", "score", "A>", "B>")
    for flip in found[:MOST_ITEMS]:
        table.add_row(*map(text, (flip.row, flip.name, f"{flip.old:.6g}", f"{flip.new:.6g}")))
    console.print(table)
    if (more := len(found) - MOST_ITEMS) > 0:
        show_line(console, f"  and {more} more: --json has all", "dim")


def show_run_diff(console: Console, found: RunDiff) -> None:
    """Print the differences between two runs, and how their results changed."""
    show_line(console, f"{found.old.name} → {found.new.name}", "bold")
    for name, old, new in (
        ("command", shlex.join(found.old.command), shlex.join(found.new.command)),
        ("commit", _commit(found.old), _commit(found.new)),
        ("host", found.old.host, found.new.host),
    ):
        if old != new:
            show_line(console, f"{name}: {old} → {new}")
    for changed in found.steps:
        show_line(console, changed.name, "bold")
        lines = _code_lines(changed.compared)
        for title, differences in (
            ("settings", changed.settings), ("data", changed.data), ("code", lines),
        ):  # fmt: skip
            for difference in differences[:MOST_DIFFERENCES]:
                show_line(console, f"  {title}: {difference}")
            if (more := len(differences) - MOST_DIFFERENCES) > 0:
                show_line(console, f"  {title}: and {more} more: {changed.command}", "dim")
    for which, names in (("first", found.only_old), ("second", found.only_new)):
        if names:
            show_line(console, f"only the {which} run has {', '.join(names)}")
    if found.neither:
        show_line(console, f"neither run made {', '.join(found.neither)}: they differ")
    if not (found.steps or found.only_old or found.only_new or found.neither):
        show_line(console, "no difference in settings, data or code")
    if found.effects:
        table = _table("result", "metric", "first>", "second>", "change>")
        for effect in found.effects:
            change = "" if effect.change is None else f"{effect.change:+.4g}"
            cells = (metric_text(effect.old), metric_text(effect.new), change)
            table.add_row(text(effect.result), text(effect.metric), *map(text, cells))
        console.print(table)
    if found.same_results:
        many = "1 result is" if found.same_results == 1 else f"{found.same_results} results are"
        show_line(console, f"{many} the same artifact in both", "dim")


def _commit(run: Run) -> str:
    changes = (
        "perhaps with changes" if run.dirty == UNKNOWN else "with changes" if run.dirty else ""
    )
    return f"{run.commit[:SHOWN_DIGITS] or 'not in git'} {changes}".rstrip()


def _code_lines(compared: Comparison) -> Sequence[Difference | str]:
    """Name the functions that differ, instead of the digests of their source."""
    lines: list[Difference | str] = []
    for difference in compared.code:
        if difference.name in RECIPE_FIELDS:
            lines.append(difference)
        elif difference.old is None:
            lines.append(f"{difference.name} added")
        else:
            lines.append(f"{difference.name} {'removed' if difference.new is None else 'changed'}")
    return lines


def show_outdated(console: Console, step: str, meant: Sequence[Outdated], others: int = 0) -> None:
    """Print what an acceptance of a step would keep, and because of which changes it is invalid.

    Args:
        others: how many more of its artifacts are invalid.
    """
    if not meant:
        why = "nothing that it depends on has changed, or that is accepted, or it has a version"
        show_line(console, f"{step}: {why}")
    by_changes: dict[Sequence[str], list[str]] = {}
    for one in meant:
        by_changes.setdefault(one.changes, []).append(one.manifest.name)
    for changes, names in by_changes.items():
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        who = f"{', '.join(names[:_MOST_NAMES])}{more}"
        show_line(console, f"to be valid again: {who}; changed since:", "bold")
        for change in changes:
            show_line(console, f"  {change}")
    if others:
        what = f"{counted(others, 'artifact')} of {step} differ in more"
        show_line(console, f"{what}; --of KEY accepts one", "dim")


def show_damages(console: Console, damages: Iterable[Damage]) -> None:
    for damage in damages:
        expected = damage.expected
        wrong = "was not checked" if damage.unread else "is damaged"
        show_line(console, f"{damage.manifest.name}: {damage.file} {wrong}", "bold red")
        if expected is not None:
            show_line(console, f"  expected {expected.size} bytes, BLAKE3 {expected.blake3}")
        show_line(console, f"  found {damage.found}")


def show_findings(console: Console, findings: Findings) -> None:
    groups: dict[tuple[str, str], list[Garbage]] = {}
    for garbage in findings.garbage:
        groups.setdefault((garbage.kind.value, garbage.step), []).append(garbage)
    if groups:
        table = _table("what", "step", "how many>", "size>")
        for (kind, step), group in groups.items():
            size = decimal(sum(garbage.size for garbage in group))
            table.add_row(kind, text(step), str(len(group)), size)
        console.print(table)
    for note in findings.notes:
        show_line(console, f"! {note}", "yellow")


def _show_values(console: Console, title: str, values: Mapping[str, Any]) -> None:
    if values:
        show_line(console, title, "bold")
    for name, value in values.items():
        show_line(console, f"  {name} = {value}")


def _table(*headings: str) -> Table:
    """A table with these columns; a heading that ends with ``>`` aligns its column to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(
            text(heading.removesuffix(">")), justify="right" if right else "left", overflow="fold"
        )
    return table


def _when(stamp: str) -> str:
    with contextlib.suppress(ValueError):
        return time.strftime("%F %T", time.strptime(stamp[:15], "%Y%m%dT%H%M%S"))
    return stamp
