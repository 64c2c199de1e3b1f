"""Corrects estimates by comparing earlier attempts with their own estimates.

The provenance in an attempt's manifest records, under ``foreseen``, the estimate when its inputs
were known, and under ``spent`` its real cost and hardware. Neither identifies the artifact. A price
is the present estimate, times the factor by which similar attempts differed from *their* estimates.
Attempts of the same step have the largest weight, more so the closer their size is; attempts of
other steps have little. So one run of any step shows how fast a machine is, and one run of a step
shows the error of its estimator.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.price.estimator import Hardware
from pipeline.store.manifest import Manifest
from pipeline.store.stored import is_count

MOST_LOOKED_AT = 60
"""The most attempts of one step that count, the latest ones."""
_OTHER_STEPS = 0.03
"""The weight of an attempt of another step; one of the same step has weight 1."""
_FORGETTING = 0.8
"""The factor between the weight of an attempt and of the next newer one of its step."""
_MOST_SCALED = 30.0
"""A step without estimator is not estimated from a nearest attempt smaller by more than this."""


@dataclass(frozen=True)
class Experience:
    """One earlier attempt that started without scratch and succeeded.

    Attributes:
        foreseen: the estimates: ``seconds``, ``cpu_seconds``, ``memory``, ``bytes``; also
            ``overhead``, the part of the seconds that is no work, and ``inputs``, their bytes.
        took: the real amounts under the same names. The seconds are those of the worker: the first
            one of a run waits for libraries that others then find loaded.
    """

    step: str
    hardware: Hardware
    estimator: str
    foreseen: Mapping[str, float]
    took: Mapping[str, float]

    def is_like(self, hardware: Hardware) -> bool:
        """Whether it ran on equivalent hardware; if the model is unknown, on as many devices."""
        if hardware.name:
            return self.hardware.name == hardware.name
        return self.hardware.devices == hardware.devices


def experience_of(manifest: Manifest) -> Experience | None:
    """The experience in a manifest; ``None`` if it records none, or its attempt resumed from the
    scratch of another."""
    provenance: Mapping[str, Any] = manifest.provenance
    spent, foreseen = provenance.get("spent"), provenance.get("foreseen")
    if not isinstance(spent, dict) or not isinstance(foreseen, dict) or spent.get("resumed"):
        return None
    hardware = hardware_in(spent)
    memory = spent.get("device_memory" if hardware.devices else "memory")
    took = {
        "seconds": spent.get("seconds", manifest.seconds),
        "cpu_seconds": spent.get("cpu_seconds"),
        "memory": memory,
        "bytes": manifest.size,
    }
    by = str(foreseen.get("by", ""))
    return Experience(manifest.step, hardware, by, _positive(foreseen), _positive(took))


def hardware_in(spent: Mapping[str, Any]) -> Hardware:
    """The hardware that an attempt recorded."""

    def count(name: str) -> int:
        value = spent.get(name)
        return value if isinstance(value, int) and is_count(value) else 0

    devices, memory = count("devices"), count("machine_memory")
    model = spent.get("model")
    known = model if isinstance(model, str) else ""
    return Hardware(known, devices, max(1, count("threads")), (not devices and memory) or None)


def _positive(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite positive numbers; other values are ignored, since a store is not trusted."""
    return {
        name: float(value)
        for name, value in values.items()
        if type(value) in (int, float) and 0 < value < math.inf
    }


def latest_of(manifests: Sequence[Manifest]) -> list[Experience]:
    """The experience in the latest attempts of a step, the newest first."""
    found = map(experience_of, manifests[: -MOST_LOOKED_AT - 1 : -1])
    return [one for one in found if one is not None]


_OWN_WORD = {"seconds": 0.01, "size": 0.1}
"""The weight of the estimate itself, for time and for sizes. Memory depends more on size, so there
the estimator counts more than an attempt of another size."""
_CREDIBLE = 1e9
"""A measurement that is further from its estimate says nothing, since a store is not trusted."""
_CARRIED = 0.75
"""The share of overhead's correction, on a logarithmic scale, that is expected of work too: a slow
machine is slow in both."""


def corrected(foreseen: float, what: str, estimator: str, own: Iterable[Experience]) -> float:
    """An estimate of memory or bytes, corrected by similar attempts.

    Args:
        what: the estimated amount: ``memory`` or ``bytes``.
        estimator: the estimator that made it; attempts with other estimators do not count.
        own: attempts of the same step on equivalent hardware, the newest first.
    """
    told = _told(foreseen, what, _weighed(estimator, own), lambda apart: math.exp(-2 * apart))
    return foreseen * math.exp(_mean(((weight, log) for weight, log, _ in told), "size"))


def corrected_seconds(
    foreseen: float,
    overhead: float,
    estimator: str,
    own: Iterable[Experience],
    others: Iterable[Experience],
    what: str = "seconds",
) -> float:
    """An estimate of time, corrected by similar attempts.

    The two parts of an estimate, overhead and work, have a factor each, as a small attempt, which
    is mostly the start of a process, shows little of how fast the machine multiplies matrices.
    Where no attempt shows that, most of what overhead tells counts for it.

    Args:
        overhead: the part of the estimate that is no work.
        others: attempts of other steps.
        what: ``seconds`` or ``cpu_seconds``.
    """
    weighed = [*_weighed(estimator, own), *((e, _OTHER_STEPS) for e in others)]
    told = list(_told(foreseen, what, weighed, lambda apart: 1 / (1 + apart)))
    start = _mean(((weight * share**2, log) for weight, log, share in told), "seconds")
    shares = ((weight * (1 - share) ** 2, log) for weight, log, share in told)
    work = _mean(shares, "seconds", _CARRIED * start)
    overhead = min(overhead, foreseen)
    return overhead * math.exp(start) + (foreseen - overhead) * math.exp(work)


def _weighed(estimator: str, own: Iterable[Experience]) -> list[tuple[Experience, float]]:
    same = (e for e in own if e.estimator == estimator)
    return [(e, _FORGETTING**age) for age, e in enumerate(same)]


def _told(
    foreseen: float,
    what: str,
    weighed: Iterable[tuple[Experience, float]],
    near: Callable[[float], float],
) -> Iterator[tuple[float, float, float]]:
    """Of each attempt its weight, the logarithm of the ratio of its measurement to its estimate,
    and the share of overhead in its estimate. `near` is the weight as a function of the squared
    logarithm of the ratio of sizes."""
    for one, weight in weighed:
        expected, measured = one.foreseen.get(what), one.took.get(what)
        if expected and measured and 1 / _CREDIBLE < measured / expected < _CREDIBLE:
            share = min(1.0, one.foreseen.get("overhead", 0.0) / expected)
            apart = (math.log(foreseen) - math.log(expected)) ** 2
            yield weight * near(apart), math.log(measured / expected), share


def _mean(told: Iterable[tuple[float, float]], of: str, at_first: float = 0.0) -> float:
    """The weighted mean of logarithms, of which the estimate itself says `at_first`."""
    weights = _OWN_WORD[of]
    logs = weights * at_first
    for weight, log in told:
        weights += weight
        logs += weight * log
    return logs / weights


def as_before(inputs: float | None, what: str, own: Iterable[Experience]) -> float | None:
    """The cost of a step without estimator, in proportion to an attempt with inputs of similar
    size; ``None`` if there is no such attempt."""
    known = [e for e in own if what in e.took and "inputs" in e.foreseen]
    if not inputs or not known:
        return next((e.took[what] for e in own if what in e.took), None)
    nearest = min(known, key=lambda e: abs(math.log(inputs / e.foreseen["inputs"])))
    ratio = inputs / nearest.foreseen["inputs"]
    # the start takes most of the time of a small step, so smaller inputs do not make it shorter
    return nearest.took[what] * max(1.0, ratio) if ratio < _MOST_SCALED else None
