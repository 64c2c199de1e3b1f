"""A driver as a process of its own: ``python contract_driver.py MODE STORE JOURNAL [TTL BEAT]``.

``run`` is ``pipeline.run``. ``step`` makes one step with a lease of the given times; ``stop`` does
the same, and stops itself (SIGSTOP) in the moment when it has confirmed that the lease is its own
and is about to commit.
"""

import os
import signal
import sys
from pathlib import Path

from toy_steps import Times, add, multiply, numbers, slow_count

from pipeline import File, Step, Store, run
from pipeline.catalog import Catalog
from pipeline.execution import Executor
from pipeline.launchers.local import LocalLauncher
from pipeline.lease import Lease, Leases
from pipeline.lifeline import Lifeline
from pipeline.placement import Placement
from pipeline.plan import Resolver

COUNTED = 12


def roots(journal: str) -> dict[str, Step]:
    """A small DAG, in which one step takes its time; its input lies beside the journal."""
    source = Path(journal).with_name("numbers.txt")
    values = numbers(File(str(source)), journal)
    products = [multiply(values["train"], Times(factor), journal) for factor in (2, 3)]
    return {"sum": add(products, journal), "count": slow_count(COUNTED, journal)}


def make_step(url: str, journal: str, ttl: float, beat: float) -> None:
    """Make the slow step and print who committed it."""
    store = Store(url)
    store.prepare()
    lifeline = Lifeline()
    resolver = Resolver(Catalog(store), live=True)
    leases = Leases(store.objects, store.root, run=str(os.getpid()), ttl=ttl, beat=beat)
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
    mode, url, journal, *times = sys.argv[1:]
    if mode == "run":
        run(roots(journal), url)
    else:
        if mode == "stop":
            stop_before_commit()
        make_step(url, journal, *map(float, times))
