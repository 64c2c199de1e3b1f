"""Luigi as the scheduler: the order of steps, their parallelism, and the effect of failures.

There is one Luigi task for each step. It is complete if the step's key can be computed and has a
manifest, so Luigi needs no state of its own. With ``jobs`` above 1, Luigi forks one process for
each running step, which only waits for an exec'd worker. The scheduler, or the client of a
``luigid`` that several drivers share, reports states of tasks to an observer.
"""

import errno
import json
import os
import re
import signal
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a setting of luigi's that changes nothing here
    import luigi
from luigi.rpc import RemoteScheduler
from luigi.scheduler import Scheduler
from luigi.task_status import DONE, FAILED
from luigi.worker import Worker

from pipeline.base.errors import TemperError
from pipeline.dag.step import Step
from pipeline.launchers.driver_end import await_children, heed_first, uninterrupted
from pipeline.plan.planning import topological
from pipeline.running.attempts import Executor, Paused, StepFailed, named_signal
from pipeline.uncaught.user_errors import message_of, sentence
from pipeline.wire.lifeline import Lifeline

Observer = Callable[[str, str, str], None]
"""Called with a step's fingerprint, ``running | done | paused | failed``, and a message."""
_DIED = re.compile(r'"?Task \S+ died unexpectedly with exit code (-?\d+)"?')
_PAUSED = "the step has come as far as it was to go for now"

POLL_SECONDS = 0.2
ANSWER_SECONDS = 10.0
RETRY_SECONDS, RETRIES = 5, 24
"""Retries if a ``luigid`` does not answer, since it may be restarting."""
ORDERLY_SECONDS = 5.0
"""Additional time, after the worker's grace period, for an orderly end."""


class _Session:
    """Data that the tasks of this process look up, since Luigi's tasks carry only strings."""

    steps: dict[str, Step]
    executor: Executor
    lifeline: Lifeline
    shared: Mapping[str, int]


class StepTask(luigi.Task):
    """A step as a Luigi task, identified by its fingerprint and its store."""

    fingerprint: luigi.Parameter[str] = luigi.Parameter()
    store: luigi.Parameter[str] = luigi.Parameter()

    @property
    def step(self) -> Step:
        return _Session.steps[self.fingerprint]

    def requires(self) -> list["StepTask"]:
        return [_task(reference.step, self.store) for reference in self.step.inputs]

    @property
    def resources(self) -> dict[str, int]:  # type: ignore[override]
        """The amounts of shared resources that the step uses."""
        claims = _Session.executor.placement.claims(self.step)
        return {name: amount for name, amount in claims.items() if name in _Session.shared}

    def complete(self) -> bool:
        return _Session.executor.resolver.artifact(self.step) is not None

    def run(self) -> None:
        if in_child := _Session.lifeline.let_go_in_child():
            heed_first((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        try:
            _Session.executor.execute(self.step)
        except KeyboardInterrupt:
            if in_child:  # in Luigi's forked process; the driver reports that the run was stopped
                os._exit(130)
            raise

    def on_failure(self, exception: BaseException) -> str:
        if isinstance(exception, Paused):
            return _PAUSED
        if isinstance(exception, StepFailed):
            return f"{exception}\n{exception.log}"
        return f"{message_of(exception) or sentence(exception)}\n"


def _task(step: Step, store: str) -> StepTask:
    return _kind(step.name)(fingerprint=step.fingerprint, store=store)


@cache
def _kind(step: str) -> type[StepTask]:
    """A class for each step name, which is the name on the web page of a ``luigid``."""
    return type(step, (StepTask,), {"__module__": __name__})


def schedule(
    roots: Iterable[Step],
    executor: Executor,
    lifeline: Lifeline,
    jobs: int,
    observer: Observer,
    scheduler: str | None = None,
) -> None:
    """Run every step that the roots need and that is not in the store.

    Failures are reported to ``observer``; steps that do not need a failed step still run.

    Args:
        lifeline: ends the workers with this process.
        scheduler: URL of a ``luigid`` that shares the work; by default this process has its own.

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
                log_level="CRITICAL",  # the board reports failures
            )
            if scheduler is None or failed or all(map(executor.resolver.artifact, steps.values())):
                return
            time.sleep(POLL_SECONDS)  # other drivers run the rest, so luigid has no work for us
    except luigi.RPCError as error:
        raise TemperError(
            f"the scheduler at {scheduler} does not answer any more; what is done is kept: start "
            f"luigid again, or leave out scheduler=, and run again ({error})"
        ) from error
    except KeyboardInterrupt:  # Luigi has signalled its processes, but does not wait for them
        with uninterrupted():
            await_children(executor.placement.grace_seconds + ORDERLY_SECONDS)
        raise


def _limits(scheduler: str) -> dict[str, int]:
    """The limits of a ``luigid``, from the section ``[resources]`` of its configuration.

    This request also fails at once if there is no ``luigid``; its client would retry for minutes.
    """
    try:
        url = f"{scheduler.rstrip('/')}/api/resource_list"  # cheap, and only luigid has it
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return {r["name"]: r["num_total"] for r in json.load(answer)["response"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        there = "start luigid there" if "://" in scheduler else "name it as in http://HOST:8082"
        raise TemperError(
            f"the scheduler at {scheduler} does not answer ({error}); {there}, or "
            "leave out scheduler= to do without"
        ) from error


def _require_within(limits: Mapping[str, int], steps: Iterable[Step], executor: Executor) -> None:
    """Refuse requests that exceed the scheduler's limits: the scheduler would wait forever."""
    for step in steps:
        for name, amount in executor.placement.claims(step).items():
            if amount > limits.get(name, amount):
                raise TemperError(
                    f"{step.name} asks for {name}={amount}, and the scheduler lets all steps have "
                    f"{name}={limits[name]}; raise that in the configuration of luigid"
                )


@dataclass
class _Factory:
    """Creates the scheduler and worker for ``luigi.build``."""

    observer: Observer
    capacity: Mapping[str, int]
    keep_alive: bool

    def create_local_scheduler(self) -> Scheduler:
        # Luigi never retries a failed step: the executor does
        scheduler = _ObservedScheduler(
            resources=dict(self.capacity), retry_count=1, prune_on_get_work=False
        )
        scheduler.observer = self.observer
        return scheduler

    def create_remote_scheduler(self, url: str) -> RemoteScheduler:
        scheduler = _ObservedRemoteScheduler(url)
        # set here, since Luigi's configuration would apply to every run of this process
        scheduler._rpc_retry_wait, scheduler._rpc_retry_attempts = RETRY_SECONDS, RETRIES
        scheduler.observer = self.observer
        return scheduler

    def create_worker(
        self, scheduler: Any, worker_processes: int, assistant: bool = False
    ) -> Worker:
        try:
            return Worker(
                scheduler=scheduler,
                worker_processes=worker_processes,
                assistant=assistant,
                keep_alive=self.keep_alive,
                wait_interval=POLL_SECONDS,
                wait_jitter=0.0,
                no_install_shutdown_handler=True,
            )
        except OSError as error:  # of Luigi's queue
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise TemperError(
                f"Python's multiprocessing cannot make a semaphore here ({error.strerror}); mount "
                "/dev/shm so that this user may write it, as docker run --shm-size=1g does"
            ) from error


class _Observed:
    """Mixin for a scheduler or its client: reports every change of a task's state."""

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
            told = _told(str(kwargs.get("expl") or ""))
            self.observer(self._fingerprints[task_id], str(status).lower(), told)
        return super().add_task(*args, **kwargs)  # type: ignore[misc]

    def get_work(self, *args: Any, **kwargs: Any) -> Any:
        response = super().get_work(*args, **kwargs)  # type: ignore[misc]
        if (task_id := response.get("task_id")) in self._fingerprints:
            self.observer(self._fingerprints[str(task_id)], "running", "")
        return response


def _told(explanation: str) -> str:
    """What :meth:`StepTask.on_failure` has told, or Luigi of a process of its own that died."""
    died = _DIED.fullmatch(explanation)
    if died is None:
        return explanation
    code = int(died[1])
    how = f"was killed by {named_signal(-code)}" if code < 0 else f"ended with status {code}"
    return f"the process of this run that waited for its worker {how}\n"


class _ObservedScheduler(_Observed, Scheduler):
    """Luigi's own scheduler, in the driver's process."""


class _ObservedRemoteScheduler(_Observed, RemoteScheduler):
    """The client of a ``luigid``."""
