"""Luigi as the scheduler: which step runs when, how many at once, what a failure stops.

One Luigi task per step; it is complete when its key resolves and has a manifest, so Luigi needs no
state of its own. With ``jobs`` above 1 Luigi forks one process per running step, which only waits
for an exec'd worker. Task states are told to an observer through the scheduler, which lives in the
driver's own process.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import luigi
from luigi.scheduler import Scheduler
from luigi.task_status import DONE, FAILED
from luigi.worker import Worker

from pipeline.execution import Executor, StepFailed
from pipeline.plan import topological
from pipeline.step import Step

Observer = Callable[[str, str, str], None]
"""Called with a step's fingerprint, ``running | done | failed`` and a message."""

POLL_SECONDS = 0.2


class _Session:
    """What the tasks of this process look up: Luigi's tasks carry strings only."""

    steps: dict[str, Step]
    executor: Executor


class StepTask(luigi.Task):
    """A step as a Luigi task, named by its fingerprint."""

    fingerprint: luigi.Parameter[str] = luigi.Parameter()

    @property
    def step(self) -> Step:
        return _Session.steps[self.fingerprint]

    def requires(self) -> list["StepTask"]:
        return [StepTask(fingerprint=i.step.fingerprint) for i in self.step.inputs]

    def complete(self) -> bool:
        return _Session.executor.resolver.artifact(self.step) is not None

    def run(self) -> None:
        in_child = _Session.executor.launcher.lifeline.let_go_in_child()
        try:
            _Session.executor.execute(self.step)
        except KeyboardInterrupt:
            if in_child:  # Luigi's forked process: the driver says that the run was stopped
                os._exit(130)
            raise

    def on_failure(self, exception: BaseException) -> str:
        log = exception.log if isinstance(exception, StepFailed) else ""
        return f"{exception}\n{log}"


def schedule(roots: Iterable[Step], executor: Executor, jobs: int, observer: Observer) -> None:
    """Run every step the roots need that is not in the store. Failures are told to ``observer``;
    steps that do not need a failed one run all the same."""
    steps = {step.fingerprint: step for step in topological(roots)}
    _Session.steps, _Session.executor = steps, executor
    luigi.build(
        [StepTask(fingerprint=fingerprint) for fingerprint in steps],
        workers=jobs,
        worker_scheduler_factory=_Factory(observer),
        local_scheduler=True,
        log_level="CRITICAL",  # the board tells of failures
    )


class _Factory:
    """What ``luigi.build`` asks for its scheduler and worker."""

    def __init__(self, observer: Observer):
        self.observer = observer

    def create_local_scheduler(self) -> Scheduler:
        return _ObservedScheduler(self.observer)

    def create_worker(
        self, scheduler: Scheduler, worker_processes: int, assistant: bool = False
    ) -> Worker:
        return Worker(
            scheduler=scheduler,
            worker_processes=worker_processes,
            assistant=assistant,
            wait_interval=POLL_SECONDS,
            wait_jitter=0.0,
            no_install_shutdown_handler=True,
        )


class _ObservedScheduler(Scheduler):
    """Luigi's own scheduler, passing on every change of a task's state."""

    def __init__(self, observer: Observer):
        # a step that failed is not tried again by itself: its inputs have not changed
        super().__init__(retry_count=1, prune_on_get_work=False)
        self._observer = observer
        self._fingerprints: dict[str, str] = {}

    def add_task(self, *args: Any, **kwargs: Any) -> Any:
        task_id = str(kwargs.get("task_id"))
        if fingerprint := (kwargs.get("params") or {}).get("fingerprint"):
            self._fingerprints[task_id] = fingerprint
        status = kwargs.get("status")
        if task_id in self._fingerprints and status in (DONE, FAILED):
            self._observer(
                self._fingerprints[task_id], str(status).lower(), str(kwargs.get("expl") or "")
            )
        return super().add_task(*args, **kwargs)

    def get_work(self, *args: Any, **kwargs: Any) -> Any:
        response = super().get_work(*args, **kwargs)
        if (task_id := response.get("task_id")) in self._fingerprints:
            self._observer(self._fingerprints[str(task_id)], "running", "")
        return response
