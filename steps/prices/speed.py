"""Convert work to seconds: a rate for arithmetic, one for memory traffic and one for calls.

The rates of accelerators come from data sheets, times the share that training reaches in practice.
The rates of CPUs are round figures for one thread. :mod:`pipeline.price.experience` corrects these
rates by the measured times of attempts on a machine.
"""

import math
from dataclasses import dataclass, replace

from pipeline.price.estimator import Hardware
from steps.shared.accelerators import accelerator

_REACHED = 0.4
"""The share of an accelerator's arithmetic that a forward and backward of a large model reaches."""
_DISK = 0.8e9


@dataclass(frozen=True)
class Speed:
    """The speed of one device, and its start-up time.

    Attributes:
        flops: operations per second in matrix products.
        bandwidth: bytes per second through its memory.
        call: the least seconds of a layer's forward (its overhead).
        start: seconds until a worker begins. On CPUs it is forked from a process that has imported
            torch and transformers; on accelerators it imports them.
        first: seconds that a model's first forward takes besides its work, as for the threads of
            a forked worker.
        disk: bytes per second for reading or writing files, including their check.
    """

    flops: float
    bandwidth: float
    call: float
    start: float
    first: float = 0.0
    disk: float = _DISK

    def computing(self, flops: float, calls: float = 0.0, traffic: float = 0.0) -> float:
        """Seconds for `flops` operations, `calls` calls of layers and `traffic` bytes of memory."""
        return flops / self.flops + calls * self.call + traffic / self.bandwidth

    def files(self, size: float | None) -> float:
        """Seconds to read or write files of `size` bytes."""
        return (size or 0.0) / self.disk


def speed_of(hardware: Hardware) -> Speed | None:
    """The speed of one device, or of all CPU threads; ``None`` for an unknown accelerator."""
    speed = _speed(hardware)
    if speed is None or not hardware.is_instant:
        return speed
    return replace(speed, flops=math.inf, bandwidth=math.inf, disk=math.inf)


def _speed(hardware: Hardware) -> Speed | None:
    if not hardware.devices:
        threads = hardware.threads
        return Speed(80e9 * threads, 6e9 * min(threads, 8), 0.35e-3, 0.2, 0.2)
    known = accelerator(hardware.model)
    if known is None:
        return None
    return Speed(_REACHED * known.flops, 0.6 * known.bandwidth, 60e-6, 20.0)
