"""Launches steps as jobs of an engine; jobs outlive the driver that submitted them.

A job has the name of its attempt, which is chosen before it is submitted. So there is no moment at
which the job runs and cannot be found. First the driver records the attempt and the engine in the
store:

    jobs/<step>/<key>.json    {"launcher", "attempt", "run", "withdrawn"}

A driver that takes the lease of the key later reads this record, and waits for the job instead of
starting another one. If the engine does not know the job, the driver gives the attempt up for good,
so that a job that is still on its way to the engine cannot begin. If a worker has begun, the driver
waits until the worker ends or falls silent (:mod:`pipeline.wire.presence`).

A driver that loses its lease leaves the job alone: it belongs to the new holder of the lease.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import IO, Any, Protocol

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from pipeline.base.errors import Stopped, TemperError
from pipeline.base.redaction import record
from pipeline.dag.resources import Resources
from pipeline.launchers.config import RayConfig, SlurmConfig
from pipeline.launchers.driver_end import uninterrupted
from pipeline.store.layout import Store
from pipeline.store.untrusted_input import is_attempt, parse_json
from pipeline.wire.launcher import REFUSED, Ended, Task
from pipeline.wire.presence import Watch, give_up
from pipeline.wire.spec import Report

REPORT_SECONDS, REMOTE_REPORT_SECONDS = 0.5, 2.0
"""How often a waiting driver looks for the report, which exists before the engine shows the end."""
ENGINE_SECONDS = 120.0
"""If an engine does not answer for so long, the step fails."""
OUTPUT_SHARE = 0.05
"""The largest share of time for fetching output, since engines send all of it each time."""


@dataclass(frozen=True)
class JobRecord:
    """The job that makes a key. ``withdrawn`` means that its own driver has asked it to stop."""

    launcher: str
    attempt: str
    run: str
    withdrawn: bool = False

    @classmethod
    def read(cls, store: Store, step: str, key: str) -> "JobRecord | None":
        """The record of a key; ``None`` if there is none or it is damaged."""
        try:
            found = cls(**parse_json(store.read(store.job_path(step, key)) or b""))
        except (ValueError, TypeError):
            return None
        texts = isinstance(found.launcher, str) and isinstance(found.run, str)
        named = is_attempt(found.attempt) and isinstance(found.withdrawn, bool)
        return found if texts and named else None


class EngineError(Exception):
    """The engine did not answer, or not as expected; it may answer later."""


class Engine(Protocol):
    """A client of an engine: the few operations that differ between engines.

    Every method may raise :class:`EngineError`. ``submit`` raises :class:`TemperError` if the
    engine refuses the job.
    """

    @property
    def kind(self) -> str: ...
    @property
    def config(self) -> SlurmConfig | RayConfig: ...

    def shortage(self, resources: Resources) -> str | None:
        """Like :meth:`pipeline.wire.launcher.Launcher.shortage`."""
        ...

    def submit(self, task: Task) -> str:
        """Submit a job under the task's name; return the engine's own name of the job."""
        ...

    def find(self, name: str) -> str | None:
        """The engine's own name of the job that was submitted under a name, in whatever state it
        is; ``None`` if the engine does not know it."""
        ...

    def state(self, job: str) -> Ended | str:
        """How a job ended; while it waits or runs, its state in the engine's words."""
        ...

    def output(self, name: str, job: str, start: int) -> bytes:
        """The output of the workers, from a position on."""
        ...

    def cancel(self, job: str) -> None:
        """Cancel a job, whatever state it is in."""
        ...


@dataclass(frozen=True)
class JobLauncher:
    engine: Engine
    store: Store
    run_name: str = ""
    detached: bool = True

    @property
    def kind(self) -> str:
        return self.engine.kind

    @property
    def grace_seconds(self) -> float:
        return self.engine.config.grace_seconds

    def shortage(self, resources: Resources) -> str | None:
        try:
            return self.engine.shortage(resources)
        except EngineError as error:
            raise TemperError(f"launcher {self.kind}: {error}") from error

    def claims(self, resources: Resources) -> Mapping[str, int]:
        return {}

    def capacity(self) -> Mapping[str, int]:
        return {}

    def ready(self, asked: Sequence[tuple[str, Resources]]) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        """Submit the task's job, or find the job of an earlier driver, and wait for its end. If
        ``stop`` is set, the job is left to the new holder of the lease."""
        record = None if task.is_new else JobRecord.read(self.store, task.step, task.key)
        try:
            job = self._submit(task, log) if task.is_new else self._find(task)
            ended = self._follow(task, job, log, stop)
        except EngineError as error:
            raise TemperError(f"launcher {self.kind}: {error}") from error
        if ended.cancelled and record is not None and record.withdrawn:
            return replace(ended, cancelled=False, preempted=True)
        return ended

    def _find(self, task: Task) -> str | None:
        """The job of an earlier driver; ``None`` if the engine does not know it, so that only its
        worker's signs of life count."""
        with contextlib.suppress(EngineError):
            return self.engine.find(task.name)

    def _submit(self, task: Task, log: IO[bytes]) -> str | None:
        """Submit a job once; ``None`` if it did not reach the engine."""
        self._note(task)
        try:
            return self.engine.submit(task)
        except EngineError as error:  # the job may have arrived nevertheless
            log.write(f"[{self.kind}: {error}]\n".encode(errors="replace"))
            return _patiently(self.engine.find, task.name)

    def _note(self, task: Task, withdrawn: bool = False) -> None:
        job = JobRecord(self.kind, task.name, self.run_name, withdrawn)
        path = self.store.job_path(task.step, task.key)
        self.store.objects.replace(path, record(asdict(job)))

    def _follow(self, task: Task, job: str | None, log: IO[bytes], stop: Event) -> Ended:
        line = "submitted" if job or not task.is_new else "no answer to its submission"
        if not task.is_new:
            line += " by an earlier driver"
        log.write(f"[{self.kind} job {job or task.name}: {line}]\n".encode())
        output = _Output(self.engine, task.name, job, log)
        following = _Following(self, task, job, log)
        every = REPORT_SECONDS if self.store.is_local else REMOTE_REPORT_SECONDS
        poll_seconds = self.engine.config.poll_seconds
        asked = time.monotonic()
        try:
            while not stop.wait(min(every, poll_seconds)):
                if self._has_result(task):
                    return Ended(None, f"{self.kind} job {job}")
                if time.monotonic() - asked < poll_seconds:
                    continue
                output.copy()
                if (ended := following.ended()) is not None:
                    return ended
                asked = time.monotonic()
            return Ended(None, f"{self.kind} job {job} goes on for another driver")
        except Stopped:  # this machine shuts down, but the job can continue
            raise
        except KeyboardInterrupt:
            with uninterrupted():
                with contextlib.suppress(OSError):
                    self._note(task, withdrawn=True)
                following.cancel()
            raise
        finally:
            output.copy(at_last=True)

    def _has_result(self, task: Task) -> bool:
        """Whether the attempt has succeeded. The engine may know why one failed."""
        try:
            data = self.store.objects.read(f"{task.folder}/report.json")
        except OSError:  # the lease decides how long the store may fail
            return False
        return data is not None and Report.from_json(data).error is None


class _Following:
    """The state of a job, from the engine and from its worker.

    Two workers must not share scratch. An engine also reports a job as lost if it cannot reach the
    job's machine; then the worker must have been silent for long. If the worker is silent but the
    engine still knows the job, the engine cancels it before another takes its place.
    """

    def __init__(self, launcher: JobLauncher, task: Task, job: str | None, log: IO[bytes]):
        self._engine, self._store = launcher.engine, launcher.store
        self._task, self._job, self._log = task, job, log
        self._state = ""
        self._watch = Watch(self._store, task.folder)
        self._is_silent = False
        self._is_doubted = False
        self._last: Ended | None = None
        if job is None:
            reason = f"{launcher.kind} does not know job {task.name}"
            self._last = Ended(None, reason, preempted=True, confirmed=False)

    def ended(self) -> Ended | None:
        """How the job has ended; ``None`` while it waits or runs, or may be running."""
        if self._last is None and self._job is not None:
            self._last = self._look(self._job)
        self._is_silent = self._is_silent or self._watch.is_silent()
        if self._last is None:
            if self._is_silent:
                self.cancel()
            return None
        if self._last.confirmed:
            return _lost(self._last) if self._is_silent else self._last
        if self._is_silent or give_up(self._store, self._task.folder):
            self._show("")
            return self._last
        if not self._is_doubted:
            self._is_doubted = True
            why = f"{self._engine.kind}: {self._last.reason}"
            self._show(f"{why}; another follows when its worker has been silent for a minute")
        return None

    def cancel(self) -> None:
        if self._job is not None:
            _patiently(self._engine.cancel, self._job)

    def _look(self, job: str) -> Ended | None:
        state = _patiently(self._engine.state, job)
        if isinstance(state, Ended):
            self._show("")
            if state.status != REFUSED:
                return state
            # the engine has started the job twice, and the first worker may be alive
            return replace(state, status=None, preempted=True, confirmed=False)
        if state != self._state:
            self._log.write(f"[{self._engine.kind} job {job}: {state}]\n".encode())
            self._log.flush()
            self._show("" if state.startswith("RUNNING") else f"{self._engine.kind}: {state}")
            self._state = state
        return None

    def _show(self, doing: str) -> None:
        """Show in the step's progress that the job waits; a worker that runs shows what it does."""
        path = self._store.progress_path(self._task.step, self._task.key)
        progress: dict[str, Any] = {"done": 0.0, "total": None, "metrics": {}}
        with contextlib.suppress(OSError, TemperError):  # only for display
            with contextlib.suppress(ValueError, TypeError):  # none yet, or damaged
                progress |= parse_json(self._store.read(path) or b"")
            if doing or str(progress.get("doing", "")).startswith(f"{self._engine.kind}: "):
                self._store.objects.replace(path, record({**progress, "doing": doing}))


def _lost(ended: Ended) -> Ended:
    """The end of a job that was cancelled because its worker was silent."""
    return Ended(ended.status, f"{ended.reason}, after no sign of life", preempted=True)


def _patiently(ask: Any, *arguments: Any) -> Any:
    """Call an engine, and retry for some time if it does not answer."""
    retrying = Retrying(
        retry=retry_if_exception_type(EngineError),
        stop=stop_after_delay(ENGINE_SECONDS),
        wait=wait_exponential(0.5, max=10),
        reraise=True,
    )
    return retrying(ask, *arguments)


@dataclass
class _Output:
    """Copies the workers' output into the step's log."""

    engine: Engine
    name: str
    job: str | None
    log: IO[bytes]
    position: int = 0
    not_before: float = 0.0

    def copy(self, at_last: bool = False) -> None:
        began = time.monotonic()
        if self.job is None or (began < self.not_before and not at_last):
            return
        with contextlib.suppress(EngineError, OSError):  # output is only for display
            new = self.engine.output(self.name, self.job, self.position)
            self.log.write(new)
            self.log.flush()
            self.position += len(new)
        now = time.monotonic()
        self.not_before = now + (now - began) / OUTPUT_SHARE
