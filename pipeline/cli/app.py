"""``temper``: look into a store from the shell, and keep it in order.

An artifact is named ``STEP`` (the newest of that step) or ``STEP@KEY`` (the beginning of its key).
Commands that delete something ask on a terminal, and want ``--yes`` elsewhere.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from pipeline import logs as growing
from pipeline.board import make_console, show_error
from pipeline.catalog import Catalog
from pipeline.cli import acceptance, eviction, present, views
from pipeline.cli.activity import Attempt, attempts, leases
from pipeline.cli.collect import delete
from pipeline.cli.compare import compare
from pipeline.cli.explanation import explain_artifact
from pipeline.cli.garbage import Policy, find_garbage
from pipeline.cli.naming import find, require_one_key, unknown_step
from pipeline.cli.rows import show_row
from pipeline.cli.run_diff import diff_runs
from pipeline.cli.runs import forget_run, names_of_runs, one_run, read_run, read_runs
from pipeline.cli.verify import mark_damaged, verify
from pipeline.errors import TemperError
from pipeline.manifest import Manifest
from pipeline.run import PLAN_ONLY
from pipeline.store import Store

app = typer.Typer(
    help="Look into a Temper store, and keep it in order.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
StoreOption = Annotated[
    str, typer.Option("--store", envvar="TEMPER_STORE", help="Local path or fsspec URL.")
]
Name = Annotated[str, typer.Argument(metavar="STEP[@KEY]", help="The newest of a step, or by key.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_artifacts(
    step: Annotated[str | None, typer.Argument(help="Only of this step.")] = None,
    store: StoreOption = "store",
) -> None:
    """Every artifact in the store, oldest first."""
    catalog = _catalog(store)
    manifests = catalog.everything() if step is None else catalog.history(step)
    if not manifests and step is not None:
        raise unknown_step(catalog, step)
    if not manifests:
        raise TemperError(f"there are no artifacts in {store}; set --store or TEMPER_STORE")
    views.show_artifacts(make_console(), catalog, manifests)


@app.command()
def show(
    artifact: Name,
    row: Annotated[
        str | None, typer.Option("--row", metavar="ID", help="Print this row of it.")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", metavar="NAME", help="Only if it is in this split.")
    ] = None,
    store: StoreOption = "store",
) -> None:
    """Print an artifact's manifest: recipe, inputs, files, metrics, provenance; or one row of it.

    Of tokens, a row is shown with what is trained on, and special tokens, set apart.
    """
    if split is not None and row is None:
        raise TemperError("--split says where to look for a row; add --row ID")
    catalog = _catalog(store)
    manifest = find(catalog, artifact)
    if row is None:
        views.show_manifest(make_console(), manifest)
    else:
        show_row(make_console(), catalog, manifest, row, split)


@app.command()
def path(artifact: Name, store: StoreOption = "store") -> None:
    """Print where an artifact's files lie."""
    catalog = _catalog(store)
    manifest = find(catalog, artifact)
    if (loss := catalog.loss(manifest)) is not None:
        raise TemperError(
            f"the data of {manifest.name} is {loss.value}; a run that asks for it makes it again"
        )
    typer.echo(catalog.store.url_of(catalog.store.content_path(manifest)))


@app.command()
def logs(
    artifact: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt is over.")
    ] = False,
    store: StoreOption = "store",
) -> None:
    """Print the log of the newest attempt at a step: running, failed or done."""
    opened = _open(store)
    step, _, prefix = artifact.partition("@")
    tries = [a for a in (attempts(opened, step) if step else ()) if a.key.startswith(prefix)]
    if not tries:
        find(Catalog(opened), artifact)  # says what there is
        raise TemperError(f"there is no attempt at {artifact} any more")
    if prefix:
        require_one_key(step, prefix, {attempt.key for attempt in tries})
    log = f"{opened.root}/{tries[-1].folder}/log.txt"
    if follow:
        lines = growing.follow(growing.GrowingLog(opened, log), _is_over(opened, tries[-1]))
        views.show_lines(make_console(), lines)
        return
    data = opened.read(log)
    if data is None:
        raise TemperError(f"there is no log at {opened.url_of(log)}, or not yet")
    views.show_log(make_console(), data)


@app.command()
def status(store: StoreOption = "store") -> None:
    """Who is making what now."""
    opened = _open(store)
    held = [lease for lease in leases(opened) if lease.holder is not None]
    if held:
        views.show_leases(make_console(), opened, held)
    else:
        typer.echo("nothing is running")


@app.command()
def runs(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete these records, so that gc may collect.")
    ] = False,
    store: StoreOption = "store",
) -> None:
    """Runs on record, oldest first; of RUN (the beginning of its name), every step."""
    opened, console = _open(store), make_console()
    known = names_of_runs(opened)
    chosen = [one_run(known, name) for name in names or ()]
    if forget and not chosen:
        raise TemperError("name the runs to forget; see: temper runs")
    for name in chosen:
        if forget:
            forget_run(opened, name)
            views.show_line(console, f"forgotten: {name}")
        else:
            views.show_run(console, read_run(opened, name))
    if not known:
        raise TemperError(f"no run is on record in {store}; set --store or TEMPER_STORE")
    if not chosen:
        views.show_runs(console, read_runs(opened))


@app.command()
def report(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file.")] = Path("report.html"),
    store: StoreOption = "store",
) -> None:
    """Write what runs did, by default the newest, as one HTML file that needs no network."""
    from pipeline.report import render, story_of_runs  # plots are slow to import

    catalog = _catalog(store)
    known = names_of_runs(catalog.store)
    if not known:
        raise TemperError(f"no run is on record in {store}; set --store or TEMPER_STORE")
    chosen = dict.fromkeys(one_run(known, name) for name in names or known[-1:])
    found = [read_run(catalog.store, name) for name in sorted(chosen)]
    present.search_where_they_ran(found)
    told = story_of_runs(found, catalog, present.import_named)
    output.write_text(render(told, time.strftime("%F %T", time.gmtime())), "utf-8")
    typer.echo(output)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def plan(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="An experiment script.")],
) -> None:
    """What a script would run and why: python SCRIPT --plan [OVERRIDES]...

    A script that calls run() itself ends at its first run.
    """
    if not script.is_file():
        raise TemperError(f"there is no script {script}")
    command = [sys.executable, str(script), "--plan", *context.args]
    status = subprocess.call(command, env={**os.environ, PLAN_ONLY: "1"})
    raise typer.Exit(status if status >= 0 else 128 - status)


@app.command()
def explain(artifact: Name, store: StoreOption = "store") -> None:
    """Why an artifact was made and from what, and whether the present code still is its."""
    catalog = _catalog(store)
    views.show_explanation(make_console(), explain_artifact(catalog, find(catalog, artifact)))


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A")],
    new: Annotated[str, typer.Argument(metavar="B")],
    store: StoreOption = "store",
) -> None:
    """What differs between two artifacts (settings, inputs, code, files, metrics), or between two
    runs, by the beginnings of their names."""
    catalog = _catalog(store)
    known = names_of_runs(catalog.store)
    if all(any(run.startswith(name) for run in known) for name in (old, new)):
        runs = (read_run(catalog.store, one_run(known, name)) for name in (old, new))
        views.show_run_diff(make_console(), diff_runs(catalog, *runs))
        return
    one, other = find(catalog, old), find(catalog, new)
    views.show_comparison(make_console(), one, other, compare(one, other))


@app.command()
def accept(
    steps: Annotated[list[str], typer.Argument(metavar="STEP...")],
    of: Annotated[str, typer.Option("--of", metavar="KEY", help="This artifact's code.")] = "",
    yes: Yes = False,
    store: StoreOption = "store",
) -> None:
    """Say that the present code of steps gives the results that their artifacts are."""
    if of and len(steps) > 1:
        raise TemperError("--of KEY is an artifact of one step; name one")
    catalog, console = _catalog(store), make_console()
    pending: list[acceptance.Candidate] = []
    for candidate in [c for step in steps for c in acceptance.candidates(catalog, step, of)]:
        views.show_candidate(console, candidate)
        if not candidate.is_equal:
            pending.append(candidate)
    if not pending:
        return
    _confirm("Does the present code give the same results?", yes)
    for candidate in pending:
        acceptance.accept(catalog, candidate)
    revived = sum(candidate.revived for candidate in pending)
    views.show_line(console, f"accepted: {_count(revived, 'artifact')} valid again")


@app.command()
def evict(
    artifacts: Annotated[list[str], typer.Argument(metavar="STEP[@KEY]...")],
    yes: Yes = False,
    store: StoreOption = "store",
) -> None:
    """Delete artifacts' data and keep what they were: what was made from them stays cached."""
    catalog, console = _catalog(store), make_console()
    chosen = {
        m.attempt: m for n in artifacts for m in eviction.evictable(catalog, find(catalog, n))
    }
    if not chosen:
        views.show_line(console, f"evicted already: {', '.join(artifacts)}")
        return
    eviction.require_unused(catalog.store, list(chosen.values()))
    for manifest in chosen.values():
        views.show_line(console, f"{manifest.name}  {decimal(manifest.size)}")
    for step in dict.fromkeys(name for name in artifacts if "@" not in name):
        if stay := eviction.others(catalog, step, list(chosen.values())):
            what = f"{_count(stay, 'other artifact')} of {step}"
            views.show_line(console, f"{what} will stay; name one by {step}@KEY", "dim")
    size = decimal(sum(manifest.size for manifest in chosen.values()))
    _confirm(f"Delete {size} of data?", yes)
    for manifest in chosen.values():
        eviction.evict(catalog.store, manifest)
    views.show_line(console, f"freed {size}")


@app.command("verify")
def verify_artifacts(
    artifacts: Annotated[list[str] | None, typer.Argument(metavar="[STEP[@KEY]]...")] = None,
    store: StoreOption = "store",
) -> None:
    """Read every file and compare it with what was committed; status 1 if one is damaged."""
    catalog, console = _catalog(store), make_console()
    if artifacts:
        chosen, unreadable = _all_named(catalog, artifacts)
    else:
        steps = catalog.store.steps()
        chosen = [manifest for step in steps for manifest in catalog.history(step)]
        unreadable = catalog.unreadable(steps) if steps else []
    present = [manifest for manifest in chosen if catalog.loss(manifest) is None]
    with _progress_bar(sum(manifest.size for manifest in present)) as bar:
        damages = verify(catalog.store, present, lambda size: bar.advance(bar.task_ids[0], size))
    views.show_damages(console, damages)
    for url in unreadable:
        views.show_line(console, f"{url} is damaged; delete it, and the step will be run again")
    bad = len({damage.manifest.attempt for damage in damages})
    gone = len(chosen) - len(present)
    views.show_line(
        console,
        f"{_count(len(present) - bad, 'artifact')} intact, {bad + len(unreadable)} damaged"
        + (f"; {gone} passed over, evicted or marked as damaged before" if gone else ""),
    )
    if damages:
        mark_damaged(catalog.store, damages)
        views.show_line(console, "what is damaged is marked: a run that needs it makes it again")
    if damages or unreadable:
        raise typer.Exit(1)


@app.command()
def gc(
    keep_last: Annotated[
        int | None, typer.Option(min=0, help="Keep what the last N runs used.")
    ] = None,
    keep_days: Annotated[
        float | None, typer.Option(min=0, help="Keep what runs of the last D days used.")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Hours for which leftovers are left alone.")
    ] = 1.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete it.")] = False,
    store: StoreOption = "store",
) -> None:
    """Show what nobody needs: leftovers, and artifacts that no kept run used. --yes deletes it."""
    opened, console = _open(store), make_console()
    findings = find_garbage(opened, Policy(keep_last, keep_days, grace * 3600))
    views.show_findings(console, findings)
    if not findings.garbage:
        views.show_line(console, "nothing to collect")
    elif not yes:
        size = decimal(sum(garbage.size for garbage in findings.garbage))
        views.show_line(console, f"{size} in all; add --yes to delete")
    else:
        views.show_line(console, f"freed {decimal(delete(opened, findings))}")


def _open(url: str) -> Store:
    store = Store(url)
    if store.read(f"{store.root}/temper.json") is None and not _has_content(store):
        raise TemperError(f"there is no store at {store.url}; set --store or TEMPER_STORE")
    store.check_layout()
    return store


def _is_over(store: Store, attempt: Attempt) -> Callable[[], bool]:
    """Whether an attempt has ended, with a report or without one."""

    def is_over() -> bool:
        if store.read(f"{store.root}/{attempt.folder}/report.json") is not None:
            return True
        held = (lease for lease in leases(store) if lease.is_held)
        return not any((lease.step, lease.key) == (attempt.step, attempt.key) for lease in held)

    return is_over


def _has_content(store: Store) -> bool:
    """Whether there is a store, although what says so is gone."""
    return not {"manifests", "attempts", "runs"}.isdisjoint(store.objects.folders(store.root))


def _all_named(catalog: Catalog, names: list[str]) -> tuple[list[Manifest], list[str]]:
    """The artifacts of every STEP, or the one of each STEP@KEY; and what cannot be read of them."""
    found: dict[str, Manifest] = {}
    unreadable: list[str] = []
    for name in names:
        step, _, prefix = name.partition("@")
        urls = [url for url in catalog.unreadable([step]) if _file(url).startswith(prefix)]
        unreadable += urls
        if "@" in name and not urls:
            chosen = [find(catalog, name)]
        else:
            chosen = [m for m in catalog.history(step) if m.key.startswith(prefix)]
        if not chosen and not urls:
            raise unknown_step(catalog, step)
        found |= {manifest.attempt: manifest for manifest in chosen}
    return list(found.values()), list(dict.fromkeys(unreadable))


def _file(url: str) -> str:
    return url.rpartition("/")[2]


def _catalog(url: str) -> Catalog:
    return Catalog(_open(url))


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise TemperError(f"{question} There is nobody to ask; add --yes to say so")
    typer.confirm(question, abort=True)


def _progress_bar(total: int) -> Progress:
    """On standard error, and only where somebody watches."""
    console = make_console(stderr=True)
    bar = Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    bar.add_task("", total=total)
    return bar


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def main() -> None:
    """Console script: errors as one line, as everywhere."""
    try:
        app()
    except (TemperError, OSError) as error:
        show_error(str(error))
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
