"""``run``: plans a DAG, runs the missing steps, shows the results."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Never

from pipeline.base.errors import TemperError
from pipeline.base.text import hint
from pipeline.base.user_cache import forget_unused
from pipeline.dag.step import Step, look_again
from pipeline.plan.planning import Plan, make_plan
from pipeline.running.budget import held, require_within
from pipeline.running.invocation import Invocation, RunOptions
from pipeline.running.rounds import RunFailed, run_missing
from pipeline.running.run_request import (
    check_names,
    check_request,
    chosen,
    named,
    require_packages,
    visible_to_workers,
)
from pipeline.show.artifact_handle import Made
from pipeline.show.sinks import require_sinks
from pipeline.store.activity import unwritable
from pipeline.store.layout import Store, open_store
from pipeline.store.manifest import Manifest
from pipeline.store.names.result_names import link_results
from pipeline.uncaught.excepthook import shorten_in_notebooks
from pipeline.wire.spec import Pause

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of these
    from rich.console import Console

    from pipeline.estimate.estimates import Estimates
    from pipeline.launchers.config import LauncherConfig

PLAN_ONLY = "TEMPER_PLAN_ONLY"
"""The variable by which ``temper plan`` asks for no more than a plan: a file to make for it. A
script that calls :func:`run` then ends after it has shown the plan."""


@contextlib.contextmanager
def then_look_again() -> Iterator[None]:
    """Steps that are built afterwards see the files as they are then, also if all were cached. What
    the user's cache has long not been asked for is deleted."""
    try:
        yield
    finally:
        look_again()
        forget_unused()


@then_look_again()
def run(
    roots: Mapping[str, Step] | Iterable[Step],
    store: str | Store | None = None,
    jobs: int = 1,
    console: "Console | None" = None,
    force: Collection[str] = (),
    scheduler: str | None = None,
    launcher: "LauncherConfig | None" = None,
    only: Collection[str] = (),
    verbosity: int = 0,
    again: Callable[[str], str] | None = None,
    sinks: Collection[str] = (),
    title: str = "",
    budget: str | None = None,
) -> dict[str, Made]:
    """Make every root and all steps that it needs; return the artifact of each root by name.

    Steps that the store has are not run again. If a step fails, steps that do not need it still
    run, and all failures are reported at the end. After Ctrl-C, SIGTERM, SIGHUP or SIGKILL, the
    next run continues from the store.

    Args:
        roots: the wanted steps by the names to show, or a list, shown under the steps' own names.
        store: local path or fsspec URL; by default what ``TEMPER_STORE`` names, else the folder
            ``store``.
        jobs: how many steps may run at once.
        force: names of steps (``STEP`` or ``STEP@KEY``) to run again although they are cached.
            Their old artifacts stay.
        scheduler: URL of a ``luigid`` that several drivers share.
        launcher: where steps run; by default on this machine.
        only: make only these steps (``STEP`` or ``STEP@KEY``) and what they need, not the roots.
        verbosity: -1 for only failures and places of results, 1 to also show the output of workers.
        again: returns the command that runs only the step with this name; shown after a failure.
        sinks: further displays of metrics: ``wandb``, ``tensorboard``.
        title: what the run is about, in a line, above its plan and its report.
        budget: the most time, as ``2h``: a plan that takes longer by its estimate is refused, and a
            run that has taken so long stops as with Ctrl-C.

    Raises:
        RunFailed: a step failed.
        OverBudget: the run would take longer than its budget, or has.
        TemperError: the store cannot be used, or no launcher has the resources that a step
            requests.
    """
    from pipeline.show.terminal import make_console

    roots = named(roots)
    check_request(roots, jobs, launcher)
    store = visible_to_workers(store)
    check_names(force=force, only=only, sinks=sinks)
    require_sinks(list(sinks))
    expecting = [*roots.values()]
    roots = chosen(make_plan(roots, store), only) if only else roots
    invocation = Invocation(roots, store, console or make_console(), force, expecting, title)
    options = RunOptions(jobs, launcher, scheduler, verbosity, again, sinks, budget)
    estimates = _planned(invocation, options)
    with held(budget):
        found = _completed(invocation, lambda: run_missing(invocation, options, estimates))
    for step in roots.values():
        if step.fingerprint not in found:
            store.require_still_there()
            raise RunFailed(f"{step.name} was not run, and no step failed; run again")
    made = {name: found[step.fingerprint] for name, step in roots.items()}
    if not only:
        link_results(store, invocation.record.experiment, made)
    _show_made(invocation, found, made, verbosity)
    return _Results({name: Made(manifest, store) for name, manifest in made.items()})


def plan(
    roots: Mapping[str, Step] | Iterable[Step],
    store: str | Store | None = None,
    force: Collection[str] = (),
) -> Plan:
    """What :func:`run` would do with the same arguments, and why: each step with its state and the
    reason. It runs nothing and writes nothing."""
    return make_plan(named(roots), open_store(store), force)


class _Results(dict[str, Made]):
    """Artifacts by the name of the result."""

    def __missing__(self, name: object) -> Never:
        raise NoResult(f"there is no result {name!r}; {hint(str(name), [*self])}")


class NoResult(TemperError, KeyError):
    """A result was asked for that the run did not have."""

    __str__ = Exception.__str__


def advance(
    roots: Mapping[str, Step],
    store: Store,
    pauses: Mapping[str, Pause],
    jobs: int = 1,
    console: "Console | None" = None,
    launcher: "LauncherConfig | None" = None,
    sinks: Collection[str] = (),
) -> dict[str, Made]:
    """Like :func:`run`, for steps that may pause or fail; failures are shown and not raised. Steps
    that are built afterwards see the code and files as they were.

    Args:
        pauses: the points at which steps pause, by fingerprint.

    Returns:
        The artifacts of the roots that exist afterwards.
    """
    from pipeline.show.terminal import make_console

    invocation = Invocation(roots, store, console or make_console(), (), roots.values())
    invocation.plan()
    invocation.require_expected()

    def advance_missing() -> None:
        with contextlib.suppress(RunFailed):
            run_missing(invocation, RunOptions(jobs, launcher, sinks=sinks), pauses=pauses)

    found = _completed(invocation, advance_missing)
    return {
        name: Made(found[step.fingerprint], store)
        for name, step in roots.items()
        if step.fingerprint in found
    }


def _planned(invocation: Invocation, options: RunOptions) -> "Estimates | None":
    """Plan, and show the plan; ends the process if a plan is all that is wanted.

    Returns the estimates that are shown, if there are any.

    Raises:
        TemperError: a package that a step needs here is missing, or a step's artifact would not be
            what :meth:`Step.expect` says.
    """
    from pipeline.launchers.environment import kept_from_workers
    from pipeline.show.terminal import show_kept_from_workers, show_plan, show_title

    invocation.plan()
    verbosity = options.verbosity
    is_priced = verbosity >= 0 or options.budget is not None
    estimates = invocation.estimates(options) if is_priced else None
    if verbosity >= 0:
        show_title(invocation.console, invocation.record.title)
        show_plan(invocation.console, invocation.current, verbosity > 0, estimates, options.jobs)
    invocation.require_expected()
    require_packages(invocation.current, options.launcher)
    require_within(options.budget, invocation.current, estimates, options.jobs)
    if PLAN_ONLY in os.environ:
        note_plan()
        raise SystemExit(0)
    if not invocation.current.is_complete and (kept := kept_from_workers(options.launcher)):
        show_kept_from_workers(invocation.console, kept)
    return estimates


def _completed(invocation: Invocation, run_missing: Callable[[], None]) -> Mapping[str, Manifest]:
    """Run what the plan lacks, if anything; return the artifacts that then exist, by fingerprint of
    their steps."""
    if invocation.current.is_complete:
        if fault := invocation.keep("done"):
            from pipeline.show.terminal import show_unrecorded

            show_unrecorded(invocation.console, unwritable(invocation.store, fault))
        return invocation.current.manifests()
    try:
        run_missing()
        return invocation.resolver().artifacts(planned.step for planned in invocation.current.steps)
    except KeyboardInterrupt as error:
        shorten_in_notebooks(error)
        raise


def _show_made(
    invocation: Invocation,
    found: Mapping[str, Manifest],
    made: Mapping[str, Manifest],
    verbosity: int,
) -> None:
    """Show the results of a run, or only their places if `verbosity` is negative."""
    from pipeline.show import terminal

    console, store, record = invocation.console, invocation.store, invocation.record
    if verbosity < 0:
        terminal.show_places(console, store, made)
        return
    terminal.show_notices(console, found.values())
    terminal.show_outcome(console, invocation.catalog, made)
    terminal.show_results(console, invocation.catalog, made)
    own = [m for m in found.values() if m.provenance.get("run") == record.name]
    terminal.show_end(console, own, record.seconds)
    kinds = {name: step.kind for name, step in invocation.roots.items()}
    terminal.show_next(console, store, record.experiment, kinds, made)


def note_plan() -> None:
    """Let ``temper plan``, if it has started this process, know that a plan was shown."""
    if file := os.environ.get(PLAN_ONLY):
        Path(file).touch()
