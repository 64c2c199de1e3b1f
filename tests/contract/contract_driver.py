"""A driver as a process of its own: ``python contract_driver.py MODE STORE JOURNAL [CLOCK]``.

``run`` is ``pipeline.run``. ``step`` makes one step, with leases that go by the clock of a test,
and notes in the journal for whom it waits; ``stop`` does the same, and stops itself (SIGSTOP) in
the moment when it has confirmed that the lease is its own and is about to commit.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from clocks import SharedClock
from toy_steps import Times, add, multiply, numbers, slow_count
from waiting import HANGS_SECONDS

import pipeline.store.lease
from pipeline import File, Step, Store, run
from pipeline.launchers.local import LocalLauncher
from pipeline.launchers.placement import Placement
from pipeline.plan.resolver import Resolver
from pipeline.running.attempts import Executor
from pipeline.store.catalog import Catalog
from pipeline.store.lease import Holder, Lease, Leases
from pipeline.wire.lifeline import Lifeline

COUNTED = 6
TTL, BEAT = HANGS_SECONDS, 0.1
"""Seconds: by the clock of the test, and by a real one."""


def roots(journal: str) -> dict[str, Step]:
    """A small DAG, in which one step takes its time; its input lies beside the journal."""
    source = Path(journal).with_name("numbers.txt")
    values = numbers(File(str(source)), journal)
    products = [multiply(values["train"], Times(factor), journal) for factor in (2, 3)]
    return {"sum": add(products, journal), "count": slow_count(COUNTED, journal)}


class WatchedLeases(Leases):
    """Leases of a test's clock, of which one hears when somebody else's is waited for."""

    def __init__(
        self, store: Store, run: str, waiting: Callable[[Holder], None], beat: float = BEAT
    ):
        super().__init__(store.objects, store.root, run, ttl=TTL, beat=beat)
        self._waiting = waiting

    def acquire(
        self,
        step: str,
        key: str,
        done: Callable[[], bool],
        waiting: Callable[[Holder], None] | None = None,
    ) -> Lease | None:
        return super().acquire(step, key, done, self._waiting)


def make_step(url: str, journal: str, clock: str) -> None:
    """Make the slow step and print who committed it."""
    pipeline.store.lease.time = SharedClock(Path(clock))  # type: ignore[assignment]

    def note(holder: Holder) -> None:
        with open(journal, "a") as file:
            file.write(f"waits for {holder.pid}\n")

    store = Store(url)
    store.prepare()
    lifeline = Lifeline()
    resolver = Resolver(Catalog(store), live=True)
    leases = WatchedLeases(store, str(os.getpid()), note)
    placement = Placement([LocalLauncher(lifeline)])
    executor = Executor(resolver, placement, leases, {"run": str(os.getpid())})
    made = executor.execute(roots(journal)["count"])
    print(made.provenance["run"])


def stop_before_commit() -> None:
    confirm = Lease.confirm

    def confirm_and_stop(self: Lease) -> bool:
        confirmed = confirm(self)
        os.kill(os.getpid(), signal.SIGSTOP)
        return confirmed

    Lease.confirm = confirm_and_stop


if __name__ == "__main__":
    mode, url, journal, *clock = sys.argv[1:]
    if mode == "run":
        run(roots(journal), url)
    else:
        if mode == "stop":
            stop_before_commit()
        make_step(url, journal, *clock)
