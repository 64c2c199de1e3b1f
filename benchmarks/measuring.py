"""Measures processes and their phases. Contenders take turns (A B A B …), so that other load on the
machine affects all of them equally; a ratio is the median of the ratios of samples of one round.

Interpreters that have TRL and not Temper's packages import this module too.
"""

import contextlib
import json
import os
import resource
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parents[1]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # else each process compiles what no installer has compiled
    "PYTHONPATH": str(REPOSITORY),
}


def keep_freed_memory() -> None:
    """Treat freed memory as a worker of Temper does, on either side."""
    runpy.run_path(str(REPOSITORY / "pipeline/worker/memory.py"))["keep_freed_memory"]()


class Phases:
    """Seconds by the name of a phase; CPU seconds include children that have ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self.marks: list[dict[str, float]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        self.seconds[name] = {"wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}

    def mark(self) -> None:
        """A moment, such as the end of a training step."""
        self.marks.append({"wall": time.perf_counter(), "cpu": cpu_seconds()})

    def write(self, path: str) -> None:
        Path(path).write_text(json.dumps(self.seconds))


def cpu_seconds() -> float:
    """Of this process, and of its children that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


_WATCH = """
import os, sys, time
report, *command = sys.argv[1:]
began = time.perf_counter()
child = os.posix_spawnp(command[0], command, os.environ)
_, status, used = os.wait4(child, 0)
wall = time.perf_counter() - began
os.write(int(report), f"{wall} {used.ru_utime + used.ru_stime} {used.ru_maxrss / 1024}".encode())
sys.exit(min(abs(os.waitstatus_to_exitcode(status)), 255))
"""
"""A small process that starts another: its peak of memory would begin with its parent's, where
tables of models may lie."""


def measured(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    output: int | IO[str] = subprocess.DEVNULL,
) -> dict[str, float]:
    """Run a command to its end: ``wall`` and ``cpu`` seconds and ``peak`` MiB, with its children.

    Args:
        output: for what it prints; its errors go there too, unless it prints to nowhere.
    """
    errors = None if output == subprocess.DEVNULL else output
    reading, writing = os.pipe()
    with os.fdopen(reading) as report:
        try:
            subprocess.run(
                [sys.executable, "-IS", "-c", _WATCH, str(writing), *command],
                env={**os.environ, **(environment or {})},
                stdout=output,
                stderr=errors,
                pass_fds=[writing],
                check=True,
            )
        finally:
            os.close(writing)
        wall, cpu, peak = map(float, report.read().split())
    return {"wall": wall, "cpu": cpu, "peak": peak}


def side(
    command: Sequence[str], job: Mapping[str, Any], output: Path
) -> tuple[dict[str, float], Any]:
    """Run one side of a comparison with a job, on one thread and in a folder of its own; return its
    measurements and its report."""
    output.mkdir(parents=True, exist_ok=True)
    job_file, report, log = (output / name for name in ("job.json", "report.json", "log.txt"))
    job_file.write_text(json.dumps({**job, "output": str(output)}))
    try:
        with log.open("w") as file:
            used = measured([*command, str(job_file), str(report)], ONE_THREAD, file)
    except subprocess.CalledProcessError:
        raise SystemExit(log.read_text()[-4000:]) from None
    return used, json.loads(report.read_text())


def table(title: str, *headings: str) -> Any:
    """A table of figures; the columns without a heading hold their names."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for heading in headings:
        made.add_column(heading, justify="right" if heading else "left")
    return made
