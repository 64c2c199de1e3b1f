"""``temper``: runs recipes, inspects a store, and cleans it up.

An artifact is named ``STEP`` (the newest of that step), ``STEP@KEY`` (a beginning of its key),
``EXPERIMENT/RESULT`` (the result of this name of the experiment's newest run), or by the tag that
``temper tag`` gave it. Commands that delete something ask on a terminal; without a terminal they
need ``--yes``.
"""

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from typer.core import TyperGroup

import pipeline
from pipeline.base.errors import TemperError
from pipeline.base.extras import require_installed
from pipeline.base.text import counted, did_you_mean
from pipeline.cli import printing
from pipeline.cli.differences.compare import compare
from pipeline.cli.differences.log_diff import ITEMS, diff_logs, flips
from pipeline.cli.differences.run_diff import diff_runs
from pipeline.cli.explanation import explain_artifact
from pipeline.cli.maintenance import acceptance, eviction
from pipeline.cli.maintenance.accepted import withdraw
from pipeline.cli.maintenance.collect import delete
from pipeline.cli.maintenance.garbage import Policy, find_garbage
from pipeline.cli.maintenance.verify import mark_damaged, verify
from pipeline.cli.recipes import (
    copy_recipe,
    recipes,
    run_recipe,
    show_recipes,
    words_for,
)
from pipeline.cli.rows import show_row
from pipeline.cli.start import make_project
from pipeline.cli.tune import tune
from pipeline.plan.labels import recorded_labels
from pipeline.running.session import PLAN_ONLY
from pipeline.show import json_values
from pipeline.show.artifact_handle import Made
from pipeline.show.json_values import plain, print_json
from pipeline.show.metrics_log import METRICS
from pipeline.show.step_progress import progress_of
from pipeline.show.terminal import make_console, show_error, show_outcome, show_results
from pipeline.store import logs as growing
from pipeline.store.activity import Attempt, attempts, leases
from pipeline.store.catalog import Catalog, Unread
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.store.names.naming import (
    by_key,
    find,
    require_one_key,
    require_unmarked,
    unknown_step,
)
from pipeline.store.names.result_names import forget_broken_links
from pipeline.store.names.tags import delete_tag, read_tags, set_tag, tags_of
from pipeline.store.runs import forget_run, names_of_runs, one_run, read_run, read_runs
from pipeline.uncaught.early import STOPPED
from pipeline.uncaught.user_errors import message_of


class Whole(TyperGroup):
    """A group of commands that does not shorten their summaries in ``--help``."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(500)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class Commands(Whole):
    """The commands of ``temper``; an unknown one is answered with one of a like name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].partition("=")[0] == "--store":
            raise TemperError("--store belongs after a command, as in: temper list --store PATH")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        asked = args[0] if args else ""
        is_command = asked and not asked.startswith("-") and not ctx.resilient_parsing
        if is_command and self.get_command(ctx, asked) is None:
            advice = f"temper run {asked}" if asked in recipes() else ""
            similar = did_you_mean(asked, self.list_commands(ctx)) or "; temper -h lists them"
            raise TemperError(f"there is no command {asked}{f': {advice}' if advice else similar}")
        return super().resolve_command(ctx, args)


class RecipeCommands(Whole):
    """``temper recipes``; the name of a recipe is answered with the commands that take it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        asked = args[0] if args else ""
        if asked in recipes():
            raise TemperError(
                f"there is no command recipes {asked}: temper run {asked} --help explains its "
                f"settings, and temper recipes copy {asked} FILE.yaml copies it"
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes_app = typer.Typer(cls=RecipeCommands, rich_markup_mode=None)
app.add_typer(recipes_app, name="recipes")
StoreOption = Annotated[
    str, typer.Option("--store", envvar="TEMPER_STORE", help="Local path or fsspec URL.")
]
_NAMES = "The newest of a step, by key, EXPERIMENT/RESULT, or a tag."
Name = Annotated[str, typer.Argument(metavar="STEP[@KEY]", help=_NAMES)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object; docs/agents.md.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"temper {pipeline.__version__}")
        raise typer.Exit


@app.callback()
def temper(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Train with a recipe, start a project, inspect a store, and clean it up."""


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """Run a recipe: temper run RECIPE|FILE.yaml [--data FILE] [--model MODEL] [SETTING=VALUE]...

    The options of experiments work too: --plan, -v, -q, -m. temper run RECIPE --help explains every
    setting; temper recipes lists the recipes.
    """
    if context.args in ([], ["-h"], ["--help"]):
        typer.echo(context.get_help())
        return
    run_recipe(context.args)


@recipes_app.callback(invoke_without_command=True)
def list_recipes(context: typer.Context) -> None:
    """List the recipes of temper run; recipes copy makes one your own."""
    if context.invoked_subcommand is None:
        show_recipes(make_console())


@recipes_app.command("copy")
def copy(
    recipe: Annotated[str, typer.Argument(help="The name of a recipe.")],
    file: Annotated[Path, typer.Argument(help="A .yaml for temper run, or a .py.")],
) -> None:
    """Copy a recipe to a file of your own: YAML for temper run, or a Python script."""
    for made in copy_recipe(recipe, file):
        typer.echo(made)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="NAME", help="A new or an empty folder.")],
) -> None:
    """Create a project with an experiment, a step, a loss, a checker and tests of your own."""
    for made in make_project(folder):
        typer.echo(folder / made)
    typer.echo(f"next: cd {folder}, and read README.md")


@app.command("list")
def list_artifacts(
    step: Annotated[str | None, typer.Argument(help="List only artifacts of this step.")] = None,
    as_json: AsJson = False,
    store: StoreOption = "store",
) -> None:
    """List every artifact in the store, oldest first."""
    catalog = _catalog(store)
    manifests = catalog.everything() if step is None else catalog.history(step)
    if not manifests and step is not None:
        raise unknown_step(catalog, step)
    unreadable = catalog.unreadable([] if step is None else [step])
    if not manifests and not unreadable:
        raise TemperError(f"there are no artifacts in {store}; set --store or TEMPER_STORE")
    if as_json:
        labels = recorded_labels(catalog.store, manifests)
        found = (
            json_values.of_manifest(m)
            | {"label": labels[m.attempt], "state": printing.state_of(catalog, m) or "done"}
            for m in manifests
        )
        unread = [plain(one.url) for one in unreadable]
        return print_json("list", {"artifacts": [*found], "unreadable": unread})
    printing.show_artifacts(make_console(), catalog, manifests)
    for unread in unreadable:
        wrong = "is damaged" if unread.damaged else "was not read"
        printing.show_line(make_console(), f"! {unread.url} {wrong}; see: temper verify", "yellow")


@app.command()
def show(
    artifact: Name,
    row: Annotated[
        str | None, typer.Option("--row", metavar="ID", help="Print this row of it.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="Require that the row is in this split."),
    ] = None,
    store: StoreOption = "store",
) -> None:
    """Print an artifact's manifest (recipe, inputs, files, metrics, provenance), or one of its
    rows.

    A row of tokens is printed with trained tokens and special tokens highlighted.
    """
    if split is not None and row is None:
        raise TemperError("--split says where to look for a row; add --row ID")
    catalog = _catalog(store)
    manifest = find(catalog, artifact)
    if row is None:
        printing.show_manifest(make_console(), manifest)
        if names := tags_of(catalog.store).get((manifest.step, manifest.attempt)):
            printing.show_line(make_console(stderr=True), f"tagged {', '.join(names)}", "bold")
    else:
        show_row(make_console(), catalog, manifest, row, split)


@app.command()
def path(artifact: Name, store: StoreOption = "store") -> None:
    """Print the folder with an artifact's files."""
    catalog = _catalog(store)
    manifest = find(catalog, artifact)
    require_unmarked(catalog, manifest)
    typer.echo(catalog.store.url_of(catalog.store.content_path(manifest)))


@app.command()
def logs(
    artifact: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines until the attempt ends.")
    ] = False,
    last: Annotated[int | None, typer.Option(min=1, help="Print only the last N lines.")] = None,
    as_json: AsJson = False,
    store: StoreOption = "store",
) -> None:
    """Print the log of the newest attempt at a step: running, failed or done."""
    opened = _open(store)
    artifact = by_key(Catalog(opened), artifact)
    step, _, prefix = artifact.partition("@")
    tries = [a for a in (attempts(opened, step) if step else ()) if a.key.startswith(prefix)]
    if not tries:
        find(Catalog(opened), artifact)  # its error lists the known names
        raise TemperError(f"there is no attempt at {artifact} any more")
    if prefix:
        require_one_key(step, prefix, {attempt.key for attempt in tries})
    log = f"{opened.root}/{tries[-1].folder}/log.txt"
    if follow:
        if as_json or last:
            raise TemperError("--follow prints what comes, until the end: leave the others out")
        following = growing.follow(growing.GrowingLog(opened, log), _is_over(opened, tries[-1]))
        printing.show_lines(make_console(), following)
        return
    data = opened.read(log)
    if data is None:
        raise TemperError(f"there is no log at {opened.url_of(log)}, or not yet")
    lines = data.decode(errors="replace").splitlines()[-(last or 0) :]
    if as_json:
        return print_json("logs", {"artifact": artifact, "log": opened.url_of(log), "lines": lines})
    if not data:
        typer.echo(f"{artifact} has printed nothing", err=True)
    printing.show_lines(make_console(), lines)


@app.command()
def status(as_json: AsJson = False, store: StoreOption = "store") -> None:
    """Show which steps are running now, and which run makes them."""
    opened = _open(store)
    held = [lease for lease in leases(opened) if lease.holder is not None]
    if as_json:
        running = [
            {"step": one.step, "key": one.key}
            | plain(one.holder)
            | {"is_gone": not one.is_held, "progress": progress_of(opened, one.step, one.key)}
            for one in held
        ]
        return print_json("status", {"running": running})
    if held:
        printing.show_leases(make_console(), opened, held)
    else:
        typer.echo("nothing is running")


@app.command()
def runs(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget",
            help="Delete the records of these runs, so that gc may delete what they used.",
        ),
    ] = False,
    as_json: AsJson = False,
    store: StoreOption = "store",
) -> None:
    """List the runs, oldest first; or, for each RUN (a beginning of its name), its steps."""
    opened, console = _open(store), make_console()
    known = names_of_runs(opened)
    chosen = [one_run(known, name) for name in names or ()]
    if forget and not chosen:
        raise TemperError("name the runs to forget; see: temper runs")
    if as_json and not forget:
        read = (read_run(opened, name) for name in chosen)
        told = [plain(run) | {"steps": plain(run.steps)} for run in read]
        return print_json("runs", {"runs": told or plain(read_runs(opened))})
    for name in chosen:
        if forget:
            forget_run(opened, name)
            printing.show_line(console, f"forgotten: {name}")
        else:
            printing.show_run(console, read_run(opened, name))
    if not known:
        raise TemperError(f"no run is on record in {store}; set --store or TEMPER_STORE")
    if not chosen:
        printing.show_runs(console, read_runs(opened))


@app.command()
def results(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    as_json: AsJson = False,
    store: StoreOption = "store",
) -> None:
    """Show the results of runs, with their metrics and where they are; by default of the newest."""
    from pipeline.cli.reports import chosen_runs  # drawing is slow to import
    from pipeline.show.report.report_model import story_of_runs

    catalog = _catalog(store)
    found, _ = chosen_runs(catalog.store, names or ())
    story = story_of_runs(found, catalog)
    made = {name: one.manifest for name, one in story.results.items() if one.manifest}
    if as_json:
        told = json_values.of_results(catalog, made)
        return print_json("results", {"runs": plain(found), **told})
    show_outcome(make_console(), catalog, made)
    show_results(make_console(), catalog, made)


@app.command()
def report(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "report.html"
    ),
    store: StoreOption = "store",
) -> None:
    """Write the report of runs as one HTML file that needs no network.

    The default is the newest run. If it found all of its results in the cache, it is the run that
    made them.
    """
    from pipeline.cli.reports import Looks, chosen_runs, story_of  # drawing is slow to import
    from pipeline.show.report.page import Page, render

    catalog = _catalog(store)
    found, remark = chosen_runs(catalog.store, names or ())
    looks = Looks(reversed(found))
    story = story_of(found, catalog, looks)
    made_at = time.strftime("%F %T", time.gmtime())
    _write_whole(output, render(story, Page(made_at, remark)))
    notes = make_console(stderr=True)
    for reason in dict.fromkeys(looks.unknown.values()):
        printing.show_line(notes, f"! shown without its own look: {reason}", "yellow")
    if remark:
        printing.show_line(notes, f"of run {found[0].name}: {remark}", "dim")
    typer.echo(output)


@app.command()
def ui(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0 takes any free one.")
    ] = 0,
    store: StoreOption = "store",
) -> None:
    """Show the reports of all runs in a browser on this machine, live while runs are in
    progress."""
    from pipeline.cli.ui import server  # drawing is slow to import

    with server(_open(store), port) as serving:
        typer.echo(f"{serving.url}  (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            serving.serve_forever()


@app.command()
def mcp(
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Also offer a tool that runs recipes.")
    ] = False,
    store: StoreOption = "store",
) -> None:
    """Serve plans, results and logs to agents, by the Model Context Protocol on standard input and
    output."""
    require_installed(["mcp"], "temper mcp")
    from pipeline.cli.mcp_server import serve

    serve(app.registered_commands, store, allow_run)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def plan(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="An experiment's script, or its module.")],
) -> None:
    """Show what a script would run, and why: the same as python SCRIPT --plan [OVERRIDES]...
    A module is run as by python -m MODULE.

    A script that calls run() itself stops at its first run.
    """
    command = [sys.executable, *words_for(script), "--plan", *context.args]
    with TemporaryDirectory() as folder:
        shown = Path(folder, "shown")
        status = subprocess.call(command, env={**os.environ, PLAN_ONLY: str(shown)})
        if not status and not shown.exists() and not any(a.startswith("-") for a in context.args):
            raise TemperError(
                f"{script} has ended without a plan: it calls neither run() nor main()"
            )
    raise typer.Exit(status if status >= 0 else 128 - status)


app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(tune)


@app.command()
def explain(artifact: Name, as_json: AsJson = False, store: StoreOption = "store") -> None:
    """Show why an artifact was made, from which inputs, and whether its code has changed since."""
    catalog = _catalog(store)
    explained = explain_artifact(catalog, find(catalog, artifact))
    if as_json:
        return print_json("explain", explained)
    printing.show_explanation(make_console(), explained)


@app.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="A")],
    new: Annotated[str, typer.Argument(metavar="B")],
    as_json: AsJson = False,
    store: StoreOption = "store",
) -> None:
    """Show which settings, data and code differ between two runs (A and B are beginnings of their
    names) and how the results changed; or compare two artifacts, and say where their logs part, and
    which items have other scores."""
    catalog = _catalog(store)
    known = names_of_runs(catalog.store)
    if all(any(run.startswith(name) for run in known) for name in (old, new)):
        runs = (read_run(catalog.store, one_run(known, name)) for name in (old, new))
        found = diff_runs(catalog, *runs)
        if as_json:
            return print_json("diff", {"of": "runs", **plain(found)})
        return printing.show_run_diff(make_console(), found)
    one, other = find(catalog, old), find(catalog, new)
    console, apart, flipped, fault = make_console(), None, [], ""
    try:
        sides_made = [Made(manifest, catalog.store) for manifest in (one, other)]
        apart = diff_logs(*(made.records(METRICS) for made in sides_made))
        if one.files.get(ITEMS) != other.files.get(ITEMS):
            flipped = flips(*(made.records(ITEMS) for made in sides_made))
    except TemperError as error:  # evicted or damaged
        fault = str(error)
    if as_json:
        found = {"of": "artifacts", "old": one, "new": other, "logs": apart, "items": flipped}
        sides = plain(found)
        return print_json("diff", sides | plain(compare(one, other)))
    printing.show_comparison(console, one, other, compare(one, other))
    if fault:
        printing.show_line(console, f"log: not compared: {fault}", "yellow")
    if apart:
        printing.show_log_diff(console, apart)
    if flipped:
        printing.show_flips(console, flipped)


@app.command()
def accept(
    steps: Annotated[list[str] | None, typer.Argument(metavar="[STEP...]")] = None,
    of: Annotated[
        str, typer.Option("--of", metavar="KEY", help="Choose one artifact by its key.")
    ] = "",
    neutral: Annotated[
        bool,
        typer.Option(
            "--neutral",
            help="Accept steps where only names, places, documentation, hints or messages seem to "
            "differ; without STEP, all of them.",
        ),
    ] = False,
    same_change: Annotated[
        bool,
        typer.Option("--all-with-same-change", help="Accept the same change in other steps, too."),
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Withdraw earlier acceptances.")] = False,
    yes: Yes = False,
    store: StoreOption = "store",
) -> None:
    """Confirm that your code change does not change results, so that existing artifacts stay
    valid."""
    steps = steps or []
    if not steps and not neutral:
        raise TemperError("name the steps whose code you accept, or give --neutral")
    if of and len(steps) != 1:
        raise TemperError("--of KEY is an artifact of one step; name one")
    catalog, console = _catalog(store), make_console()
    if neutral:
        _accept_neutral(catalog, steps, yes)
        return
    if undo:
        _undo_accept(catalog, steps, of, yes)
        return
    chosen: list[acceptance.Outdated] = []
    for step in steps:
        found = acceptance.outdated(catalog, step, of)
        chosen += (meant := acceptance.by_one_edit(catalog, found) if found else [])
        printing.show_outdated(console, step, meant, len(found) - len(meant))
    if not chosen:
        return
    others = acceptance.with_the_same_change(catalog, chosen)
    names = dict.fromkeys(one.manifest.step for one in others)
    for step in names if same_change else ():
        printing.show_outdated(console, step, [o for o in others if o.manifest.step == step])
    _confirm("Does the current code give the same results?", yes)
    if others and not same_change:
        printing.show_line(console, f"{', '.join(names)}: the same change, and no other")
        if yes:
            hint = "  --all-with-same-change accepts the change in these steps, too"
            printing.show_line(console, hint, "dim")
        else:
            same_change = typer.confirm("Accept the change in these steps, too?")
    chosen += others if same_change else []
    acceptance.accept(catalog, chosen)
    printing.show_line(console, f"accepted: {counted(len(chosen), 'artifact')} valid again")


def _accept_neutral(catalog: Catalog, steps: list[str], yes: bool) -> None:
    console, found = make_console(), acceptance.looking_neutral(catalog, steps)
    if not found:
        printing.show_line(console, "no step looks as if only names, places or texts differ")
        return
    for step in dict.fromkeys(one.manifest.step for one in found):
        printing.show_outdated(console, step, [o for o in found if o.manifest.step == step])
    note = "Only names, places, documentation, hints or texts of messages seem to differ. Is it so?"
    _confirm(note, yes)
    acceptance.accept(catalog, found)
    printing.show_line(console, f"accepted: {counted(len(found), 'artifact')} valid again")


def _undo_accept(catalog: Catalog, steps: list[str], of: str, yes: bool) -> None:
    console = make_console()
    found = [a for step in steps for a in acceptance.accepted_before(catalog, step, of)]
    for accepted in found:
        changes = ", ".join(map(str, accepted.note.get("changes", ())))
        name, time_of_it = (accepted.note.get(key, "?") for key in ("artifact", "time"))
        printing.show_line(console, f"{name}, accepted {time_of_it}: {changes}")
    _confirm("Take this back?", yes)
    for accepted in found:
        withdraw(catalog.store, accepted)
    printing.show_line(console, f"taken back: {counted(len(found), 'acceptance')}")


@app.command()
def tag(
    artifact: Annotated[str | None, typer.Argument(metavar="STEP[@KEY]", help=_NAMES)] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Such as v1.")] = None,
    delete: Annotated[
        str | None, typer.Option("--delete", metavar="NAME", help="Let go of this name.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Move the name from another artifact.")
    ] = False,
    store: StoreOption = "store",
) -> None:
    """Give an artifact a name, and keep it from being collected; without arguments, list the names.

    The name stands for the artifact in every command, for --model, and for File and adopt in
    Python.
    """
    catalog, console = _catalog(store), make_console()
    if delete is not None:
        if artifact is not None:
            raise TemperError("temper tag --delete NAME takes no more than the name")
        delete_tag(catalog.store, delete)
        printing.show_line(console, f"{delete} is no tag any more")
    elif artifact is None:
        printing.show_tags(console, *read_tags(catalog.store))
    elif name is None:
        raise TemperError(f"give a name, too, as in: temper tag {artifact} v1")
    else:
        given = set_tag(catalog.store, name, find(catalog, artifact), force)
        printing.show_line(console, f"{name} is {given.artifact}")


@app.command()
def evict(
    artifacts: Annotated[list[str], typer.Argument(metavar="STEP[@KEY]...")],
    yes: Yes = False,
    store: StoreOption = "store",
) -> None:
    """Delete the data of artifacts but keep their manifests, so that steps that used them stay
    cached."""
    catalog, console = _catalog(store), make_console()
    artifacts = [by_key(catalog, name) for name in artifacts]
    chosen = {
        m.attempt: m for n in artifacts for m in eviction.evictable(catalog, find(catalog, n))
    }
    if not chosen:
        printing.show_line(console, f"evicted already: {', '.join(artifacts)}")
        return
    eviction.require_unused(catalog.store, list(chosen.values()))
    for manifest in chosen.values():
        printing.show_line(console, f"{manifest.name}  {decimal(manifest.size)}")
    for step in dict.fromkeys(name for name in artifacts if "@" not in name):
        if stay := eviction.others(catalog, step, list(chosen.values())):
            what = f"{counted(stay, 'other artifact')} of {step}"
            printing.show_line(console, f"{what} will stay; name one by {step}@KEY", "dim")
    size = decimal(sum(manifest.size for manifest in chosen.values()))
    _confirm(f"Delete {size} of data?", yes)
    eviction.evict(catalog.store, list(chosen.values()))
    forget_broken_links(catalog.store)
    printing.show_line(console, f"freed {size}")


@app.command("verify")
def verify_artifacts(
    artifacts: Annotated[list[str] | None, typer.Argument(metavar="[STEP[@KEY]]...")] = None,
    store: StoreOption = "store",
) -> None:
    """Read every byte of artifacts to find silent corruption; the exit status is 1 if a file is
    damaged or cannot be read."""
    catalog, console = _catalog(store), make_console()
    if artifacts:
        chosen, unreadable = _all_named(catalog, artifacts)
    else:
        steps = catalog.store.steps()
        chosen = [manifest for step in steps for manifest in catalog.history(step)]
        unreadable = catalog.unreadable(steps) if steps else []
    present = [manifest for manifest in chosen if catalog.loss(manifest) is None]
    with _progress_bar(sum(manifest.size for manifest in present)) as bar:
        found = verify(catalog.store, present, lambda size: bar.advance(bar.task_ids[0], size))
    printing.show_damages(console, found)
    damages = [damage for damage in found if not damage.unread]
    for unread in unreadable:
        printing.show_line(console, unread.why)
    bad = len({damage.manifest.attempt for damage in damages})
    unchecked = len({damage.manifest.attempt for damage in found}) - bad
    gone = len(chosen) - len(present)
    passed = f"; {gone} passed over, evicted or marked as damaged before" if gone else ""
    intact = counted(len(present) - bad - unchecked, "artifact")
    bad += sum(unread.damaged for unread in unreadable)
    unchecked += sum(not unread.damaged for unread in unreadable)
    left = f", {unchecked} not checked" if unchecked else ""
    printing.show_line(console, f"{intact} intact, {bad} damaged{left}{passed}")
    if damages:
        mark_damaged(catalog.store, damages)
        printing.show_line(console, "what is damaged is marked: a run that needs it makes it again")
    if found or unreadable:
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
        float, typer.Option(min=0, help="Keep leftovers that are younger than this many hours.")
    ] = 1.0,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete what is shown.")] = False,
    store: StoreOption = "store",
) -> None:
    """Show leftovers and artifacts that no kept run used; --yes deletes them."""
    opened, console = _open(store), make_console()
    findings = find_garbage(opened, Policy(keep_last, keep_days, grace * 3600))
    printing.show_findings(console, findings)
    if not findings.garbage:
        printing.show_line(console, "nothing to collect")
    elif not yes:
        size = decimal(sum(garbage.size for garbage in findings.garbage))
        printing.show_line(console, f"{size} in all; add --yes to delete")
    else:
        printing.show_line(console, f"freed {decimal(delete(opened, findings))}")


def _write_whole(file: Path, text: str) -> None:
    """Write a file all at once, so that a full disk or Ctrl-C leaves what was there before."""
    if file.exists() and not file.is_file():  # a terminal or a pipe
        file.write_text(text, "utf-8")
        return
    file = file.resolve()
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        new.write_text(text, "utf-8")
        new.replace(file)
    except OSError as error:
        error.filename = str(file)  # which the user named
        raise
    finally:
        new.unlink(missing_ok=True)


def _open(url: str) -> Store:
    store = Store(url)
    if store.read(f"{store.root}/temper.json") is None and not _has_content(store):
        raise TemperError(f"there is no store at {store.url}; set --store or TEMPER_STORE")
    store.check_layout()
    return store


def _is_over(store: Store, attempt: Attempt) -> Callable[[], bool]:
    """A function that tells whether an attempt has ended, with a report or without one."""

    def is_over() -> bool:
        if store.read(f"{store.root}/{attempt.folder}/report.json") is not None:
            return True
        held = (lease for lease in leases(store) if lease.is_held)
        return not any((lease.step, lease.key) == (attempt.step, attempt.key) for lease in held)

    return is_over


def _has_content(store: Store) -> bool:
    """Whether it is a store although its temper.json is missing."""
    return not {"manifests", "attempts", "runs"}.isdisjoint(store.objects.folders(store.root))


def _all_named(catalog: Catalog, names: list[str]) -> tuple[list[Manifest], list[Unread]]:
    """The artifacts of each STEP or STEP@KEY, and their manifests that cannot be read."""
    found: dict[str, Manifest] = {}
    unreadable: list[Unread] = []
    for name in (by_key(catalog, name) for name in names):
        step, _, prefix = name.partition("@")
        unread = catalog.unreadable([step])
        theirs = [u for u in unread if u.url.rpartition("/")[2].startswith(prefix)]
        unreadable += theirs
        if "@" in name and not theirs:
            chosen = [find(catalog, name)]
        else:
            chosen = [m for m in catalog.history(step) if m.key.startswith(prefix)]
        if not chosen and not theirs:
            raise unknown_step(catalog, step)
        found |= {manifest.attempt: manifest for manifest in chosen}
    return list(found.values()), list(dict.fromkeys(unreadable))


def _catalog(url: str) -> Catalog:
    return Catalog(_open(url))


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise TemperError(f"{question} Nobody can answer here; add --yes to confirm")
    typer.confirm(question, abort=True)


def _progress_bar(total: int) -> Progress:
    """A progress bar on standard error; it is shown only in a terminal."""
    console = make_console(stderr=True)
    bar = Progress(
        BarColumn(), DownloadColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    bar.add_task("", total=total)
    return bar


def main() -> None:
    """The console script. It prints an error as one line."""
    _add_commands_of_packages(sys.argv[1:2])
    try:
        app()
    except TemperError as error:
        show_error(str(error))
        raise SystemExit(error.status) from None
    except OSError as error:
        show_error(message_of(error) or _of_a_path(error))
        raise SystemExit(1) from None
    except SystemExit as error:  # typer says nothing of Ctrl-C
        if error.__context__ and isinstance(error.__context__.__cause__, KeyboardInterrupt):
            typer.echo(STOPPED, err=True)
        raise


def _of_a_path(error: OSError) -> str:
    if error.filename:
        return f"{error.filename}: {error.strerror}; check the path"
    if error.errno == errno.ENOENT:  # without a name, the working folder is meant
        return "the working folder is gone; change to another, as in: cd ~"
    return str(error)


def _add_commands_of_packages(asked: list[str]) -> None:
    """Add the commands that installed packages declare as entry points of the group
    ``temper.commands``. They are imported only for help, or if one of them is called."""
    for entry in entry_points(group="temper.commands"):
        if asked in ([], ["--help"], ["-h"], [entry.name]):
            app.command(entry.name)(entry.load())


if __name__ == "__main__":
    main()
