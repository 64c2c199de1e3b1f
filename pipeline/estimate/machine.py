"""The hardware of this machine, for records of attempts and for estimates of plans."""

import contextlib
import functools
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import processes
from pipeline.dag.resources import Resources


@dataclass(frozen=True)
class Hardware:
    """The hardware on which one step runs: the model of its processors or accelerators (empty if
    unknown), the number of accelerators (0: only processors), the threads of one process, and the
    bytes of one accelerator or of the machine."""

    model: str = ""
    devices: int = 0
    threads: int = 1
    memory: int | None = None

    def is_like(self, other: "Hardware") -> bool:
        """Whether steps take as long; if a model is unknown, whether it has as many devices."""
        is_same = self.model == other.model and (self.devices > 0 or self.threads == other.threads)
        return self.devices == other.devices and (is_same or not self.model or not other.model)


def hardware_here(
    asked: Resources, jobs: int = 1, gpus: Sequence[tuple[str, int]] = ()
) -> Hardware:
    """The hardware of a step that requests these resources of this machine.

    Args:
        jobs: how many steps share the processors.
        gpus: model and bytes of each GPU here.
    """
    cores = asked.cpus or max(1, cores_here() // jobs)
    threads = threads_set() or max(1, cores // asked.num_processes)
    if not asked.num_gpus:
        return Hardware(processor(), 0, threads, memory_here())
    wanted = (asked.accelerator or "").lower()
    found = [(model, memory) for model, memory in gpus if wanted in model.lower()]
    if not found:
        return hardware_elsewhere(asked)
    return Hardware(found[0][0], asked.num_gpus * asked.num_nodes, threads, found[0][1])


def hardware_elsewhere(asked: Resources) -> Hardware:
    """The hardware of a step on another machine, as far as its request determines it."""
    if asked.tpu is not None:
        return Hardware(f"{asked.tpu} chip", asked.num_chips)
    threads = max(1, (asked.cpus or 1) // asked.num_processes)
    if not asked.num_gpus:
        return Hardware("", 0, threads, asked.memory_bytes)
    return Hardware(asked.accelerator or "", asked.num_gpus * asked.num_nodes, threads)


def threads_set() -> int | None:
    """The number of threads that the environment sets for a process; workers inherit it."""
    threads = processes.STARTED_WITH.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and int(threads) else None


@functools.cache
def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def cores_here() -> int:
    """The number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_here() -> int:
    """The memory of this machine in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_disk(folder: Path) -> int | None:
    """The free bytes on the disk of a folder, which need not exist; ``None`` if unknown."""
    with contextlib.suppress(OSError):
        place = next(place for place in (folder, *folder.parents) if place.exists())
        return shutil.disk_usage(place).free
    return None
