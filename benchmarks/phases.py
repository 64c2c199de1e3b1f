"""Measure the phases of a process in wall and CPU seconds, and write them as JSON."""

import contextlib
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path


class Phases:
    """Seconds by the name of a phase; CPU seconds include children that have ended."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self.marks: list[dict[str, float]] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), _cpu()
        yield
        self.seconds[name] = {"wall": time.perf_counter() - wall, "cpu": _cpu() - cpu}

    def mark(self) -> None:
        """A moment, such as the end of a training step."""
        self.marks.append({"wall": time.perf_counter(), "cpu": _cpu()})

    def write(self, path: str) -> None:
        Path(path).write_text(json.dumps(self.seconds))


def _cpu() -> float:
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
