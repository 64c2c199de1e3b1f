"""Figures from vendors' data sheets of accelerators, by a part of the name that drivers report."""

from dataclasses import dataclass

from steps.shared.execution_detail import execution_detail


@execution_detail
@dataclass(frozen=True)
class Accelerator:
    """flops: dense bfloat16 operations per second; bandwidth: bytes per second of memory; memory:
    its size in bytes, None if the accelerator is sold with several sizes."""

    flops: float
    bandwidth: float
    memory: float | None


@execution_detail
def accelerator(name: str) -> Accelerator | None:
    """The accelerator with this driver name; None if it is not in the table."""
    return next((found for part, found in _KNOWN.items() if part in name), None)


_KNOWN = {  # the more special name first
    "A100": Accelerator(312e12, 1.6e12, None),
    "H100 PCIe": Accelerator(756e12, 2.0e12, 80e9),
    "H100": Accelerator(989e12, 3.35e12, 80e9),
    "H200": Accelerator(989e12, 4.8e12, 141e9),
    "B200": Accelerator(2250e12, 8.0e12, 180e9),
    "L40S": Accelerator(362e12, 0.86e12, 48e9),
}
