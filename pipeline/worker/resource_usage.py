"""Measures the resources that an attempt uses, for the provenance of its artifact."""

import contextlib
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.estimate.machine import cores_here, memory_here, processor, threads_set


def spent(devices: Mapping[str, Any], processes: int, resumed: bool, seconds: float) -> dict:
    """The resources that this process and its child processes have used so far.

    ``memory`` is the largest resident memory of one process, ``device_memory`` the most that it has
    allocated on its accelerator, both in bytes. ``cpu_seconds`` covers all processes.

    Args:
        devices: the result of :func:`of_devices` in a process that ran the step.
        processes: the number of ranks of the step, on all nodes.
        resumed: whether the attempt resumed from the scratch of an earlier one.
        seconds: since the worker began the attempt. The driver may have waited longer, until the
            parent of warm workers had imported its libraries.
    """
    mine = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    on_devices = devices.get("model")
    return {
        "model": on_devices or processor(),
        "devices": processes if on_devices else 0,
        "threads": threads_set() or cores_here(),
        "memory": max(_most_resident() or mine.ru_maxrss * unit, others.ru_maxrss * unit),
        "cpu_seconds": round(sum(r.ru_utime + r.ru_stime for r in (mine, others)), 3),
        "machine_memory": memory_here(),
        "seconds": round(seconds, 3),
        **({"device_memory": devices["memory"]} if on_devices else {}),
        **({"resumed": True} if resumed else {}),
    }


def _most_resident() -> int | None:
    """The most resident bytes of this process, from Linux's ``/proc``. ``getrusage`` would start
    from the memory of the process that started this one, for example a large notebook."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def of_devices() -> dict[str, Any]:
    """The GPU that this process used, and the most bytes allocated there; empty if none."""
    # a step without torch has used no GPU; a project may have a module of this name
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return {}
    return {"model": cuda.get_device_name(), "memory": cuda.max_memory_allocated()}
