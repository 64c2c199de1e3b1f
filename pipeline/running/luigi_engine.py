"""Luigi as the scheduler: which step runs when, how many at once, what a failure stops.

One Luigi task per step; it is complete when its key resolves and has a manifest, so Luigi needs no
state of its own. With ``jobs`` above 1 Luigi forks one process per running step, which only waits
for an exec'd worker. Task states are told to an observer by the scheduler, or by the client of a
``luigid`` that several drivers share.
"""

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import luigi
from luigi.rpc import RemoteScheduler
from luigi.scheduler import Scheduler
from luigi.task_status import DONE, FAILED
from luigi.worker import Worker

from pipeline.dag.step import Step
from pipeline.errors import TemperError
from pipeline.launchers.orderly import await_children, uninterrupted
from pipeline.plan.planning import topological
from pipeline.running.attempts import Executor, Paused, StepFailed
from pipeline.wire.lifeline import Lifeline

Observer = Callable[[str, str, str], None]
"""Called with a step's fingerprint, ``running | done | paused | failed`` and a message."""
_PAUSED = "the step has come as far as it was to go for now"

POLL_SECONDS = 0.2
ANSWER_SECONDS = 10.0
RETRY_SECONDS, RETRIES = 5, 24
"""How a ``luigid`` is asked again that does not answer: it may have been started anew."""
ORDERLY_SECONDS = 5.0
"""Besides the grace of a worker, to end it in order."""


class _Session:
    """What the tasks of this process look up: Luigi's tasks carry strings only."""

    steps: dict[str, Step]
    executor: Executor
    lifeline: Lifeline
    shared: Mapping[str, int]


class StepTask(luigi.Task):
    """A step as a Luigi task, named by its fingerprint and the store it is to be in."""

    fingerprint: luigi.Parameter[str] = luigi.Parameter()
    store: luigi.Parameter[str] = luigi.Parameter()

    @property
    def step(self) -> Step:
        return _Session.steps[self.fingerprint]

    def requires(self) -> list["StepTask"]:
        return [_task(reference.step, self.store) for reference in self.step.inputs]

    @property
    def resources(self) -> dict[str, int]:  # type: ignore[override]
        """What it takes of what steps that run at once must share."""
        claims = _Session.executor.placement.claims(self.step)
        return {name: amount for name, amount in claims.items() if name in _Session.shared}

    def complete(self) -> bool:
        return _Session.executor.resolver.artifact(self.step) is not None

    def run(self) -> None:
        in_child = _Session.lifeline.let_go_in_child()
        try:
            _Session.executor.execute(self.step)
        except KeyboardInterrupt:
            if in_child:  # Luigi's forked process: the driver says that the run was stopped
                os._exit(130)
            raise

    def on_failure(self, exception: BaseException) -> str:
        if isinstance(exception, Paused):
            return _PAUSED
        log = exception.log if isinstance(exception, StepFailed) else ""
        return f"{exception}\n{log}"


def _task(step: Step, store: str) -> StepTask:
    return _kind(step.name)(fingerprint=step.fingerprint, store=store)


@cache
def _kind(step: str) -> type[StepTask]:
    """A class for each step name, under which the page of a ``luigid`` shows its tasks."""
    return type(step, (StepTask,), {"__module__": __name__})


def schedule(
    roots: Iterable[Step],
    executor: Executor,
    lifeline: Lifeline,
    jobs: int,
    observer: Observer,
    scheduler: str | None = None,
) -> None:
    """Run every step the roots need that is not in the store. Failures are told to ``observer``;
    steps that do not need a failed one run all the same.

    Args:
        lifeline: ends the workers with this process.
        scheduler: URL of a ``luigid`` to share the work through; by default one of our own.

    Raises:
        TemperError: the ``luigid`` cannot be reached.
    """
    steps = {step.fingerprint: step for step in topological(roots)}
    _Session.steps, _Session.executor, _Session.lifeline = steps, executor, lifeline
    capacity = executor.placement.capacity()
    _Session.shared = capacity if scheduler is None else _limits(scheduler)
    _require_within(_Session.shared, steps.values(), executor)
    failed = False

    def note(fingerprint: str, state: str, message: str) -> None:
        nonlocal failed
        failed = failed or state == FAILED.lower()
        is_pause = state == FAILED.lower() and message.strip('"') == _PAUSED
        observer(fingerprint, "paused" if is_pause else state, message)

    tasks = [_task(step, executor.resolver.store.url) for step in steps.values()]
    try:
        while True:
            luigi.build(
                tasks,
                workers=jobs,
                worker_scheduler_factory=_Factory(note, capacity, keep_alive=scheduler is not None),
                local_scheduler=scheduler is None,
                scheduler_url=scheduler or "",
                log_level="CRITICAL",  # the board tells of failures
            )
            if scheduler is None or failed or all(map(executor.resolver.artifact, steps.values())):
                return
            time.sleep(POLL_SECONDS)  # what is left, others are running: luigid sends us home
    except luigi.RPCError as error:
        raise TemperError(
            f"the scheduler at {scheduler} does not answer any more; what is done is kept: start "
            f"luigid again, or leave out scheduler=, and run again ({error})"
        ) from error
    except KeyboardInterrupt:  # Luigi has told its processes, and does not wait for them
        with uninterrupted():
            await_children(executor.placement.grace_seconds + ORDERLY_SECONDS)
        raise


def _limits(scheduler: str) -> dict[str, int]:
    """What a ``luigid`` has limits for, in the section ``[resources]`` of its configuration.

    Asked also to say at once that there is none; its client would go on trying for minutes.
    """
    try:
        url = f"{scheduler.rstrip('/')}/api/resource_list"  # cheap, and only luigid has it
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return {r["name"]: r["num_total"] for r in json.load(answer)["response"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise TemperError(
            f"the scheduler at {scheduler} does not answer ({error}); start luigid there, or "
            "leave out scheduler= to do without"
        ) from error


def _require_within(limits: Mapping[str, int], steps: Iterable[Step], executor: Executor) -> None:
    """Refuse what the scheduler would wait for until the end of days."""
    for step in steps:
        for name, amount in executor.placement.claims(step).items():
            if amount > limits.get(name, amount):
                raise TemperError(
                    f"{step.name} asks for {name}={amount}, and the scheduler lets all steps have "
                    f"{name}={limits[name]}; raise that in the configuration of luigid"
                )


class _Factory:
    """What ``luigi.build`` asks for its scheduler and worker."""

    def __init__(self, observer: Observer, capacity: Mapping[str, int], keep_alive: bool):
        self.observer = observer
        self.capacity = capacity
        self.keep_alive = keep_alive

    def create_local_scheduler(self) -> Scheduler:
        # a step that failed is not tried again by Luigi: retries are the step's own
        scheduler = _ObservedScheduler(
            resources=dict(self.capacity), retry_count=1, prune_on_get_work=False
        )
        scheduler.observer = self.observer
        return scheduler

    def create_remote_scheduler(self, url: str) -> RemoteScheduler:
        scheduler = _ObservedRemoteScheduler(url)
        # in Luigi's configuration they would count for every run of this process
        scheduler._rpc_retry_wait, scheduler._rpc_retry_attempts = RETRY_SECONDS, RETRIES
        scheduler.observer = self.observer
        return scheduler

    def create_worker(
        self, scheduler: Any, worker_processes: int, assistant: bool = False
    ) -> Worker:
        return Worker(
            scheduler=scheduler,
            worker_processes=worker_processes,
            assistant=assistant,
            keep_alive=self.keep_alive,
            wait_interval=POLL_SECONDS,
            wait_jitter=0.0,
            no_install_shutdown_handler=True,
        )


class _Observed:
    """Passes on every change of a task's state; goes before a scheduler or a client of one."""

    observer: Observer

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._fingerprints: dict[str, str] = {}

    def add_task(self, *args: Any, **kwargs: Any) -> Any:
        task_id = str(kwargs.get("task_id"))
        if fingerprint := (kwargs.get("params") or {}).get("fingerprint"):
            self._fingerprints[task_id] = fingerprint
        status = kwargs.get("status")
        if task_id in self._fingerprints and status in (DONE, FAILED):
            self.observer(
                self._fingerprints[task_id], str(status).lower(), str(kwargs.get("expl") or "")
            )
        return super().add_task(*args, **kwargs)  # type: ignore[misc]

    def get_work(self, *args: Any, **kwargs: Any) -> Any:
        response = super().get_work(*args, **kwargs)  # type: ignore[misc]
        if (task_id := response.get("task_id")) in self._fingerprints:
            self.observer(self._fingerprints[str(task_id)], "running", "")
        return response


class _ObservedScheduler(_Observed, Scheduler):
    """Luigi's own scheduler, in the driver's process."""


class _ObservedRemoteScheduler(_Observed, RemoteScheduler):
    """The client of a ``luigid``."""
