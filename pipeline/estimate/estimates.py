"""Estimates of a plan: the cost of each step that will run, and of all together.

Time is that of the last runs of the step on such hardware, scaled by its work; a step that never
ran has none. Memory and disk are by formula, times the factor by which the nearest run differed
from it. A plan in which nothing runs costs nothing to estimate.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.dag.canonical import resolve_reference
from pipeline.dag.resources import Resources
from pipeline.dag.step import Step, as_input
from pipeline.estimate.machine import Hardware, free_disk, hardware_elsewhere, hardware_here
from pipeline.estimate.needs import Call, Made, Needs
from pipeline.estimate.past_runs import (
    MOST_RUNS,
    PastRun,
    amounts,
    compared,
    nearest,
    past_run,
    scaled,
    seconds_of,
)
from pipeline.estimate.remaining import Ahead
from pipeline.plan.planning import Plan, State
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of one step; ``None`` for unknown amounts.

    Attributes:
        seconds: wall time, of a step that resumes for the share of its work that is left.
        memory: the most bytes used on one accelerator, or in the machine.
        disk: bytes of its artifact.
        scratch: further bytes that it needs while it runs.
        is_rough: whether its time is from other hardware, or its work is not known well.
        has_run: whether it ever ran on such hardware.
        capacity: bytes of memory of one accelerator, or of the machine.
    """

    hardware: Hardware
    seconds: float | None = None
    memory: float | None = None
    disk: float | None = None
    scratch: float = 0.0
    is_rough: bool = False
    has_run: bool = False
    capacity: float | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the hardware has enough memory; ``None`` if unknown."""
        if self.memory is None or self.capacity is None:
            return None
        return self.memory <= self.capacity


@dataclass(frozen=True)
class Estimates:
    """The estimates of all steps that will run, by fingerprint.

    Attributes:
        free: free bytes on the disk of the store; ``None`` for a remote store.
    """

    of: Mapping[str, Estimate]
    free: int | None = None

    @property
    def disk(self) -> float:
        """The bytes of all future artifacts whose size is known."""
        return sum(estimate.disk or 0.0 for estimate in self.of.values())

    def ahead(self, plan: Plan) -> list[Ahead]:
        """All steps that will run, with the steps that they need, in the order of the plan."""
        every = {planned.step.fingerprint: planned.step.inputs for planned in plan.steps}
        return [
            Ahead(name, self.of[name].seconds, frozenset(i.step.fingerprint for i in inputs))
            for name, inputs in every.items()
            if name in self.of
        ]

    @property
    def peak_disk(self) -> float:
        """The bytes of all future artifacts and of the largest scratch folder."""
        return self.disk + max((estimate.scratch for estimate in self.of.values()), default=0.0)

    @property
    def fits_disk(self) -> bool:
        """False if it is known that the disk is too small."""
        return self.free is None or self.peak_disk <= self.free


class Estimator:
    """Estimates steps of one store.

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
        self._made: dict[str, tuple[list[Manifest], list[PastRun]]] = {}

    def estimate(self, plan: Plan) -> Estimates:
        """The estimate of every step of a plan that is not cached."""
        if plan.is_complete:
            return Estimates({})
        made = plan.manifests()
        found: dict[str, Estimate] = {}
        sizes: dict[str, float | None] = {}
        for planned in plan.steps:
            if planned.state is not State.CACHED:
                step = planned.step
                whole = self._estimate(step, made, sizes)
                seconds = None if whole.seconds is None else whole.seconds * planned.left
                found[step.fingerprint] = replace(whole, seconds=seconds)
                sizes[step.fingerprint] = found[step.fingerprint].disk
                if (last := self._last(step, made)) is not None:
                    made[step.fingerprint] = last
        is_local, root = self._store.is_local, Path(self._store.root).absolute()
        return Estimates(found, free_disk(root) if is_local else None)

    def foreseen(self, step: Step, inputs: Iterable[Manifest], hardware: Hardware) -> dict:
        """What a step needs, for the provenance of its artifact.

        Args:
            inputs: the artifacts of its inputs, in their order.
        """
        made = {i.step.fingerprint: m for i, m in zip(step.inputs, inputs, strict=True)}
        needs = self._needs(step, hardware, made, {})
        formulas = {"memory": needs.memory, "disk": needs.disk}
        return {"work": dict(needs.work)} | {n: v for n, v in formulas.items() if v is not None}

    def _estimate(
        self, step: Step, made: Mapping[str, Manifest], sizes: Mapping[str, float | None]
    ) -> Estimate:
        hardware = self._hardware(step)
        needs = self._needs(step, hardware, made, sizes)
        every = self._history(step.name)[1]
        like = [run for run in every if run.hardware.is_like(hardware)]
        runs = like or [run for run in every if run.hardware.devices == hardware.devices]
        run, unit = nearest(needs.work, runs), next(iter(needs.work), None)
        any_run = run or nearest(needs.work, every)
        disk = scaled("disk", needs.disk, any_run)
        if any_run is not None and disk is not None and needs.disk is None:
            disk /= compared(needs.work, any_run) or 1.0
        return Estimate(
            hardware,
            seconds_of(needs.work, runs),
            scaled("memory", needs.memory, run),
            disk,
            needs.scratch or 0.0,
            is_rough=not like or unit is None or (run is not None and unit not in run.work),
            has_run=bool(runs),
            capacity=hardware.memory or needs.capacity,
        )

    def _needs(
        self,
        step: Step,
        hardware: Hardware,
        made: Mapping[str, Manifest],
        sizes: Mapping[str, float | None],
    ) -> Needs:
        """Args: the known artifacts, or the last such, and estimated bytes, by fingerprint."""

        def made_of(value: Any) -> Made | None:
            reference = as_input(value)
            manifest = reference and made.get(reference.step.fingerprint)
            return Made(manifest, reference.part, self._store) if reference and manifest else None

        def size_of(value: Any) -> float | None:
            if (reference := as_input(value)) is None:
                return None
            name = reference.step.fingerprint
            return made[name].size if name in made else sizes.get(name)

        if step.function.estimate is None:
            each = [size_of(one) for one in {reference.step: None for reference in step.inputs}]
            known = sum(filter(None, each))
            return Needs({"bytes": known} if known and None not in each else {})
        # a plan must not fail because of the content of a store or an error of a declaration
        with contextlib.suppress(Exception):
            declared = resolve_reference(step.function.estimate)
            needs: Needs = declared(Call(step.arguments, hardware, made_of, size_of))
            return Needs(amounts(needs.work), **amounts(vars(needs)))
        return Needs()

    def _hardware(self, step: Step) -> Hardware:
        asked = self._asked.get(step.fingerprint, step.resources)
        if not self._is_here or asked.tpu is not None:
            return hardware_elsewhere(asked)
        return hardware_here(asked, self._jobs, self._gpus() if asked.num_gpus else ())

    def _history(self, step: str) -> tuple[list[Manifest], list[PastRun]]:
        """The latest artifacts of a step, the newest first, and the runs that they record."""
        if step not in self._made:
            latest = self._catalog.history(step)[: -MOST_RUNS - 1 : -1]
            self._made[step] = latest, [run for one in latest if (run := past_run(one))]
        return self._made[step]

    def _last(self, step: Step, made: Mapping[str, Manifest]) -> Manifest | None:
        """The last artifact that the step made of equal arguments and inputs, by any code."""
        with contextlib.suppress(Exception):  # as in `_needs`; also an input without an artifact
            recipe: Any = step.recipe(lambda i: made[i.step.fingerprint].digest_of(i.part))
            for manifest in self._history(step.name)[0]:
                before: Any = manifest.recipe
                if before["arguments"] == recipe["arguments"]:
                    return manifest
        return None
