"""Running one step: look in the store, start an attempt, commit what it made."""

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.canonical import Json
from pipeline.errors import TemperError
from pipeline.inputs import content_digest
from pipeline.launchers.local import LocalLauncher
from pipeline.manifest import InputEntry, Manifest, files_digest
from pipeline.plan import Resolver
from pipeline.spec import InputSpec, Report, StepSpec
from pipeline.step import Input, Step


class StepFailed(TemperError):
    """A step's attempt ended without a result. ``log`` is where its whole output lies."""

    def __init__(self, step: str, message: str, log: str):
        super().__init__(message)
        self.step = step
        self.log = log


@dataclass(frozen=True)
class Executor:
    """Runs steps through a launcher and commits their artifacts.

    Args:
        provenance: recorded in every manifest beside what the worker says of itself.
    """

    resolver: Resolver
    launcher: LocalLauncher
    provenance: dict[str, Any]

    def execute(self, step: Step) -> Manifest:
        """The artifact of a step whose inputs exist, made now if the store does not have it.

        Raises:
            StepFailed: the attempt failed; its log and folder are kept.
            TemperError: an input is missing or damaged.
        """
        inputs = self.resolver.inputs(step)
        resolved = self.resolver.key_and_recipe(step)
        assert resolved is not None  # every input was found just now
        key, recipe = resolved
        with self.resolver.store.alone(step.name, key):
            if (found := self.resolver.artifact(step)) is not None:
                return found  # an input came out as it was before, or another driver was faster
            for _, manifest in inputs:
                self.resolver.store.require_files(manifest)
            return self._make(step, key, recipe, inputs)

    def _make(
        self, step: Step, key: str, recipe: Json, inputs: list[tuple[Input, Manifest]]
    ) -> Manifest:
        store = self.resolver.store
        attempt = store.new_attempt(step.name, key)
        started = time.time()
        report = self._launch(self._spec(step, key, inputs, attempt))
        committed = store.commit(
            Manifest(
                step=step.name,
                key=key,
                attempt=attempt.rsplit("/", 1)[-1],
                digest=files_digest(report.files),
                recipe=recipe,
                inputs=tuple(
                    InputEntry(made.step, made.key, ref.part, made.digest_of(ref.part))
                    for ref, made in inputs
                ),
                files=report.files,
                metrics=report.metrics,
                seconds=round(time.time() - started, 3),
                provenance={**self.provenance, **report.provenance},
            )
        )
        store.forget_scratch(step.name, key)
        return committed

    def _spec(
        self, step: Step, key: str, inputs: list[tuple[Input, Manifest]], attempt: str
    ) -> StepSpec:
        store = self.resolver.store
        return StepSpec(
            store=store.url,
            step=step.name,
            key=key,
            function=step.function.reference,
            arguments=step.portable_arguments(),
            inputs=tuple(
                InputSpec(
                    step=made.step,
                    content="/".join(filter(None, (store.content_path(made), ref.part))),
                    digest=made.digest_of(ref.part),
                    files=made.files_of(ref.part),
                )
                for ref, made in inputs
            ),
            attempt=attempt,
            files={file.url: content_digest(file.url) for file in step.files},
        )

    def _launch(self, spec: StepSpec) -> Report:
        store = self.resolver.store
        path = f"{spec.attempt}/spec.json"
        if not store.create(path, spec.to_json()):
            raise TemperError(f"the attempt {spec.attempt} exists already; run again")
        log = f"{spec.attempt}/log.txt"
        with tempfile.TemporaryFile() if not store.is_local else open(log, "w+b") as file:
            try:
                status = self.launcher.run(store.url_of(path), file)
            finally:
                if not store.is_local:
                    file.seek(0)
                    store.replace(log, file.read())
        data = store.read(f"{spec.attempt}/report.json")
        report = None if data is None else Report.from_json(data)
        if report is None or report.error is not None or status != 0:
            message = report.error if report and report.error else _death(status)
            self._discard_content(spec)
            raise StepFailed(spec.step, message, log)
        return report

    def _discard_content(self, spec: StepSpec) -> None:
        """A failed attempt keeps its spec, report and log; half-written files only cost space."""
        if self.resolver.store.is_local:
            shutil.rmtree(Path(spec.attempt) / "content", ignore_errors=True)


def _death(status: int) -> str:
    if status < 0:
        return f"the worker was killed by signal {-status} (9 is often: out of memory)"
    return f"the worker ended with status {status} and left no report"
