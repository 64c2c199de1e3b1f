"""What earlier attempts took, against what was foreseen of them.

An attempt records two things in its manifest's provenance, neither of which is part of what the
artifact is: under ``foreseen`` what its estimator said when its inputs were known, under ``spent``
what it took and on which hardware. A price is what is foreseen now, times by how much like attempts
differed from what was foreseen of *them*: those of the same step first, the closer in size the
more, and where there is none of the same step those of others. So one run of anything tells how
fast a machine is, and one run of a step tells what its estimator got wrong.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.price.estimator import Hardware
from pipeline.store.manifest import Manifest
from pipeline.store.stored import is_count

MOST_LOOKED_AT = 60
"""Attempts of one step: the latest."""
_OTHER_STEPS = 0.03
"""How much an attempt of another step counts, where one of the same step counts 1."""
_FORGETTING = 0.8
"""How much less each attempt counts than the next newer one of its step."""
_MOST_SCALED = 30.0
"""How much larger than the nearest one a step without estimator may be."""


@dataclass(frozen=True)
class Experience:
    """One earlier attempt that began afresh and ended well.

    Attributes:
        foreseen: by name: ``seconds``, ``memory``, ``bytes``, and ``inputs``, the bytes of these.
        took: the same, as it turned out; also ``cpu_seconds``.
    """

    step: str
    hardware: Hardware
    estimator: str
    foreseen: Mapping[str, float]
    took: Mapping[str, float]

    def is_like(self, hardware: Hardware) -> bool:
        """Whether it ran on like hardware; where the model is not known, on as many devices."""
        if hardware.name:
            return self.hardware.name == hardware.name
        return self.hardware.devices == hardware.devices


def experience_of(manifest: Manifest) -> Experience | None:
    """What a manifest tells; ``None`` if it does not, or of an attempt that went on from another's
    scratch."""
    provenance: Mapping[str, Any] = manifest.provenance
    spent, foreseen = provenance.get("spent"), provenance.get("foreseen")
    if not isinstance(spent, dict) or not isinstance(foreseen, dict) or spent.get("resumed"):
        return None
    hardware = hardware_in(spent)
    memory = spent.get("device_memory" if hardware.devices else "memory")
    took = {
        "seconds": manifest.seconds,
        "cpu_seconds": spent.get("cpu_seconds"),
        "memory": memory,
        "bytes": manifest.size,
    }
    by = str(foreseen.get("by", ""))
    return Experience(manifest.step, hardware, by, _positive(foreseen), _positive(took))


def hardware_in(spent: Mapping[str, Any]) -> Hardware:
    """The hardware that an attempt says it ran on."""

    def count(name: str) -> int:
        value = spent.get(name)
        return value if isinstance(value, int) and is_count(value) else 0

    devices, memory = count("devices"), count("machine_memory")
    model = spent.get("model")
    known = model if isinstance(model, str) else ""
    return Hardware(known, devices, max(1, count("threads")), (not devices and memory) or None)


def _positive(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers above 0: a store is not believed."""
    return {
        name: float(value)
        for name, value in values.items()
        if type(value) in (int, float) and 0 < value < math.inf
    }


def latest_of(manifests: Sequence[Manifest]) -> list[Experience]:
    """What the latest attempts of a step tell, the newest first."""
    told = map(experience_of, manifests[: -MOST_LOOKED_AT - 1 : -1])
    return [one for one in told if one is not None]


_OF_SPEED: tuple[float, Callable[[float], float]] = (0.01, lambda apart: 1 / (1 + apart))
_OF_SIZE: tuple[float, Callable[[float], float]] = (0.1, lambda apart: math.exp(-2 * apart))
"""How much the estimator's own word counts, and an attempt by the square of the logarithm of how
many times larger it was. How fast a machine is, small steps tell of large ones too; of memory an
estimator knows more than a step of another size tells."""


def corrected(
    foreseen: float,
    what: str,
    estimator: str,
    own: Iterable[Experience],
    others: Iterable[Experience],
    took: str = "",
) -> float:
    """What is foreseen, as like attempts have taught.

    Args:
        what: is foreseen: ``seconds``, ``memory`` or ``bytes``.
        estimator: by which; others foresaw other things.
        own: attempts of the same step on like hardware, the newest first.
        others: of other steps.
        took: what to compare with, if not ``what``.
    """
    took = took or what
    own_word, near = _OF_SPEED if what == "seconds" else _OF_SIZE
    weights, logs = own_word, 0.0
    same = [e for e in own if e.estimator == estimator]
    weighed = [(e, _FORGETTING**age) for age, e in enumerate(same)]
    weighed += [(e, _OTHER_STEPS) for e in others]
    for one, weight in weighed:
        expected, measured = one.foreseen.get(what), one.took.get(took)
        if expected and measured:
            weight *= near(math.log(foreseen / expected) ** 2)
            weights += weight
            logs += weight * math.log(measured / expected)
    return foreseen * math.exp(logs / weights)


def as_before(inputs: float | None, what: str, own: Iterable[Experience]) -> float | None:
    """What a step without estimator took when its inputs were about as large, in proportion;
    ``None`` if it never did."""
    known = [e for e in own if what in e.took and "inputs" in e.foreseen]
    if not inputs or not known:
        return next((e.took[what] for e in own if what in e.took), None)
    nearest = min(known, key=lambda e: abs(math.log(inputs / e.foreseen["inputs"])))
    ratio = inputs / nearest.foreseen["inputs"]
    # most of a small step is its start, which does not get shorter with its inputs
    return nearest.took[what] * max(1.0, ratio) if ratio < _MOST_SCALED else None
