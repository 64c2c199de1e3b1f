"""Runs one step: looks in the store, holds the lease, starts attempts, commits the artifact."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import IO, Any, NoReturn

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from pipeline.base.errors import TemperError
from pipeline.base.redaction import redact_log, shown, shown_output
from pipeline.base.repeating import repeating
from pipeline.dag.canonical import Json, reference_to
from pipeline.dag.inputs import source_identity
from pipeline.dag.resources import MOST_PREEMPTIONS
from pipeline.dag.step import Input, Step
from pipeline.estimate.estimates import Estimator
from pipeline.estimate.past_runs import hardware_in
from pipeline.launchers.jobs import JobRecord
from pipeline.launchers.placement import Place, Placement
from pipeline.plan.resolver import Resolver
from pipeline.store.layout import DataLoss
from pipeline.store.lease import TTL, Lease, Leases
from pipeline.store.manifest import InputEntry, Manifest, files_digest
from pipeline.store.network_timeouts import despite_outages
from pipeline.store.untrusted_input import is_seconds
from pipeline.uncaught.user_errors import NO_ROOM
from pipeline.wire.launcher import PREEMPTED, Ended, Launcher, Task
from pipeline.wire.spec import InputSpec, Pause, Report, StepSpec, handed_over

LOG_SECONDS = 10.0
"""How often the log of a running step is copied into a remote store."""
MOST_LOSSES, SOON_SECONDS = 3, 60.0
"""If leases of a step are lost so often, each within this time, no attempt will ever end."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0


class StepFailed(TemperError):
    """A step's attempt ended without a result. ``log`` is the path of its output."""

    def __init__(self, step: str, message: str, log: str):
        super().__init__(message)
        self.step = step
        self.log = log


class Preempted(StepFailed):
    """The worker was asked to stop, or its machine was lost; the next attempt resumes from
    scratch."""


class Paused(TemperError):
    """The step has reached the point of its pause; another attempt resumes from scratch."""


class InputLost(TemperError):
    """An input's data is not as committed. It is marked, so that it will be made again."""


class LeaseLost(Exception):
    """This driver could not renew its lease in time; another driver may make the artifact now.

    Attributes:
        left: the attempt, which may have ended with a result; ``None`` if it certainly has none.
    """

    def __init__(self, left: Task | None = None):
        super().__init__()
        self.left = left


@dataclass(frozen=True)
class _Work:
    """The subject of an attempt: key, recipe, inputs, lease and place."""

    step: Step
    key: str
    recipe: Json
    inputs: list[tuple[Input, Manifest]]
    lease: Lease
    place: Place


@dataclass(frozen=True)
class Executor:
    """Runs steps where they are placed, and commits their artifacts.

    Args:
        provenance: recorded in every manifest, in addition to the worker's own provenance.
        pauses: the points at which steps pause, by fingerprint; other steps run to their end.
    """

    resolver: Resolver
    placement: Placement
    leases: Leases
    provenance: dict[str, Any]
    pauses: Mapping[str, Pause] = field(default_factory=dict)

    def execute(self, step: Step) -> Manifest:
        """Return the artifact of a step whose inputs exist; make it if the store does not have it.

        While another driver makes it, this one waits.

        Raises:
            StepFailed: the attempt failed; its log and folder are kept.
            Paused: the step has reached the point of its pause.
            InputLost: an input's data is lost or damaged.
        """
        place = self.placement.place(step)
        self._require_no_store_within(step)
        losses, left = 0, None
        while True:
            inputs = self.resolver.inputs(step)
            resolved = self.resolver.key_and_recipe(step)
            assert resolved is not None  # `inputs` has just found every input
            key, recipe = resolved

            def is_made() -> bool:
                return self.resolver.artifact(step) is not None

            with self.leases.held(step.name, key, is_made) as lease:
                found = self.resolver.artifact(step)
                if found is not None:
                    return found  # it existed, or another driver has made it meanwhile
                began = time.monotonic()
                try:
                    if lease is not None:
                        return self._make(_Work(step, key, recipe, inputs, lease, place), left)
                except LeaseLost as lost:
                    left = lost.left
                if lease is not None:
                    self._require_room(lease)
                    losses = losses + 1 if time.monotonic() - began < SOON_SECONDS else 0
                    self._require_answers(step, losses)

    def _make(self, work: _Work, lost: Task | None = None) -> Manifest:
        """Run one attempt, and as many more as the step allows after failures and preemptions.

        Args:
            lost: the attempt during which this driver lost the lease.
        """
        self._require_data(work.inputs)
        left = self._left(work) or self._finished(work, lost)
        asked = work.place.resources
        retries = work.step.function.retries if asked.retries is None else asked.retries
        preemptions = MOST_PREEMPTIONS if asked.preemptions is None else asked.preemptions
        budget = _Budget(retries, preemptions)
        retrying = Retrying(
            retry=retry_if_exception_type(StepFailed),
            after=budget.count,
            stop=budget.is_spent,
            wait=budget.pause,
            sleep=_sleep_unless(work.lease.lost),
            reraise=True,
        )
        for attempt in retrying:
            with attempt:
                if left is not None:
                    task, left = left, None
                    with contextlib.suppress(Preempted, Paused):  # they do not count here
                        return self._attempt(work, task)
                return self._attempt(work, self._begin(work))
        raise AssertionError("the last failure is raised")

    def _left(self, work: _Work) -> Task | None:
        """The attempt of an earlier driver whose job may still run, or has succeeded; see
        :mod:`pipeline.launchers.jobs`."""
        store, step = self.resolver.store, work.step.name
        record = JobRecord.read(store, step, work.key)
        if record is None:
            return None
        folder = f"{store.root}/attempts/{step}/{work.key}/{record.attempt}"
        task = self._task(work, folder, is_new=False)
        report = self._report(task)
        return task if report is None or report.error is None else None

    def _finished(self, work: _Work, lost: Task | None) -> Task | None:
        """The attempt during which the lease was lost, if it has succeeded nevertheless: a bucket
        may have failed at the end of a step that took hours."""
        if lost is None or lost.key != work.key:
            return None
        report = despite_outages(self.resolver.store, self._report, lost)
        return None if report is None or report.error is not None else replace(lost, is_new=False)

    def _begin(self, work: _Work) -> Task:
        """Create a new attempt, with the spec that its worker reads."""
        store = self.resolver.store
        task = self._task(work, store.new_attempt(work.step.name, work.key), is_new=True)
        spec, secrets = self._spec(work, task).without_secrets()
        if secrets and work.place.launcher.detached:
            raise TemperError(
                f"{task.step}: {shown(next(iter(secrets.values())))} holds a secret, which no "
                f"{work.place.launcher.kind} job can be given without writing it down; give its "
                "path alone, with credentials in the environment of the job, or a copy of the file"
            )
        data = spec.to_json()
        path = f"{task.folder}/spec.json"
        # equal content means that a lost answer made the client create the file twice
        if not store.objects.create(path, data) and store.objects.read(path) != data:
            raise TemperError(f"the attempt {store.url_of(task.folder)} exists already; run again")
        return replace(task, environment=handed_over(data, secrets))

    def _task(self, work: _Work, folder: str, is_new: bool) -> Task:
        return Task(
            name=folder.rsplit("/", 1)[-1],
            step=work.step.name,
            key=work.key,
            folder=folder,
            spec_url=self.resolver.store.url_of(f"{folder}/spec.json"),
            function=work.step.function.reference,
            resources=work.place.resources,
            is_new=is_new,
        )

    def _attempt(self, work: _Work, task: Task) -> Manifest:
        store = self.resolver.store
        # Look before there is anything to commit: a driver that takes over while this one sleeps
        # commits the same generation, and the first of the two wins.
        earlier = self.resolver.catalog.look(task.step, task.key)
        launcher = work.place.launcher if task.is_new else self._launcher_of(work)
        started = time.monotonic()  # nobody sets this clock
        report = self._launch(work, task, launcher)
        if not work.lease.confirm():
            raise LeaseLost(task)
        seconds = time.monotonic() - started
        if launcher.detached:  # without the time in a queue, and by one machine's clock
            worked = _spent(report).get("seconds", -1.0)
            seconds = float(worked) if is_seconds(worked) else seconds
        committed = self._commit(
            work.step,
            Manifest(
                step=task.step,
                key=task.key,
                attempt=task.name,
                digest=files_digest(report.files),
                recipe=work.recipe,
                inputs=tuple(
                    InputEntry(made.step, made.key, ref.part, made.digest_of(ref.part))
                    for ref, made in work.inputs
                ),
                files=report.files,
                metrics=report.metrics,
                seconds=round(seconds, 3),
                provenance={
                    **self.provenance,
                    **report.provenance,
                    "launcher": launcher.kind,
                    "foreseen": self._foreseen(work, report),
                },
                discovered=report.discovered,
                kind=reference_to(work.step.kind),
                generation=0 if earlier is None else earlier.generation + 1,
                function=work.step.function.reference,
            ),
        )
        store.forget_scratch(task.step, task.key, staged=report.staged)
        return committed

    def _foreseen(self, work: _Work, report: Report) -> dict[str, Any]:
        """What the step needs on the hardware that it had, to which later runs are compared."""
        inputs = (made for _, made in work.inputs)
        estimator = Estimator(self.resolver.catalog)
        return estimator.foreseen(work.step, inputs, hardware_in(_spent(report)))

    def _commit(self, step: Step, made: Manifest) -> Manifest:
        """Commit an attempt, and return the artifact that counts. If another driver was faster,
        that is its artifact, unless its discovered dependencies differ here: then this attempt
        becomes the next generation."""
        while True:
            store = self.resolver.store
            committed = despite_outages(store, store.commit, made)
            self.resolver.catalog.add(committed)
            if committed.attempt == made.attempt or not self.resolver.outdated(step, committed):
                return committed
            made = replace(made, generation=made.generation + 1)

    def _require_room(self, lease: Lease) -> None:
        """Give up if the lease was lost because the disk was full: the step's files may have filled
        it, and another attempt would do so again."""
        if lease.failure is not None and lease.failure.errno in NO_ROOM:
            raise TemperError(
                f"the store {self.resolver.store.url} has no room left "
                f"({lease.failure.strerror}), so the step was stopped; make room (temper gc shows "
                "what nobody needs), then run again"
            ) from lease.failure

    def _require_answers(self, step: Step, losses: int) -> None:
        """Give up if leases were lost so often, each soon: the step would begin again for ever."""
        if losses == MOST_LOSSES:
            raise TemperError(
                f"{step.name}: its lease was lost {losses} times in a row, since the store "
                f"{self.resolver.store.url} answers too slowly to renew it within {TTL:.0f} s; "
                "look at the network and at what else burdens the store, then run again"
            )

    def _require_no_store_within(self, step: Step) -> None:
        """Refuse an input folder that holds the store: each run changes it."""
        store = self.resolver.store
        for url in (file.url for file in step.files if store.is_local):
            path = url.removeprefix("file://")
            folder = "://" not in path and Path(path).resolve()
            if folder and Path(store.root).resolve().is_relative_to(folder):
                raise TemperError(
                    f"the input {url} holds the store {store.url}, which every run changes; name a "
                    "folder without it, or choose another place with store="
                )

    def _require_data(self, inputs: Sequence[tuple[Input, Manifest]]) -> None:
        store = self.resolver.store
        for _, manifest in inputs:
            if self.resolver.catalog.loss(manifest) is not None:
                raise InputLost(f"the data of its input {manifest.name} is gone")
            if lost := store.lost_files(manifest):
                store.mark(manifest, DataLoss.DAMAGED)
                raise InputLost(f"its input {manifest.name} has lost {', '.join(lost[:3])}")

    def _spec(self, work: _Work, task: Task) -> StepSpec:
        store, step, place = self.resolver.store, work.step, work.place
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
            attempt=task.folder,
            types=step.type_names,
            files={file.url: source_identity(file.url) for file in step.files},
            epoch=work.lease.epoch,
            nodes=place.resources.num_nodes,
            processes=place.resources.num_processes,
            detached=place.launcher.detached,
            grace=place.launcher.grace_seconds,
            seconds=place.resources.seconds,
            pause=self.pauses.get(step.fingerprint),
        )

    def _launch(self, work: _Work, task: Task, launcher: Launcher) -> Report:
        store, lost = self.resolver.store, work.lease.lost
        ended = Ended(None)
        if task.is_new or self._report(task) is None:
            with self._log(task) as file:
                ended = launcher.run(task, file, lost)
        report = None if lost.is_set() else despite_outages(store, self._report, task)
        is_good = report is not None and report.error is None and ended.status in (0, None)
        # An attempt also fails if a new holder of the lease has removed its scratch. So a failure
        # counts only if this driver still holds the lease; after a sleep it may not know yet.
        if lost.is_set() or not (is_good or work.lease.confirm()):
            if not launcher.detached:
                self._discard_content(task)
            raise LeaseLost(None if store.is_local else task)
        if launcher.detached:
            with contextlib.suppress(OSError):
                store.objects.remove(store.job_path(task.step, task.key))
        if report is None or not is_good:
            self._fail(work, task, ended, report)
        return report

    def _launcher_of(self, work: _Work) -> Launcher:
        """The launcher with which an earlier driver runs a step.

        Raises:
            TemperError: that launcher cannot be used here.
        """
        store, step = self.resolver.store, work.step.name
        record = JobRecord.read(store, step, work.key)
        if record is None:
            return work.place.launcher
        try:
            return self.placement.launcher(record.launcher)
        except TemperError as error:
            path = store.url_of(store.job_path(step, work.key))
            raise TemperError(
                f"{step}: run {record.run} has submitted a {record.launcher} job for it ({error}); "
                f"if that does not run any more, delete {path}"
            ) from error

    def _fail(self, work: _Work, task: Task, ended: Ended, report: Report | None) -> NoReturn:
        self._discard_content(task)
        if report is not None and report.damaged_input in range(len(work.inputs)):
            assert report.damaged_input is not None
            self.resolver.store.mark(work.inputs[report.damaged_input][1], DataLoss.DAMAGED)
            raise InputLost(str(report.error))
        if report is not None and report.paused:
            raise Paused(str(report.error))
        others = [self._report(task, node) for node in range(1, work.place.resources.num_nodes)]
        kind, message = _verdict(ended, [report, *others])
        raise kind(task.step, message, f"{task.folder}/log.txt")

    def _report(self, task: Task, node: int = 0) -> Report | None:
        name = f"report-{node}.json" if node else "report.json"
        data = self.resolver.store.read(f"{task.folder}/{name}")
        return None if data is None else Report.from_json(data)

    @contextlib.contextmanager
    def _log(self, task: Task) -> Iterator[IO[bytes]]:
        """The file for a step's output; its content is copied into a remote store at intervals and
        at the end."""
        store, path = self.resolver.store, f"{task.folder}/log.txt"
        if store.is_local:
            with open(path, "ab" if task.is_new else "wb") as file:
                try:
                    yield file
                finally:
                    with contextlib.suppress(OSError):  # it must not cost the step
                        redact_log(path)
            return
        sent = 0

        def send() -> None:
            nonlocal sent
            with contextlib.suppress(OSError):  # only for display; the next copy may succeed
                if (size := os.stat(name).st_size) != sent:
                    store.objects.replace(path, shown_output(Path(name).read_bytes()))
                    sent = size

        with tempfile.NamedTemporaryFile(prefix="temper-log-") as file:
            name = file.name
            try:
                with repeating(LOG_SECONDS, send, "log"):
                    yield file
            finally:
                file.flush()
                with contextlib.suppress(OSError):  # it must not cost the step that it tells of
                    store.objects.replace(path, shown_output(Path(name).read_bytes()))

    def _discard_content(self, task: Task) -> None:
        """Delete half-written files, which only cost space; spec, report and log are kept."""
        if self.resolver.store.is_local:
            shutil.rmtree(Path(task.folder) / "content", ignore_errors=True)


def _spent(report: Report) -> dict[str, Any]:
    """What an attempt used, according to its worker."""
    spent = report.provenance.get("spent")
    return spent if isinstance(spent, dict) else {}


def _references(types: Iterable[type]) -> tuple[str, ...]:
    return tuple(sorted(map(reference_to, types)))


class _Budget:
    """Decides whether another attempt may follow; it counts failures and preemptions separately."""

    def __init__(self, retries: int, preemptions: int):
        self._allowed = {False: retries, True: preemptions}
        self._used = {False: 0, True: 0}

    def count(self, state: RetryCallState) -> None:
        self._used[_was_preempted(state)] += 1

    def is_spent(self, state: RetryCallState) -> bool:
        kind = _was_preempted(state)
        return self._used[kind] > self._allowed[kind]

    def pause(self, state: RetryCallState) -> float:
        """The pause before the next attempt: it doubles with every attempt that ended in the same
        way."""
        doubled = FIRST_RETRY_SECONDS * 2.0 ** (self._used[_was_preempted(state)] - 1)
        return min(LONGEST_RETRY_SECONDS, doubled)


def _was_preempted(state: RetryCallState) -> bool:
    return state.outcome is not None and isinstance(state.outcome.exception(), Preempted)


def _sleep_unless(lost: Event) -> Callable[[float], None]:
    """A sleep that raises :class:`LeaseLost` as soon as the lease is lost."""

    def sleep(seconds: float) -> None:
        if lost.wait(seconds):
            raise LeaseLost

    return sleep


def _verdict(ended: Ended, reports: Sequence[Report | None]) -> tuple[type[StepFailed], str]:
    """Decide whether an attempt failed or only lost its machine, and compose the message.

    If one of several nodes fails, the engine asks the others to stop: so an error takes precedence
    over such a stop. If machines are taken away, the remaining ranks fail because the others are
    missing: so a preemption that the engine reports takes precedence over an error. Whether a
    worker was asked to stop is known from its report, not from its exit status, since any step can
    end with any status.
    """
    several = len(reports) > 1
    there = [(node, report) for node, report in enumerate(reports) if report is not None]
    errors = [
        f"node {node}: {report.error}" if several else str(report.error)
        for node, report in there
        if report.error is not None and not report.preempted
    ]
    left = [str(report.error) for _, report in there if report.preempted]
    if ended.cancelled:
        return StepFailed, _death(ended)
    if ended.preempted and (ended.confirmed or several or not errors):
        return Preempted, _death(ended)
    if errors:
        return StepFailed, "; ".join(errors)
    one_was_killed = several and ended.status not in (None, PREEMPTED)
    if left and not one_was_killed:
        return Preempted, "; ".join(left)
    return StepFailed, _death(ended)


def _death(ended: Ended) -> str:
    where = f" ({ended.reason})" if ended.reason else ""
    if ended.cancelled:
        return f"the job was cancelled{where}"
    if ended.preempted:
        return f"the worker was told to leave, or lost its machine{where}"
    if ended.status is None:
        return f"the worker left no report{where}"
    if (number := _signal(ended.status)) is not None:
        return f"the worker was killed by {named_signal(number)}{where}"
    return (
        f"the worker ended with status {ended.status}{_STATUSES.get(ended.status, '')} and left no "
        f"report; did the step end its process{', or the job fail before it' * bool(where)}?{where}"
    )


def named_signal(number: int) -> str:
    """A signal by its name, and what it often means."""
    name = next((s.name for s in signal.Signals if s == number), f"signal {number}")
    return f"{name} ({meaning})" if (meaning := _MEANINGS.get(name)) else name


_STATUSES = {126: " (no program that can be run)", 127: " (no such program)"}
"""What a shell means by a status."""
_MEANINGS = {
    "SIGKILL": "often: out of memory",
    "SIGSEGV": "a compiled library crashed",
    "SIGABRT": "a compiled library gave up",
    "SIGBUS": "a compiled library crashed, or a file that it had mapped was cut short",
}


def _signal(status: int) -> int | None:
    """The signal that ended a process; below a shell it is encoded in the shell's status."""
    if status < 0:
        return -status
    return status - 128 if 128 < status < 128 + signal.NSIG else None
