"""Runs the missing steps of a plan, in rounds: each plans again if data turned out to be lost."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline.base.errors import TemperError
from pipeline.base.repeating import repeating
from pipeline.launchers.driver_end import heed_first
from pipeline.running.invocation import Invocation, RunOptions
from pipeline.wire.spec import Pause

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of these
    from pipeline.estimate.estimates import Estimates
    from pipeline.launchers.placement import Placement
    from pipeline.running.attempts import Executor
    from pipeline.running.luigi_engine import Observer
    from pipeline.show.live import Board
    from pipeline.show.sinks.process import MirrorProcess
    from pipeline.wire.lifeline import Lifeline

_RUNNING = threading.Lock()
"""Held during a run: a process has only one set of Luigi tasks and of signal handlers."""
SIGN_SECONDS, REMOTE_SIGN_SECONDS = 3.0, 30.0
"""A run records so often that it goes on: a killed one lasted until then."""
MOST_ROUNDS = 5
"""The most times that a run plans again because data that it needs turned out to be lost."""


class RunFailed(TemperError):
    """Some steps failed; all steps that do not need them are done and in the store."""

    status = 3


def run_missing(
    invocation: Invocation,
    options: RunOptions,
    estimates: "Estimates | None" = None,
    pauses: Mapping[str, Pause] = MappingProxyType({}),
) -> None:
    """Run what the plan lacks.

    Raises:
        RunFailed: a step failed.
        TemperError: this process is in a run already, the store cannot be written, or no launcher
            has the resources that a step requests.
    """
    from pipeline.running.attempts import Executor
    from pipeline.show.terminal import show_plan
    from pipeline.store.lease import Leases
    from pipeline.wire.lifeline import Lifeline

    store, record = invocation.store, invocation.record
    leases = Leases(store.objects, store.root, record.name)
    if not _RUNNING.acquire(blocking=False):
        raise TemperError("this process is in a run already; give it all the steps, or use another")
    lifeline = Lifeline()
    try:
        placed = placement(invocation, options, lifeline)
        store.prepare()

        def run_round() -> "Board":
            executor = Executor(invocation.resolver(), placed, leases, record.provenance, pauses)
            return _run_round(invocation, options, executor, lifeline, estimates)

        board = run_round()
        for _ in range(MOST_ROUNDS - 1):
            may_lack = not board.failed and not pauses
            if not (invocation.lacks_results() if may_lack else invocation.plan_again()):
                break
            if options.verbosity >= 0:
                show_plan(invocation.console, invocation.current)
            board = run_round()
    finally:
        lifeline.close()
        _RUNNING.release()
    if board.failed:
        board.show_failures(options.again)
        store.require_still_there()
        names = ", ".join(row.name for row in board.failed)
        raise RunFailed(f"failed: {names}; what is done is kept, run again to go on")


def _run_round(
    invocation: Invocation,
    options: RunOptions,
    executor: "Executor",
    lifeline: "Lifeline",
    estimates: "Estimates | None",
) -> "Board":
    """Run what the present plan lacks; return what became of each step."""
    from pipeline.running.luigi_engine import schedule  # a cached run needs no Luigi
    from pipeline.show.live import Board
    from pipeline.show.sinks.process import mirrored

    record, resolver, placed = invocation.record, executor.resolver, executor.placement
    ahead = estimates.ahead(invocation.current) if estimates is not None else ()
    board = Board(
        invocation.console, invocation.current, resolver, options.verbosity, placed.description,
        ahead, options.jobs, record.name,
    )  # fmt: skip
    outcome = "stopped"
    pause = SIGN_SECONDS if invocation.store.is_local else REMOTE_SIGN_SECONDS
    invocation.begin()
    try:
        with (
            repeating(pause, invocation.note_alive, "signs of life"),
            mirrored(resolver, record.name, record.experiment, options.sinks, board.names) as sent,
            _signals_as_interrupt(),
            board.live(),
            placed.ready(invocation.missing()),
        ):
            roots, observer = invocation.roots.values(), _observer(invocation, board, sent)
            schedule(roots, executor, lifeline, options.jobs, observer, options.scheduler)
        board.show_lines(sent.output if sent else ())
        outcome = "failed" if board.failed else "paused" if board.paused else "done"
    finally:
        invocation.keep(outcome, board)
    return board


def placement(invocation: Invocation, options: RunOptions, lifeline: "Lifeline") -> "Placement":
    """The placement of every step that may run.

    Raises:
        TemperError: no launcher has the resources that a step requests.
    """
    from pipeline.launchers.config import LauncherConfig
    from pipeline.launchers.placement import Placement, requests
    from pipeline.launchers.registry import launcher_opener

    config = options.launcher or LauncherConfig()
    run = invocation.record.name
    opener = launcher_opener(config, invocation.store, lifeline, options.jobs, run)
    asked = requests(invocation.roots.values(), config.requests())
    placed = Placement([opener(kind) for kind in config.use], asked, opener)
    placed.require(invocation.missing())
    return placed


def _observer(invocation: Invocation, board: "Board", mirror: "MirrorProcess | None") -> "Observer":
    """Reports states of tasks to the board, the record, and the sinks' process if there is one."""

    def observe(fingerprint: str, state: str, message: str) -> None:
        row = board.rows[fingerprint]
        before = row.state
        board.observe(fingerprint, state, message)
        if row.state not in (before, "running"):
            invocation.note(fingerprint, board)
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
    previous = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    heed_first(previous)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
