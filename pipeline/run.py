"""``run``: plan a DAG, run what is missing, say how it went."""

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipeline import variants
from pipeline.catalog import Catalog
from pipeline.errors import Stopped, TemperError
from pipeline.lifeline import WORKER_ENVIRONMENT
from pipeline.manifest import Manifest
from pipeline.plan import Plan, Resolver, State, make_plan, topological
from pipeline.record import RunRecord
from pipeline.sinks import require_sinks
from pipeline.step import Step, look_again
from pipeline.store import Store

if TYPE_CHECKING:  # workers import this module too, and show nothing
    from rich.console import Console

    from pipeline.engine import Observer
    from pipeline.launchers.config import LauncherConfig
    from pipeline.lifeline import Lifeline
    from pipeline.live import Board
    from pipeline.placement import Placement
    from pipeline.sinks.process import MirrorProcess

PLAN_ONLY = "TEMPER_PLAN_ONLY"
"""Set by ``temper plan``: a script that calls :func:`run` ends where it would begin to work."""
_RUNNING = threading.Lock()
"""Luigi's tasks, and the signals that stop a run, belong to a whole process."""
MOST_ROUNDS = 5
"""How often a run plans anew because data that it needs turned out to be lost."""


class RunFailed(TemperError):
    """Some steps failed; everything that does not need them is done and in the store."""


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
) -> dict[str, Manifest]:
    """Make every root and what it needs; the artifact of each root under its name.

    What the store has is not run again. When a step fails, steps that do not need it run all the
    same, and all failures are told at the end. Ctrl-C, SIGTERM and SIGKILL leave a store from
    which the next run goes on.

    Args:
        roots: what is wanted, under the names to show, or a list, shown under the steps' names.
        store: local path or fsspec URL.
        jobs: how many steps may run at once.
        force: names of steps to run again although they are cached. The artifacts they had stay.
        scheduler: URL of a ``luigid`` that several drivers share.
        launcher: where steps run; by default on this machine.
        only: make these steps and what they need, and not the roots: ``STEP`` or ``STEP@KEY``.
        verbosity: -1 for failures and places of results alone, 1 for what workers print too.
        again: the command that runs only the step which is called so; shown where one fails.
        sinks: where else to show metrics: ``wandb``, ``tensorboard``.

    Raises:
        RunFailed: a step failed.
        TemperError: the store cannot be used, or no launcher has what a step asks for.
    """
    from pipeline.board import make_console, show_notices, show_places, show_plan, show_results

    roots = _named(roots)
    _check_request(roots, jobs)
    store = store if isinstance(store, Store) else Store(store)
    if store.url.startswith("memory:"):
        raise TemperError(
            f"store={store.url}: workers are processes and cannot see this one's memory"
        )
    for option, names in (("force", force), ("only", only), ("sinks", sinks)):
        if isinstance(names, str) or not isinstance(names, Collection):
            raise TemperError(f"{option}={names!r}: give names of steps as in ['train_dpo']")
    require_sinks(list(sinks))
    roots = _chosen(make_plan(roots, store), only) if only else roots
    session = _Session(roots, store, console or make_console(), force)
    session.plan()
    if verbosity >= 0:
        show_plan(session.console, session.current, whole=verbosity > 0)
    if PLAN_ONLY in os.environ:
        raise SystemExit(0)
    if session.current.is_complete:
        session.keep("done")
        found = session.current.manifests()
    else:
        _run_missing(session, jobs, scheduler, launcher, verbosity, again, sinks)
        found = session.resolver().artifacts(planned.step for planned in session.current.steps)
    made = {name: _finished(found, step) for name, step in roots.items()}
    if verbosity < 0:
        show_places(session.console, store, made)
        return made
    show_notices(session.console, found.values())
    show_results(session.console, store, made)
    return made


def _named(roots: Mapping[str, Step] | Iterable[Step]) -> Mapping[str, Step]:
    """Roots under their names; of a list, under the steps' names, with what tells them apart."""
    if isinstance(roots, Step) or not isinstance(roots, Iterable):
        raise TemperError(f"run({roots}): give the steps that are wanted as a list or a dict")
    if isinstance(roots, Mapping):
        return {str(name): root for name, root in roots.items()}
    steps: list[Step] = list(roots)
    if not all(isinstance(step, Step) for step in steps):
        return {repr(step): step for step in steps}  # refused below
    labels = variants.names(variants.of_steps(topological(steps)))
    names = [f"{step.name} {labels[step.fingerprint]}".strip() for step in steps]
    alone = Counter(step.name for step in steps)
    return {
        (step.name if alone[step.name] == 1 else name): step
        for name, step in zip(names, steps, strict=True)
    }


def _chosen(plan: Plan, names: Collection[str]) -> Mapping[str, Step]:
    """The steps of a plan that are called so, by what tells them apart.

    Raises:
        TemperError: there is none of a name.
    """
    from pipeline.board import display_names

    shown = display_names(plan)
    chosen: dict[str, Step] = {}
    for name in names:
        step, _, prefix = name.partition("@")
        found = [
            p.step
            for p in plan.steps
            if p.step.name == step and (p.key or p.step.fingerprint).startswith(prefix)
        ]
        if not found:
            known = ", ".join(dict.fromkeys(p.step.name for p in plan.steps))
            raise TemperError(f"only: there is no step {name} in this experiment; it has: {known}")
        chosen |= {shown[step.fingerprint]: step for step in found}
    return chosen


def _check_request(roots: Mapping[str, Step], jobs: int) -> None:
    if type(jobs) is not int or jobs < 1:
        raise TemperError(f"jobs={jobs!r}: at least one step must be able to run at a time")
    for name, root in roots.items():
        if not isinstance(root, Step):
            raise TemperError(f"result {name!r} is {root!r}; name a whole step, not a part of one")
    if WORKER_ENVIRONMENT in os.environ:
        raise TemperError(
            "run() was called while a worker imported the script that defines its step; put it "
            'under `if __name__ == "__main__":`'
        )


def _finished(found: Mapping[str, Manifest], step: Step) -> Manifest:
    """A root's artifact."""
    if step.fingerprint not in found:
        raise RunFailed(f"{step.name} was not run, and no step failed; run again")
    return found[step.fingerprint]


class _Session:
    """One invocation: its plan (made again when data turns out to be lost) and its record."""

    def __init__(
        self,
        roots: Mapping[str, Step],
        store: Store,
        console: "Console",
        force: Collection[str],
    ):
        self.roots, self.store, self.console = roots, store, console
        self.force = force
        self.record = RunRecord.begin(roots, store)
        self.catalog = Catalog(store)
        self.current: Plan
        self._outcomes: dict[str, dict[str, Any]] = {}

    def plan(self) -> Plan:
        self.current = make_plan(
            self.roots, self.store, self.force, self.catalog, run=self.record.name
        )
        return self.current

    def resolver(self) -> Resolver:
        return Resolver(
            self.catalog,
            self.current.unusable,
            self.current.forced,
            self.record.name,
            live=True,
        )

    def plan_again(self) -> bool:
        """Plan anew after failures; true if artifacts were lost, or collected, meanwhile."""
        before = self.current
        self.catalog = Catalog(self.store)
        after = self.plan()
        lost = after.unusable.keys() - before.unusable.keys()
        return bool(lost or before.manifests().keys() - after.manifests().keys())

    def lacks_results(self) -> bool:
        """Whether the data of a result is gone that turned out to be an earlier one: its key was
        not known when the run was planned, so nobody looked. If so, plan anew."""
        resolver = self.resolver()
        made = filter(None, map(resolver.artifact, self.roots.values()))
        if all(manifest.provenance.get("run") == self.record.name for manifest in made):
            return False
        self.catalog = Catalog(self.store)
        return not self.plan().is_complete

    def begin(self) -> None:
        """Write the record of a run that has begun.

        Raises:
            TemperError: the store cannot be written.
        """
        self.store.record_run(self.record.to_dict("running", self.current, self._outcomes))

    def keep(self, outcome: str, board: "Board | None" = None) -> None:
        """Write the record of the run so far, and an index for the next one."""
        for fingerprint, went in (board.outcomes() if board else {}).items():
            if went["state"] != "cached" or fingerprint not in self._outcomes:
                self._outcomes[fingerprint] = went
        with contextlib.suppress(TemperError):  # a full disk has been reported by the step
            self.store.record_run(self.record.to_dict(outcome, self.current, self._outcomes))
        self.catalog.save()


def _run_missing(
    session: _Session,
    jobs: int,
    scheduler: str | None,
    launcher: "LauncherConfig | None",
    verbosity: int,
    again: Callable[[str], str] | None,
    sinks: Collection[str],
) -> None:
    from pipeline.board import show_plan
    from pipeline.engine import schedule  # Luigi is not needed when everything is cached
    from pipeline.execution import Executor
    from pipeline.lease import Leases
    from pipeline.lifeline import Lifeline
    from pipeline.live import Board
    from pipeline.sinks.process import mirrored

    record = session.record
    leases = Leases(session.store.objects, session.store.root, record.name)
    if not _RUNNING.acquire(blocking=False):
        raise TemperError("this process is in a run already; give it all the steps, or use another")
    lifeline = Lifeline()

    def run_round() -> "Board":
        resolver = session.resolver()
        executor = Executor(resolver, placement, leases, record.provenance)
        board = Board(session.console, session.current, resolver, verbosity, placement.told)
        outcome = "stopped"
        session.begin()
        try:
            group = record.experiment
            with (
                mirrored(resolver, group, sinks, board.names) as mirror,
                _sigterm_as_interrupt(),
                board.live(),
            ):
                observer = _both(board, mirror)
                schedule(session.roots.values(), executor, lifeline, jobs, observer, scheduler)
            board.show_lines(mirror.said if mirror else ())
            outcome = "failed" if board.failed else "done"
        finally:
            session.keep(outcome, board)
        return board

    try:
        placement = _placement(session, jobs, launcher, lifeline)
        session.store.prepare()
        board = run_round()
        for _ in range(MOST_ROUNDS - 1):
            if not (session.plan_again() if board.failed else session.lacks_results()):
                break
            if verbosity >= 0:
                show_plan(session.console, session.current)
            board = run_round()
    finally:
        lifeline.close()
        _RUNNING.release()
        look_again()  # what is built after this is to see the files as they are
    if board.failed:
        board.show_failures(again)
        names = ", ".join(row.name for row in board.failed)
        raise RunFailed(f"failed: {names}; what is done is kept, run again to go on")


def _placement(
    session: _Session, jobs: int, config: "LauncherConfig | None", lifeline: "Lifeline"
) -> "Placement":
    """Where every step goes that may run.

    Raises:
        TemperError: no launcher has what a step asks for.
    """
    from pipeline.launchers.config import LauncherConfig
    from pipeline.launchers.registry import launcher_opener
    from pipeline.placement import Placement, requests

    config = config or LauncherConfig()
    opener = launcher_opener(config, session.store, lifeline, jobs, session.record.name)
    asked = requests(session.roots.values(), config.requests())
    placement = Placement([opener(kind) for kind in config.use], asked, opener)
    missing = (p.step for p in session.current.steps if p.state is not State.CACHED)
    placement.require(missing)
    return placement


def _both(board: "Board", mirror: "MirrorProcess | None") -> "Observer":
    """What the scheduler tells: the board, and the sinks' process if there is one."""
    if mirror is None:
        return board.observe

    def observe(fingerprint: str, state: str, message: str) -> None:
        board.observe(fingerprint, state, message)
        mirror.observe(board.rows[fingerprint].step, state)

    return observe


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM stop workers in order, as Ctrl-C does; signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
