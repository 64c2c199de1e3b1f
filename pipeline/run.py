"""``run``: plan a DAG, run what is missing, say how it went."""

import contextlib
import os
import platform
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from rich.console import Console

from pipeline.board import Board, make_console, show_notices, show_plan, show_results
from pipeline.errors import TemperError
from pipeline.lifeline import WORKER_ENVIRONMENT
from pipeline.manifest import Manifest
from pipeline.plan import Plan, Resolver, make_plan, topological
from pipeline.step import Step
from pipeline.store import Store


class RunFailed(TemperError):
    """Some steps failed; everything that does not need them is done and in the store."""


class Stopped(KeyboardInterrupt):
    """The run was asked to end by SIGTERM; handled like Ctrl-C."""


def run(
    roots: Mapping[str, Step],
    store: str | Store = "store",
    jobs: int = 1,
    console: Console | None = None,
) -> dict[str, Manifest]:
    """Make every root and what it needs; the artifact of each root under its name.

    What the store has is not run again. When a step fails, steps that do not need it run all the
    same. Ctrl-C, SIGTERM and SIGKILL leave a store from which the next run goes on.

    Args:
        roots: what is wanted, under the names to show.
        store: local path or fsspec URL.
        jobs: how many steps may run at once.

    Raises:
        RunFailed: a step failed.
        TemperError: the store cannot be used, or an input is damaged.
    """
    _check_request(roots, jobs)
    store = store if isinstance(store, Store) else Store(store)
    if store.url.startswith("memory:"):
        raise TemperError(
            f"store={store.url}: workers are processes and cannot see this one's memory"
        )
    console = console or make_console()
    plan = make_plan(roots, store)
    show_plan(console, plan)
    if not plan.is_complete:
        store.prepare()
        _run_missing(plan, store, jobs, console)
    resolver = Resolver(store)
    made = {name: _finished(resolver, step) for name, step in roots.items()}
    show_notices(console, filter(None, map(resolver.artifact, topological(roots.values()))))
    show_results(console, store, made)
    return made


def _check_request(roots: Mapping[str, Step], jobs: int) -> None:
    if jobs < 1:
        raise TemperError(f"jobs={jobs}: at least one step must be able to run at a time")
    for name, root in roots.items():
        if not isinstance(root, Step):
            raise TemperError(f"result {name!r} is {root!r}; name a whole step, not a part of one")
    if WORKER_ENVIRONMENT in os.environ:
        raise TemperError(
            "run() was called while a worker imported the script that defines its step; put it "
            'under `if __name__ == "__main__":`'
        )


def _finished(resolver: Resolver, step: Step) -> Manifest:
    """A root's artifact, its files known to be there."""
    manifest = resolver.artifact(step)
    if manifest is None:
        raise RunFailed(f"{step.name} was not run, and no step failed; run again")
    resolver.store.require_files(manifest)
    return manifest


def _run_missing(plan: Plan, store: Store, jobs: int, console: Console) -> None:
    from pipeline.engine import schedule  # Luigi is not needed when everything is cached
    from pipeline.execution import Executor
    from pipeline.launchers.local import LocalLauncher
    from pipeline.lifeline import Lifeline

    lifeline = Lifeline()
    provenance = {"run": _run_name(), **git_state()}
    resolver = Resolver(store)
    executor = Executor(resolver, LocalLauncher(lifeline, jobs), provenance)
    board = Board(console, plan, resolver)
    outcome = "running"
    _record(store, provenance, board, outcome)
    outcome = "stopped"
    try:
        with _sigterm_as_interrupt(), board.live():
            schedule(plan.roots.values(), executor, jobs, board.observe)
        outcome = "failed" if board.failed else "done"
    finally:
        lifeline.close()
        with contextlib.suppress(TemperError):  # a full disk has been reported by the step
            _record(store, provenance, board, outcome)
    if board.failed:
        board.show_failures()
        names = ", ".join(row.name for row in board.failed)
        raise RunFailed(f"failed: {names}; what is done is kept, run again to go on")


def _record(store: Store, provenance: Mapping[str, Any], board: Board, outcome: str) -> None:
    store.record_run(
        {
            **provenance,
            "host": platform.node(),
            "outcome": outcome,
            "seconds": round(time.time() - board.started, 3),
            "steps": board.record(),
        }
    )


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


def _run_name() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def git_state() -> dict[str, Any]:
    """The commit of the working directory and whether it has changes; empty outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
        return {"commit": git("rev-parse", "HEAD"), "dirty": dirty}
    except (OSError, subprocess.SubprocessError):
        return {}
