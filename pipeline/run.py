"""``run``: plan a DAG, run what is missing, say how it went."""

import contextlib
import os
import signal
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from pipeline.catalog import Catalog
from pipeline.errors import Stopped, TemperError
from pipeline.lifeline import WORKER_ENVIRONMENT
from pipeline.manifest import Manifest
from pipeline.plan import Plan, Resolver, State, make_plan
from pipeline.record import RunRecord
from pipeline.step import Step, look_again
from pipeline.store import Store

if TYPE_CHECKING:  # workers import this module too, and show nothing
    from rich.console import Console

    from pipeline.board import Board
    from pipeline.launchers.config import LauncherConfig
    from pipeline.lifeline import Lifeline
    from pipeline.placement import Placement

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

    Raises:
        RunFailed: a step failed.
        TemperError: the store cannot be used, or no launcher has what a step asks for.
    """
    from pipeline.board import make_console, show_notices, show_plan, show_results

    roots = _named(roots)
    _check_request(roots, jobs)
    store = store if isinstance(store, Store) else Store(store)
    if store.url.startswith("memory:"):
        raise TemperError(
            f"store={store.url}: workers are processes and cannot see this one's memory"
        )
    if isinstance(force, str) or not isinstance(force, Collection):
        raise TemperError(f"force={force!r}: give names of steps as a list, as in ['train_dpo']")
    session = _Session(roots, store, console or make_console(), force)
    session.plan()
    show_plan(session.console, session.current)
    if PLAN_ONLY in os.environ:
        raise SystemExit(0)
    if session.current.is_complete:
        session.keep("done")
        found = session.current.manifests()
    else:
        _run_missing(session, jobs, scheduler, launcher)
        found = session.resolver().artifacts(planned.step for planned in session.current.steps)
    made = {name: _finished(found, step) for name, step in roots.items()}
    show_notices(session.console, found.values())
    show_results(session.console, store, made)
    return made


def _named(roots: Mapping[str, Step] | Iterable[Step]) -> Mapping[str, Step]:
    """Roots under their names; of a list, under the steps' names, numbered where these repeat."""
    if isinstance(roots, Step) or not isinstance(roots, Iterable):
        raise TemperError(f"run({roots}): give the steps that are wanted as a list or a dict")
    if isinstance(roots, Mapping):
        return {str(name): root for name, root in roots.items()}
    steps: list[Step] = list(roots)
    names = [getattr(step, "name", repr(step)) for step in steps]
    return {
        name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}": step
        for i, (name, step) in enumerate(zip(names, steps, strict=True))
    }


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
    session: _Session, jobs: int, scheduler: str | None, launcher: "LauncherConfig | None"
) -> None:
    from pipeline.board import Board, show_plan
    from pipeline.engine import schedule  # Luigi is not needed when everything is cached
    from pipeline.execution import Executor
    from pipeline.lease import Leases
    from pipeline.lifeline import Lifeline

    record = session.record
    leases = Leases(session.store.objects, session.store.root, record.name)
    if not _RUNNING.acquire(blocking=False):
        raise TemperError("this process is in a run already; give it all the steps, or use another")
    lifeline = Lifeline()

    def run_round() -> "Board":
        resolver = session.resolver()
        executor = Executor(resolver, placement, leases, record.provenance)
        board = Board(session.console, session.current, resolver)
        outcome = "stopped"
        session.begin()
        try:
            with _sigterm_as_interrupt(), board.live():
                schedule(session.roots.values(), executor, lifeline, jobs, board.observe, scheduler)
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
            show_plan(session.console, session.current)
            board = run_round()
    finally:
        lifeline.close()
        _RUNNING.release()
        look_again()  # what is built after this is to see the files as they are
    if board.failed:
        board.show_failures()
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
