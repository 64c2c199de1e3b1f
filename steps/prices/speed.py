"""From what is to be done to seconds: one rate for each way in which hardware is kept busy.

The rates of accelerators are from their data sheets, at the share of them that training reaches in
practice; those of a processor are a round figure for one thread. What they get wrong on a machine,
the attempts that ran there tell: see :mod:`pipeline.price.experience`.
"""

from dataclasses import dataclass

from pipeline.price.estimator import Hardware
from steps.shared.accelerators import accelerator

_REACHED = 0.4
"""The share of an accelerator's arithmetic that a forward and backward of a large model reaches."""
_DISK = 0.8e9
"""Bytes a second that are read and checked, or written and checked."""


@dataclass(frozen=True)
class Speed:
    """How fast one device is, and how long it takes to begin.

    Attributes:
        flops: a second, in matrix products.
        bandwidth: bytes a second through its memory.
        call: seconds that a layer takes for one forward of next to nothing.
        start: seconds until torch and transformers are imported.
    """

    flops: float
    bandwidth: float
    call: float
    start: float

    def computing(self, flops: float, calls: float = 0.0, traffic: float = 0.0) -> float:
        """Seconds for arithmetic, for calls of layers and for bytes through memory."""
        return flops / self.flops + calls * self.call + traffic / self.bandwidth

    def files(self, size: float | None) -> float:
        """Seconds to read or write files of so many bytes."""
        return (size or 0.0) / _DISK


def speed_of(hardware: Hardware) -> Speed | None:
    """Of one device, or of all threads together; ``None`` for an accelerator not known here."""
    if not hardware.devices:
        threads = hardware.threads
        return Speed(50e9 * threads, 6e9 * min(threads, 8), 0.35e-3, 4.0)
    known = accelerator(hardware.model)
    if known is None:
        return None
    return Speed(_REACHED * known.flops, 0.6 * known.bandwidth, 60e-6, 20.0)
