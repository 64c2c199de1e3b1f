"""What an attempt takes of its machine, for the provenance of what it makes."""

import contextlib
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.price.machine import cores_here, memory_here, processor, threads_told


def spent(devices: Mapping[str, Any], processes: int, resumed: bool) -> dict[str, Any]:
    """What this process and those that it started have taken so far.

    Memory is that of the largest process, in bytes: what it had resident, and what it had allocated
    on its accelerator. ``cpu_seconds`` are of all processes.

    Args:
        devices: what :func:`of_devices` says in a process that has run the step.
        processes: ranks of the step, on all nodes.
        resumed: whether it went on from what an earlier attempt left.
    """
    mine, others = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    unit = 1 if sys.platform == "darwin" else 1024
    on_devices = devices.get("model")
    return {
        "model": on_devices or processor(),
        "devices": processes if on_devices else 0,
        "threads": threads_told() or cores_here(),
        "memory": max(_most_resident() or mine.ru_maxrss * unit, others.ru_maxrss * unit),
        "cpu_seconds": round(sum(r.ru_utime + r.ru_stime for r in (mine, others)), 3),
        "machine_memory": memory_here(),
        **({"device_memory": devices["memory"]} if on_devices else {}),
        **({"resumed": True} if resumed else {}),
    }


def _most_resident() -> int | None:
    """The most bytes that this process had resident, as Linux says. What ``getrusage`` says of a
    program begins with what the process that has started it had: a large notebook, perhaps."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def of_devices() -> dict[str, Any]:
    """The model of the GPU that this process has used, and the most bytes it had allocated there;
    empty if it has used none."""
    torch = sys.modules.get("torch")  # a step that has not imported it has used no GPU
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"model": torch.cuda.get_device_name(), "memory": torch.cuda.max_memory_allocated()}
