"""What earlier runs of a step took, scaled to a run that is to come.

The provenance in an artifact's manifest records what its run took (``spent``) and what it needed
(``foreseen``): its work by unit, and its memory and disk by formula. Neither is in a key.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.estimate.machine import Hardware
from pipeline.store.manifest import Manifest
from pipeline.store.untrusted_input import is_count

MOST_RUNS = 60
"""The most runs of one step that are compared, the latest ones."""
_START = 5.0
"""The most seconds of a single run that are taken for its start, which work does not lengthen."""


@dataclass(frozen=True)
class PastRun:
    """A run that began without scratch and succeeded.

    Attributes:
        work, needs: what it needed: its work by unit; ``memory`` and ``disk`` by formula.
        took: its ``seconds``, ``memory`` and ``disk``. The seconds are those of its worker.
    """

    hardware: Hardware
    work: Mapping[str, float]
    needs: Mapping[str, float]
    took: Mapping[str, float]


def past_run(manifest: Manifest) -> PastRun | None:
    """The run that a manifest records; ``None`` if it records none, or one that was resumed."""
    provenance: Mapping[str, Any] = manifest.provenance
    spent, foreseen = provenance.get("spent"), provenance.get("foreseen")
    if not isinstance(spent, dict) or not isinstance(foreseen, dict) or spent.get("resumed"):
        return None
    hardware = hardware_in(spent)
    took = {
        "seconds": spent.get("seconds", manifest.seconds),
        "memory": spent.get("device_memory" if hardware.devices else "memory"),
        "disk": manifest.size,
    }
    return PastRun(hardware, amounts(foreseen.get("work")), amounts(foreseen), amounts(took))


def hardware_in(spent: Mapping[str, Any]) -> Hardware:
    """The hardware that a run recorded."""

    def count(name: str) -> int:
        value = spent.get(name)
        return value if isinstance(value, int) and is_count(value) else 0

    devices, model = count("devices"), spent.get("model")
    return Hardware(model if isinstance(model, str) else "", devices, max(1, count("threads")))


def amounts(values: Any) -> dict[str, float]:
    """The amounts that can be true; others are left out, since a store is not trusted."""
    return {
        name: float(value)
        for name, value in (values.items() if isinstance(values, dict) else ())
        if type(value) in (int, float) and 1e-9 < value < 1e30
    }


def compared(work: Mapping[str, float], run: PastRun) -> float | None:
    """The work of a past run as a multiple of `work`; ``None`` if they have no unit in common."""
    if not work and not run.work:
        return 1.0
    unit = next((unit for unit in work if unit in run.work), None)
    return None if unit is None else run.work[unit] / work[unit]


def nearest(work: Mapping[str, float], runs: Sequence[PastRun]) -> PastRun | None:
    """The run whose work is nearest, and the newest of several."""
    known = [(abs(math.log(share)), run) for run in runs if (share := compared(work, run))]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def seconds_of(work: Mapping[str, float], runs: Sequence[PastRun]) -> float | None:
    """The seconds of a run with this work: those of the nearest run, and for more or less work the
    slope between it and the run whose work differs most. A single run may be half start."""
    known = [
        (share, run.took["seconds"])
        for run in runs
        if "seconds" in run.took and (share := compared(work, run))
    ]
    if not known:
        return None
    near, took = min(known, key=lambda one: abs(math.log(one[0])))
    far, others = max(known, key=lambda one: abs(math.log(one[0] / near)))
    pace = (took - min(took / 2, _START)) / near
    if not 0.5 < far / near < 2:
        pace = min(max(0.0, (others - took) / (far - near)), took / near)
    return took + pace * (1 - near)


def scaled(what: str, formula: float | None, run: PastRun | None) -> float | None:
    """The memory or disk by formula, times the factor by which a past run differed from it. Without
    a formula it is what the run took."""
    if run is None or what not in run.took:
        return formula
    if (before := run.needs.get(what)) is None or formula is None:
        return run.took[what] if before is None and formula is None else formula
    return run.took[what] * formula / before
