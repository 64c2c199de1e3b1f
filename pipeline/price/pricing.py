"""Prices of a plan: the estimated cost of each step that will run, and of all together.

Sizes are computed from the sources down, like states: sizes of cached artifacts are measured, sizes
of future artifacts are estimated. This costs no more than the plan has read already, and a small
file of each cached artifact that a future step uses. A plan in which nothing runs has no price.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.dag.canonical import resolve_reference
from pipeline.dag.resources import Resources
from pipeline.dag.step import Input, Step, as_input
from pipeline.plan.planning import Plan, State
from pipeline.price.estimator import Call, Estimator, Foreseen, Hardware, Made, Sizes
from pipeline.price.experience import (
    Experience,
    as_before,
    corrected,
    corrected_seconds,
    latest_of,
)
from pipeline.price.machine import free_disk, hardware_elsewhere, hardware_here
from pipeline.price.remaining import Ahead
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

LARGEST_READ = 2**20
"""The largest file, in bytes, that an estimator may read."""
MOST_OF_ANOTHER = 5
"""The most attempts of each other step that a price takes into account."""
_NO_ESTIMATOR = Estimator()
_A_KIND = "H100"


@dataclass(frozen=True)
class Price:
    """The estimated cost of one step; ``None`` for unknown amounts.

    Attributes:
        seconds: wall time.
        memory: the most bytes used on one accelerator, or in the machine.
        disk: bytes of its artifact.
        scratch: further bytes that it needs while it runs.
        is_rough: whether no attempt on equivalent hardware has corrected the estimate.
        capacity: bytes of memory of one accelerator, or of the machine.
        note: as in :class:`Foreseen`.
    """

    hardware: Hardware
    seconds: float | None = None
    memory: float | None = None
    disk: float | None = None
    scratch: float = 0.0
    is_rough: bool = True
    capacity: float | None = None
    note: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the hardware has enough memory; ``None`` if unknown."""
        if self.memory is None or self.capacity is None:
            return None
        return self.memory <= self.capacity


@dataclass(frozen=True)
class Prices:
    """The prices of all steps that will run, by fingerprint.

    Attributes:
        free: free bytes on the disk of the store; ``None`` for a remote store.
    """

    of: Mapping[str, Price]
    free: int | None = None

    @property
    def disk(self) -> float:
        """The bytes of all future artifacts whose size is known."""
        return sum(price.disk or 0.0 for price in self.of.values())

    def ahead(self, plan: Plan) -> list[Ahead]:
        """All steps that will run, with the steps that they need, in the order of the plan."""
        return [
            Ahead(
                planned.step.fingerprint,
                self.of[planned.step.fingerprint].seconds,
                frozenset(reference.step.fingerprint for reference in planned.step.inputs),
            )
            for planned in plan.steps
            if planned.step.fingerprint in self.of
        ]

    @property
    def peak_disk(self) -> float:
        """The bytes of all future artifacts and of the largest scratch folder."""
        return self.disk + max((price.scratch for price in self.of.values()), default=0.0)

    @property
    def fits_disk(self) -> bool:
        """False if it is known that the disk is too small."""
        return self.free is None or self.peak_disk <= self.free


class Pricer:
    """Estimates steps of one store; it measures each artifact at most once.

    Args:
        asked: the requested resources, by fingerprint; for other steps, their own request.
        jobs: how many steps run at once.
        gpus: returns model and bytes of each GPU here; called only if a step requests one.
        is_here: whether steps run on this machine; the models of other machines are unknown.
    """

    def __init__(
        self,
        catalog: Catalog,
        asked: Mapping[str, Resources] | None = None,
        jobs: int = 1,
        gpus: Callable[[], Sequence[tuple[str, int]]] = tuple,
        is_here: bool = True,
    ):
        self._catalog, self._store = catalog, catalog.store
        self._asked, self._jobs, self._gpus = asked or {}, jobs, gpus
        self._is_here = is_here
        self._measured: dict[str, Sizes] = {}
        self._experiences: dict[str, list[Experience]] = {}
        self._alike: dict[tuple[str, Hardware], list[Experience]] = {}
        self._strangers: dict[tuple[str, Hardware], list[Experience]] = {}

    def price(self, plan: Plan) -> Prices:
        """The price of every step of a plan that is not cached."""
        if plan.is_complete:
            return Prices({})
        made = plan.manifests()
        foreseen: dict[str, Sizes] = {}

        def size_of(reference: Input) -> Sizes:
            fingerprint = reference.step.fingerprint
            if (manifest := made.get(fingerprint)) is None:
                return _part(foreseen.get(fingerprint, {}), reference.part)
            return _part(self._measure(reference.step, manifest), reference.part)

        prices: dict[str, Price] = {}
        names = dict.fromkeys(planned.step.name for planned in plan.steps)
        for planned in plan.steps:
            if planned.state is not State.CACHED:
                step = planned.step
                prices[step.fingerprint], sizes = self._price(step, size_of, names)
                foreseen[step.fingerprint] = sizes
        return Prices(prices, self._free())

    def hardware(self, step: Step) -> Hardware:
        asked = self._asked.get(step.fingerprint, step.resources)
        if not self._is_here or asked.tpu is not None:
            return hardware_elsewhere(asked)
        return hardware_here(asked, self._jobs, self._gpus() if asked.num_gpus else ())

    def recorded(
        self,
        step: Step,
        inputs: Mapping[Input, Manifest],
        hardware: Hardware,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """The estimates for a step whose inputs exist, for the provenance of its artifact. The
        seconds of its processors are those of a run with one thread.

        Args:
            hardware: the hardware on which it ran.
            seconds: how long it took; the memory is that of an attempt which takes as long.
        """

        def size_of(reference: Input) -> Sizes:
            return _part(self._measure(reference.step, inputs[reference]), reference.part)

        foreseen = _foresee(step, hardware, size_of)
        memory = _at_pace(foreseen, seconds, step, hardware, size_of).memory
        overhead = alone = None
        if foreseen.seconds is not None:
            overhead = _overhead(step, hardware, size_of)
            one_thread = replace(hardware, threads=1)
            alone = None if hardware.devices else _foresee(step, one_thread, size_of).seconds
        estimates = {
            "seconds": foreseen.seconds,
            "overhead": overhead,
            "cpu_seconds": alone,
            "memory": memory,
            "bytes": foreseen.sizes.get("bytes"),
            "inputs": sum(manifest.size for manifest in inputs.values()),
        }
        return {"by": _signature(step)} | {n: v for n, v in estimates.items() if v is not None}

    def _price(
        self, step: Step, size_of: Callable[[Input], Sizes], names: Collection[str]
    ) -> tuple[Price, Sizes]:
        """The price of a step, and the estimated sizes of its artifact."""
        hardware = self.hardware(step)
        foreseen = _foresee(step, hardware, size_of)
        own = self._like(step.name, hardware)
        by = _signature(step)

        def total(what: str, found: float | None) -> float | None:
            if found is not None:
                return corrected(found, what, by, own)
            known = [size_of(reference).get("bytes") for reference in step.inputs]
            inputs = None if None in known else sum(filter(None, known))
            return as_before(inputs, what, own or self._on_as_many_devices(step.name, hardware))

        others = [] if foreseen.seconds is None else self._others(step.name, names, hardware)
        if foreseen.seconds is None:
            seconds = total("seconds", None)
        else:
            overhead = _overhead(step, hardware, size_of) or 0.0
            seconds = corrected_seconds(foreseen.seconds, overhead, by, own, others)
        foreseen = _at_pace(foreseen, seconds, step, hardware, size_of)
        disk = total("bytes", foreseen.sizes.get("bytes"))
        price = Price(
            hardware,
            seconds,
            total("memory", foreseen.memory),
            disk,
            foreseen.scratch,
            is_rough=not (own or others),
            capacity=hardware.memory or foreseen.capacity,
            note=foreseen.note or _kind_wanted(step, hardware, size_of, seconds),
        )
        return price, foreseen.sizes if disk is None else {**foreseen.sizes, "bytes": disk}

    # --- what is known -----------------------------------------------------------------------

    def _measure(self, step: Step, manifest: Manifest) -> Sizes:
        if manifest.attempt not in self._measured:
            folder = self._store.content_path(manifest)

            def read(name: str) -> bytes | None:
                entry = manifest.files.get(name)
                if entry is None or entry.size > LARGEST_READ:
                    return None
                return self._store.read(f"{folder}/{name}")

            found: Sizes = {}
            # a plan must not fail because of the content of a store or an error of an estimator
            with contextlib.suppress(Exception):
                found = _estimator(step).measure(Made(manifest, read))
            self._measured[manifest.attempt] = {"bytes": manifest.size, **found}
        return self._measured[manifest.attempt]

    def _like(self, step: str, hardware: Hardware) -> list[Experience]:
        """Attempts of a step on equivalent hardware, the newest first."""
        if (step, hardware) not in self._alike:
            if step not in self._experiences:
                self._experiences[step] = latest_of(self._catalog.history(step))
            alike = [one for one in self._experiences[step] if one.is_like(hardware)]
            self._alike[step, hardware] = alike
        return self._alike[step, hardware]

    def _on_as_many_devices(self, step: str, hardware: Hardware) -> list[Experience]:
        """Attempts of a step on other hardware, for a step of which nothing better is known."""
        return [e for e in self._experiences[step] if e.hardware.devices == hardware.devices]

    def _others(self, step: str, names: Collection[str], hardware: Hardware) -> list[Experience]:
        """Attempts of other steps: of those in the plan, or else of any in the store."""
        if (step, hardware) not in self._strangers:
            found = [self._like(name, hardware)[:MOST_OF_ANOTHER] for name in names if name != step]
            if not any(found) and not self._like(step, hardware):
                unplanned = [name for name in self._store.steps() if name not in names]
                found = [self._like(name, hardware)[:MOST_OF_ANOTHER] for name in unplanned]
            self._strangers[step, hardware] = list(itertools.chain(*found))
        return self._strangers[step, hardware]

    def _free(self) -> int | None:
        return free_disk(Path(self._store.root).absolute()) if self._store.is_local else None


def _foresee(
    step: Step, hardware: Hardware, size_of: Callable[[Input], Sizes], pace: float = 1.0
) -> Foreseen:
    def of_argument(value: Any) -> Sizes:
        reference = as_input(value)
        return {} if reference is None else size_of(reference)

    with contextlib.suppress(Exception):  # as in `_measure`
        call = Call(step.arguments, of_argument, hardware, pace)
        return _checked(_estimator(step).foresee(call))
    return Foreseen()


def _at_pace(
    foreseen: Foreseen,
    seconds: float | None,
    step: Step,
    hardware: Hardware,
    size_of: Callable[[Input], Sizes],
) -> Foreseen:
    """The estimates for an attempt that takes so many seconds."""
    if foreseen.seconds is None or seconds is None or not _is_amount(seconds):
        return foreseen
    return _foresee(step, hardware, size_of, seconds / foreseen.seconds)


def _kind_wanted(
    step: Step, hardware: Hardware, size_of: Callable[[Input], Sizes], seconds: float | None
) -> str:
    """How to make a time known that depends on nothing but the kind of GPU; empty otherwise."""
    if seconds is not None or not hardware.devices or hardware.model:
        return ""
    if _foresee(step, replace(hardware, model=_A_KIND), size_of).seconds is None:
        return ""
    return (
        "how long it takes depends on the kind of GPU; name it in the step's request, as in "
        f"accelerator={_A_KIND}"
    )


def _overhead(step: Step, hardware: Hardware, size_of: Callable[[Input], Sizes]) -> float | None:
    """The seconds of an estimate that are no work."""
    return _foresee(step, replace(hardware, is_instant=True), size_of).seconds


def _checked(foreseen: Foreseen) -> Foreseen:
    """The estimates of an estimator, without invalid amounts."""
    sizes = {n: size for n, size in foreseen.sizes.items() if n != "bytes" or _is_amount(size)}
    seconds, memory, capacity = (
        amount if _is_amount(amount) else None
        for amount in (foreseen.seconds, foreseen.memory, foreseen.capacity)
    )
    scratch = foreseen.scratch if _is_amount(foreseen.scratch) else 0.0
    return replace(foreseen, sizes=sizes, seconds=seconds, memory=memory, scratch=scratch,
                   capacity=capacity, note=str(foreseen.note))  # fmt: skip


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _estimator(step: Step) -> Estimator:
    declared = step.function.estimate
    return _NO_ESTIMATOR if declared is None else _named(declared)


@functools.cache
def _named(reference: str) -> Estimator:
    """The estimator with this name; one that knows nothing, if there is none."""
    with contextlib.suppress(Exception):  # as in `_measure`
        if isinstance(found := resolve_reference(reference), Estimator):
            return found
    return _NO_ESTIMATOR


def _signature(step: Step) -> str:
    """The name and version of a step's estimator, for comparisons with earlier estimates."""
    declared = step.function.estimate
    return f"{declared} {_named(declared).version}" if declared else ""


def _part(sizes: Sizes, part: str | None) -> Sizes:
    return sizes if part is None else sizes.get("parts", {}).get(part, {})
