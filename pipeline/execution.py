"""Running one step: look in the store, hold its lease, start an attempt, commit what it made."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from pipeline.canonical import Json, reference_to
from pipeline.errors import TemperError
from pipeline.inputs import source_identity
from pipeline.lease import Lease, Leases
from pipeline.manifest import InputEntry, Manifest, files_digest
from pipeline.plan import Resolver
from pipeline.spec import InputSpec, Report, StepSpec
from pipeline.step import Input, Step
from pipeline.store import Loss

FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0


class StepFailed(TemperError):
    """A step's attempt ended without a result. ``log`` is where its whole output lies."""

    def __init__(self, step: str, message: str, log: str):
        super().__init__(message)
        self.step = step
        self.log = log


class InputLost(TemperError):
    """An input's data is not what was committed. It is marked, so that it will be made again."""


class LeaseLost(Exception):
    """Another driver took over while this one could not renew; it makes the artifact now."""


class Launcher(Protocol):
    """Where a step's worker runs."""

    def run(self, spec_url: str, log: IO[bytes], stop: Event) -> int:
        """Run one worker to its end, or until ``stop`` is set; its exit status."""
        ...


@dataclass(frozen=True)
class Executor:
    """Runs steps through a launcher and commits their artifacts.

    Args:
        provenance: recorded in every manifest beside what the worker says of itself.
    """

    resolver: Resolver
    launcher: Launcher
    leases: Leases
    provenance: dict[str, Any]

    def execute(self, step: Step) -> Manifest:
        """The artifact of a step whose inputs exist, made now if the store does not have it.

        While another driver makes it, this one waits.

        Raises:
            StepFailed: the attempt failed; its log and folder are kept.
            InputLost: an input's data is lost or damaged.
        """
        while True:
            inputs = self.resolver.inputs(step)
            resolved = self.resolver.key_and_recipe(step)
            assert resolved is not None  # every input was found just now
            key, recipe = resolved

            def is_made() -> bool:
                return self.resolver.artifact(step) is not None

            with self.leases.held(step.name, key, is_made) as lease:
                if (found := self.resolver.artifact(step)) is not None:
                    return found  # as it was before, or another driver was faster
                if lease is not None:
                    with contextlib.suppress(LeaseLost):
                        return self._make(_Work(step, key, recipe, inputs, lease))

    def _make(self, work: "_Work") -> Manifest:
        """One attempt, and as many more as the step declares when it fails."""
        self._require_data(work.inputs)
        retrying = Retrying(
            stop=stop_after_attempt(1 + work.step.function.retries),
            wait=wait_exponential(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS),
            retry=retry_if_exception_type(StepFailed),
            sleep=_sleep_unless(work.lease.lost),
            reraise=True,
        )
        return retrying(self._attempt, work)

    def _attempt(self, work: "_Work") -> Manifest:
        store, step, key = self.resolver.store, work.step, work.key
        # Asked before there is anything to commit: whoever takes over while this driver sleeps
        # commits this same generation, and the first of the two wins.
        earlier = self.resolver.catalog.look(step.name, key)
        attempt = store.new_attempt(step.name, key)
        started = time.time()
        report = self._launch(work, self._spec(work, attempt))
        if not work.lease.confirm():
            raise LeaseLost
        committed = store.commit(
            Manifest(
                step=step.name,
                key=key,
                attempt=attempt.rsplit("/", 1)[-1],
                digest=files_digest(report.files),
                recipe=work.recipe,
                inputs=tuple(
                    InputEntry(made.step, made.key, ref.part, made.digest_of(ref.part))
                    for ref, made in work.inputs
                ),
                files=report.files,
                metrics=report.metrics,
                seconds=round(time.time() - started, 3),
                provenance={**self.provenance, **report.provenance},
                code=report.code,
                kind=reference_to(step.kind),
                generation=0 if earlier is None else earlier.generation + 1,
            )
        )
        self.resolver.catalog.add(committed)
        store.forget_scratch(step.name, key)
        return committed

    def _require_data(self, inputs: Sequence[tuple[Input, Manifest]]) -> None:
        store = self.resolver.store
        for _, manifest in inputs:
            if self.resolver.catalog.loss(manifest) is not None:
                raise InputLost(f"the data of its input {manifest.name} is gone")
            if lost := store.lost_files(manifest):
                store.mark(manifest, Loss.DAMAGED)
                raise InputLost(f"its input {manifest.name} has lost {', '.join(lost[:3])}")

    def _spec(self, work: "_Work", attempt: str) -> StepSpec:
        store, step = self.resolver.store, work.step
        return StepSpec(
            store=store.url,
            step=step.name,
            key=work.key,
            function=step.function.reference,
            arguments=step.portable_arguments,
            inputs=tuple(
                InputSpec(
                    step=made.step,
                    content="/".join(filter(None, (store.content_path(made), ref.part))),
                    digest=made.digest_of(ref.part),
                    kind=reference_to(ref.kind),
                    files=made.files_of(ref.part),
                )
                for ref, made in work.inputs
            ),
            attempt=attempt,
            files={file.url: source_identity(file.url) for file in step.files},
            code=None if step.function.version is not None else dict(step.code),
            types=tuple(sorted(reference_to(t) for t in step.types)),
            epoch=work.lease.epoch,
        )

    def _launch(self, work: "_Work", spec: StepSpec) -> Report:
        store = self.resolver.store
        path = f"{spec.attempt}/spec.json"
        if not store.objects.create(path, spec.to_json()):
            raise TemperError(f"the attempt {spec.attempt} exists already; run again")
        log = f"{spec.attempt}/log.txt"
        with tempfile.TemporaryFile() if not store.is_local else open(log, "w+b") as file:
            try:
                status = self.launcher.run(store.url_of(path), file, work.lease.lost)
            finally:
                if not store.is_local:
                    file.seek(0)
                    store.objects.replace(log, file.read())
        if work.lease.lost.is_set():
            self._discard_content(spec)
            raise LeaseLost
        data = store.read(f"{spec.attempt}/report.json")
        report = None if data is None else Report.from_json(data)
        if report is None or report.error is not None or status != 0:
            message = report.error if report and report.error else _death(status)
            self._discard_content(spec)
            if report is not None and report.damaged_input is not None:
                store.mark(work.inputs[report.damaged_input][1], Loss.DAMAGED)
                raise InputLost(message)
            raise StepFailed(spec.step, message, log)
        return report

    def _discard_content(self, spec: StepSpec) -> None:
        """A failed attempt keeps its spec, report and log; half-written files only cost space."""
        if self.resolver.store.is_local:
            shutil.rmtree(Path(spec.attempt) / "content", ignore_errors=True)


@dataclass(frozen=True)
class _Work:
    """A step that this driver is to make now: what it resolved to, and the lease to make it under.

    Attributes:
        inputs: what each input turned out to be, in the order of ``step.inputs``.
    """

    step: Step
    key: str
    recipe: Json
    inputs: Sequence[tuple[Input, Manifest]]
    lease: Lease


def _sleep_unless(lost: Event) -> Callable[[float], None]:
    """A pause that ends at once, with the attempt, when the lease is lost."""

    def sleep(seconds: float) -> None:
        if lost.wait(seconds):
            raise LeaseLost

    return sleep


def _death(status: int) -> str:
    if status < 0:
        return f"the worker was killed by signal {-status} (9 is often: out of memory)"
    return f"the worker ended with status {status} and left no report"
