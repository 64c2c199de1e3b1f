"""``run``: plans a DAG, runs the missing steps, shows the results."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Never

from pipeline.dag.step import Step, look_again
from pipeline.errors import Stopped, TemperError
from pipeline.observed.discovery import Present
from pipeline.plan.planning import Plan, State, display_names, make_plan
from pipeline.plan.resolver import Resolver
from pipeline.running.record import RunRecord, redacted
from pipeline.running.run_request import (
    check_names,
    check_request,
    chosen,
    named,
    require_packages,
    visible_to_workers,
)
from pipeline.show.made import Made
from pipeline.show.sinks import require_sinks
from pipeline.store.catalog import Catalog
from pipeline.store.latest import link_results
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest
from pipeline.text import hint, visible
from pipeline.uncaught import shorten_in_notebooks
from pipeline.wire.spec import Pause

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of these
    from rich.console import Console

    from pipeline.launchers.config import LauncherConfig
    from pipeline.launchers.placement import Placement
    from pipeline.price.pricing import Prices
    from pipeline.running.luigi_engine import Observer
    from pipeline.show.live import Board
    from pipeline.show.sinks.process import MirrorProcess
    from pipeline.wire.lifeline import Lifeline

PLAN_ONLY = "TEMPER_PLAN_ONLY"
"""The variable by which ``temper plan`` asks for no more than a plan: a file to make for it. A
script that calls :func:`run` then ends after it has shown the plan."""
_RUNNING = threading.Lock()
"""Held during a run: a process has only one set of Luigi tasks and of signal handlers."""
MOST_SECONDS = 1200.0
"""The most that a run waits for an estimate that takes long."""
MOST_ROUNDS = 5
"""The most times that a run plans again because data that it needs turned out to be lost."""


class RunFailed(TemperError):
    """Some steps failed; all steps that do not need them are done and in the store."""


def run(
    roots: Mapping[str, Step] | Iterable[Step],
    store: str | Store = "store",
    jobs: int = 1,
    console: "Console | None" = None,
    force: Collection[str] = (),
    scheduler: str | None = None,
    launcher: "LauncherConfig | None" = None,
    only: Collection[str] = (),
    verbosity: int = 0,
    again: Callable[[str], str] | None = None,
    sinks: Collection[str] = (),
) -> dict[str, Made]:
    """Make every root and all steps that it needs; return the artifact of each root by name.

    Steps that the store has are not run again. If a step fails, steps that do not need it still
    run, and all failures are reported at the end. After Ctrl-C, SIGTERM, SIGHUP or SIGKILL, the
    next run continues from the store.

    Args:
        roots: the wanted steps by the names to show, or a list, shown under the steps' own names.
        store: local path or fsspec URL.
        jobs: how many steps may run at once.
        force: names of steps to run again although they are cached. Their old artifacts stay.
        scheduler: URL of a ``luigid`` that several drivers share.
        launcher: where steps run; by default on this machine.
        only: make only these steps (``STEP`` or ``STEP@KEY``) and what they need, not the roots.
        verbosity: -1 for only failures and places of results, 1 to also show the output of workers.
        again: returns the command that runs only the step with this name; shown after a failure.
        sinks: further displays of metrics: ``wandb``, ``tensorboard``.

    Raises:
        RunFailed: a step failed.
        TemperError: the store cannot be used, or no launcher has the resources that a step
            requests.
    """
    from pipeline.show.terminal import make_console

    roots = named(roots)
    check_request(roots, jobs, launcher)
    store = visible_to_workers(store)
    check_names(force=force, only=only, sinks=sinks)
    require_sinks(list(sinks))
    roots = chosen(make_plan(roots, store), only) if only else roots
    session = _Session(roots, store, console or make_console(), force)
    prices = _planned(session, launcher, jobs, verbosity)
    found = _completed(
        session,
        lambda: _run_missing(session, jobs, scheduler, launcher, verbosity, again, sinks, prices),
    )
    for step in roots.values():
        if step.fingerprint not in found:
            store.require_still_there()
            raise RunFailed(f"{step.name} was not run, and no step failed; run again")
    made = {name: found[step.fingerprint] for name, step in roots.items()}
    if not only:
        link_results(store, session.record.experiment, made)
    _show_made(session, found, made, verbosity)
    return _Results({name: Made(manifest, store) for name, manifest in made.items()})


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
) -> dict[str, Made]:
    """Like :func:`run`, for steps that may pause or fail; failures are shown and not raised.

    Args:
        pauses: the points at which steps pause, by fingerprint.

    Returns:
        The artifacts of the roots that exist afterwards.
    """
    from pipeline.show.terminal import make_console

    session = _Session(roots, store, console or make_console(), ())
    session.plan()

    def run_missing() -> None:
        with contextlib.suppress(RunFailed):
            _run_missing(session, jobs, None, launcher, 0, None, (), None, pauses)

    found = _completed(session, run_missing)
    return {
        name: Made(found[step.fingerprint], store)
        for name, step in roots.items()
        if step.fingerprint in found
    }


def _planned(
    session: "_Session", launcher: "LauncherConfig | None", jobs: int, verbosity: int
) -> "Prices | None":
    """Plan, and show the plan; ends the process if a plan is all that is wanted.

    Returns the estimates that are shown, if there are any.

    Raises:
        TemperError: a package that a step needs here is missing; or no launcher has the resources
            that a step requests, and an estimate would take long.
    """
    from pipeline.show.terminal import show_plan

    session.plan()
    prices = session.prices(launcher, jobs) if verbosity >= 0 else None
    if prices is not None and PLAN_ONLY in os.environ:
        prices.wait(0)
    elif prices is not None and prices.awaited:
        _require_what_steps_need(session, jobs, launcher)
        session.wait(prices)
        prices = session.prices(launcher, jobs)
    if verbosity >= 0:
        show_plan(session.console, session.current, verbosity > 0, prices, jobs)
    require_packages(session.current, launcher)
    if PLAN_ONLY in os.environ:
        note_plan()
        raise SystemExit(0)
    return prices


def _completed(session: "_Session", run_missing: Callable[[], None]) -> Mapping[str, Manifest]:
    """Run what the plan lacks, if anything; return the artifacts that then exist, by fingerprint of
    their steps."""
    if session.current.is_complete:
        session.keep("done")
        return session.current.manifests()
    try:
        run_missing()
        return session.resolver().artifacts(planned.step for planned in session.current.steps)
    except KeyboardInterrupt as error:
        shorten_in_notebooks(error)
        raise
    finally:
        look_again()  # steps that are built later must see the files as they are then


def _show_made(
    session: "_Session", found: Mapping[str, Manifest], made: Mapping[str, Manifest], verbosity: int
) -> None:
    """Show the results of a run, or only their places if `verbosity` is negative."""
    from pipeline.show import terminal

    console, store, record = session.console, session.store, session.record
    if verbosity < 0:
        terminal.show_places(console, store, made)
        return
    terminal.show_notices(console, found.values())
    terminal.show_results(console, store, made)
    own = [m for m in found.values() if m.provenance.get("run") == record.name]
    terminal.show_end(console, own, time.time() - record.started)
    kinds = {name: step.kind for name, step in session.roots.items()}
    terminal.show_next(console, store, record.experiment, kinds)


def note_plan() -> None:
    """Let ``temper plan``, if it has started this process, know that a plan was shown."""
    if file := os.environ.get(PLAN_ONLY):
        Path(file).touch()


class _Session:
    """One invocation: its plan (made again if data turns out to be lost) and its record."""

    def __init__(
        self, roots: Mapping[str, Step], store: Store, console: "Console", force: Collection[str]
    ):
        self.roots, self.store, self.console = roots, store, console
        self.force = force
        self.record = RunRecord.begin(roots, store)
        self.catalog = Catalog(store)
        self._present = Present()  # a run sees one version of discovered dependencies
        self.current: Plan
        self._outcomes: dict[str, dict[str, Any]] = {}

    def plan(self) -> Plan:
        self.current = make_plan(
            self.roots,
            self.store,
            self.force,
            self.catalog,
            self.record.name,
            self.record.experiment,
            self._present,
        )
        return self.current

    def missing(self) -> list[Step]:
        """The steps that will run, or may run."""
        return [planned.step for planned in self.current.steps if planned.state is not State.CACHED]

    def prices(self, launcher: "LauncherConfig | None", jobs: int) -> "Prices | None":
        """The estimated cost of the plan; ``None`` if everything is cached."""
        if self.current.is_complete:
            return None
        from pipeline.running.forecast import prices_of

        return prices_of(self.current, self.catalog, launcher, jobs)

    def wait(self, prices: "Prices") -> None:
        """Wait for the estimates that take long."""
        names = display_names(self.current)
        of = ", ".join(visible(names[name]) for name in prices.awaited)
        line = f"working out the memory of {of}, once; that takes minutes (--plan does not wait)"
        self.console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)
        prices.wait(MOST_SECONDS)

    def resolver(self) -> Resolver:
        return Resolver(
            self.catalog,
            self.current.unusable,
            self.current.forced,
            self.record.name,
            live=True,
            present=self._present,
        )

    def plan_again(self) -> bool:
        """Plan again after failures. True if artifacts were lost or deleted meanwhile."""
        before = self.current
        self.catalog = Catalog(self.store)
        try:
            after = self.plan()
        except TemperError:  # for example a missing part of an input: its step has failed
            return False
        lost = after.unusable.keys() - before.unusable.keys()
        return bool(lost or before.manifests().keys() - after.manifests().keys())

    def lacks_results(self) -> bool:
        """Whether a result is an earlier artifact whose data is gone. If its key was unknown during
        planning, nobody has checked its data yet. In that case this method plans again."""
        resolver = self.resolver()
        made = filter(None, map(resolver.artifact, self.roots.values()))
        if all(manifest.provenance.get("run") == self.record.name for manifest in made):
            return False
        self.catalog = Catalog(self.store)
        return not self.plan().is_complete

    def begin(self) -> None:
        """Write the record of the run at its beginning.

        Raises:
            TemperError: the store cannot be written.
        """
        self.store.record_run(self.record.to_dict("running", self.current, self._outcomes))

    def keep(self, outcome: str, board: "Board | None" = None) -> None:
        """Write the record of the run so far, and the index for the next run."""
        for fingerprint, went in (board.outcomes() if board else {}).items():
            if went["state"] != "cached" or fingerprint not in self._outcomes:
                self._outcomes[fingerprint] = went
        with contextlib.suppress(TemperError):  # the failed step has reported a full disk
            self.store.record_run(self.record.to_dict(outcome, self.current, self._outcomes))
            self.store.forget_steps_of_run(self.record.name)
        self.catalog.save()

    def note(self, fingerprint: str, board: "Board") -> None:
        """Record the outcome of a step at once, since this process may be killed at any moment."""
        after = {"after": round(time.time() - self.record.started, 3)}
        went = redacted(board.outcome(fingerprint)) | after
        self.store.record_step(self.record.name, fingerprint, went)


def _run_missing(
    session: _Session,
    jobs: int,
    scheduler: str | None,
    launcher: "LauncherConfig | None",
    verbosity: int,
    again: Callable[[str], str] | None,
    sinks: Collection[str],
    prices: "Prices | None",
    pauses: Mapping[str, Pause] = MappingProxyType({}),
) -> None:
    from pipeline.running.attempts import Executor
    from pipeline.running.luigi_engine import schedule  # a cached run needs no Luigi
    from pipeline.show.live import Board
    from pipeline.show.sinks.process import mirrored
    from pipeline.show.terminal import show_plan
    from pipeline.store.lease import Leases
    from pipeline.wire.lifeline import Lifeline

    record = session.record
    leases = Leases(session.store.objects, session.store.root, record.name)
    if not _RUNNING.acquire(blocking=False):
        raise TemperError("this process is in a run already; give it all the steps, or use another")
    lifeline = Lifeline()

    def run_round() -> "Board":
        resolver = session.resolver()
        executor = Executor(resolver, placement, leases, record.provenance, pauses)
        ahead = prices.ahead(session.current) if prices is not None else ()
        board = Board(
            session.console, session.current, resolver, verbosity, placement.description,
            ahead, jobs, record.name,
        )  # fmt: skip
        outcome = "stopped"
        session.begin()
        try:
            group = record.experiment
            with (
                mirrored(resolver, group, sinks, board.names) as mirror,
                _signals_as_interrupt(),
                board.live(),
                placement.ready(session.missing()),
            ):
                observer = _observer(session, board, mirror)
                schedule(session.roots.values(), executor, lifeline, jobs, observer, scheduler)
            board.show_lines(mirror.output if mirror else ())
            outcome = "failed" if board.failed else "paused" if board.paused else "done"
        finally:
            session.keep(outcome, board)
        return board

    try:
        placement = _placement(session, jobs, launcher, lifeline)
        session.store.prepare()
        board = run_round()
        for _ in range(MOST_ROUNDS - 1):
            may_lack = not board.failed and not pauses
            if not (session.lacks_results() if may_lack else session.plan_again()):
                break
            if verbosity >= 0:
                show_plan(session.console, session.current)
            board = run_round()
    finally:
        lifeline.close()
        _RUNNING.release()
    if board.failed:
        board.show_failures(again)
        session.store.require_still_there()
        names = ", ".join(row.name for row in board.failed)
        raise RunFailed(f"failed: {names}; what is done is kept, run again to go on")


def _placement(
    session: _Session, jobs: int, config: "LauncherConfig | None", lifeline: "Lifeline"
) -> "Placement":
    """The placement of every step that may run.

    Raises:
        TemperError: no launcher has the resources that a step requests.
    """
    from pipeline.launchers.config import LauncherConfig
    from pipeline.launchers.placement import Placement, requests
    from pipeline.launchers.registry import launcher_opener

    config = config or LauncherConfig()
    opener = launcher_opener(config, session.store, lifeline, jobs, session.record.name)
    asked = requests(session.roots.values(), config.requests())
    placement = Placement([opener(kind) for kind in config.use], asked, opener)
    placement.require(session.missing())
    return placement


def _require_what_steps_need(
    session: _Session, jobs: int, launcher: "LauncherConfig | None"
) -> None:
    """Refuse at once what would be refused after a long wait.

    Raises:
        TemperError: a package is missing, or no launcher has the resources that a step requests.
    """
    from pipeline.wire.lifeline import Lifeline

    require_packages(session.current, launcher)
    with contextlib.closing(Lifeline()) as lifeline:
        _placement(session, jobs, launcher, lifeline)


def _observer(session: _Session, board: "Board", mirror: "MirrorProcess | None") -> "Observer":
    """Reports states of tasks to the board, the record, and the sinks' process if there is one."""

    def observe(fingerprint: str, state: str, message: str) -> None:
        row = board.rows[fingerprint]
        before = row.state
        board.observe(fingerprint, state, message)
        if row.state not in (before, "running"):
            session.note(fingerprint, board)
        if mirror is not None:
            mirror.observe(row.step, state)

    return observe


@contextlib.contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Make SIGTERM, and SIGHUP of a terminal that closes, stop workers in order, like Ctrl-C; only
    the main thread can set handlers. Under ``nohup``, SIGHUP stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    heeded = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        heeded.append(signal.SIGHUP)
    previous = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
