"""The cost of launchers: the time from a ready step to its function, and the driver's CPU time.

    python -m benchmarks.launchers [local] [slurm] [ray] [--steps 200] [--jobs 8]

The script starts real clusters on this machine, so workers share its CPUs with the cluster's
daemons. *Start* is the time from the creation of an attempt until the step function begins,
including the start of Python and the import of Temper, for steps that run one after another. The
sweep consists of independent steps, submitted together. The driver's CPU time includes all its
processes and the clients that it calls, but not workers (only with engines that start workers
elsewhere can the two be separated).
"""

import argparse
import calendar
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks import ray_cluster, slurm_cluster
from benchmarks.job_dag import say_when
from benchmarks.measuring import cpu_seconds
from pipeline import run
from pipeline.launchers.config import LauncherConfig, RayConfig, SlurmConfig
from pipeline.store.manifest import Manifest

STARTS = 5
KINDS = ("local", "slurm", "ray")


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    starts: list[float]
    wall: float
    driver: float | None


def measure(kind: str, steps: int, jobs: int) -> Cost:
    """Run a few steps alone, and then many together."""
    quiet = Console(file=open(os.devnull, "w"))  # noqa: SIM115
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder, engine(kind, folder) as use:
        store = f"{folder}/store"
        starts = []
        for number in range(1, STARTS + 1):
            (made,) = run([say_when(-number)], store, console=quiet, launcher=use).values()
            starts.append(_start(made.manifest))
        before, began = cpu_seconds(), time.monotonic()
        run([say_when(n) for n in range(steps)], store, jobs, quiet, launcher=use)
        wall = time.monotonic() - began
        driver = None if kind == "local" else cpu_seconds() - before
    return Cost(starts, wall, driver)


@contextlib.contextmanager
def engine(kind: str, folder: str) -> Iterator[LauncherConfig]:
    """A running engine, as the configuration of its launcher."""
    if kind == "local":
        yield LauncherConfig()
    elif kind == "slurm":
        with slurm_cluster.slurm_cluster() as cluster:
            os.environ.update(cluster.environment)
            yield LauncherConfig(use=["slurm"], slurm=SlurmConfig(folder=f"{folder}/slurm"))
    else:
        with ray_cluster.ray_cluster() as cluster:
            yield LauncherConfig(use=["ray"], ray=RayConfig(address=cluster.address))


def why_not(kind: str) -> str:
    """Why an engine cannot be measured here; empty if it can."""
    return {"slurm": slurm_cluster.why_not, "ray": ray_cluster.why_not}.get(kind, str)()


def _start(made: Manifest) -> float:
    """Seconds from the attempt's creation, a time in its name, to the function's first line."""
    stamp, _, rest = made.attempt.partition("-")
    ready = calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%S")) + int(rest[:3]) / 1000
    return made.metrics["began"] - ready


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=KINDS, metavar="|".join(KINDS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=8)
    asked = parser.parse_args()
    table = Table(
        "launcher", "start, median", "start, worst", f"{asked.steps} steps", "driver's processor",
        "of it per step",
    )  # fmt: skip
    for kind in asked.kinds:
        if reason := why_not(kind):
            print(f"{kind}: {reason}")
            continue
        cost = measure(kind, asked.steps, asked.jobs)
        driver = "–" if cost.driver is None else f"{cost.driver:.1f} s"
        each = "–" if cost.driver is None else f"{1000 * cost.driver / asked.steps:.0f} ms"
        table.add_row(
            kind, f"{statistics.median(cost.starts):.2f} s", f"{max(cost.starts):.2f} s",
            f"{cost.wall:.0f} s", driver, each,
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
