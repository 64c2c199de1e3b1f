"""The protocol of a launcher, which runs the workers of one attempt of a step to their end."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event
from typing import IO, Protocol

from pipeline.dag.resources import NOTHING, Resources

PREEMPTED = 75
"""A worker's exit status after it was asked to stop and ended in order (``EX_TEMPFAIL``). Its state
is in scratch, from which the next attempt resumes. The worker's report says so too, and only the
report counts, since any step can end with any status."""
REFUSED = 76
"""A worker's exit status if another process has begun its attempt, or a driver has given it up."""
NODE, MASTER = "TEMPER_NODE", "TEMPER_MASTER"
"""Set by launchers for several nodes: this node's index, ``host:port`` of the first."""
FOLDER = "TEMPER_FOLDER"
"""Set by launchers whose jobs begin elsewhere: the driver's working folder. A worker that finds it
on its machine goes there, so that ``pairs.jsonl`` is the same file for both."""


@dataclass(frozen=True)
class Task:
    """One attempt of a step, for a launcher to run.

    Attributes:
        name: the attempt's unique name, by which an engine's job is found.
        folder: the attempt's path within the store; it contains ``spec.json``.
        spec_url: the address of the spec, which is the worker's argument.
        function: ``module:name`` of the step function.
        environment: further environment variables for its workers; see
            :func:`pipeline.wire.spec.handed_over`.
        is_new: whether this driver has just made the attempt. If not, an earlier driver made it and
            may have submitted a job for it.
    """

    name: str
    step: str
    key: str
    folder: str
    spec_url: str
    function: str = ""
    resources: Resources = NOTHING
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_new: bool = True


@dataclass(frozen=True)
class Ended:
    """How the workers of an attempt ended. Whether there is a result is known from their report.

    Attributes:
        status: exit status, or minus the number of the signal; ``None`` if unknown.
        reason: the engine's reason, with the engine's name of the job.
        preempted: whether, according to the engine, its machine was taken away or lost.
        cancelled: whether somebody cancelled it.
        confirmed: whether certainly no process of it is left. If not, the engine has only lost
            contact.
    """

    status: int | None
    reason: str = ""
    preempted: bool = False
    cancelled: bool = False
    confirmed: bool = True


class Launcher(Protocol):
    """A configured engine."""

    @property
    def kind(self) -> str:
        """Its name in ``launcher.use``."""
        ...

    @property
    def detached(self) -> bool:
        """Whether workers outlive the driver."""
        ...

    @property
    def grace_seconds(self) -> float:
        """The time that a worker has for its checkpoint after it was asked to stop."""
        ...

    def shortage(self, resources: Resources) -> str | None:
        """``None`` if there are enough resources for a request; else those there are, in words."""
        ...

    def claims(self, resources: Resources) -> Mapping[str, int]:
        """The amounts of :meth:`capacity` that a step uses while it runs."""
        ...

    def capacity(self) -> Mapping[str, int]:
        """Resources that running steps share, by name; empty if the engine manages them."""
        ...

    def ready(self, asked: Sequence[tuple[str, Resources]]) -> AbstractContextManager[None]:
        """Prepare for steps that will run inside the block.

        Args:
            asked: the function (``module:name``) and the requested resources of each.
        """
        ...

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        """Run the workers to their end, or until ``stop`` is set because this driver has lost the
        lease.

        Their output goes to ``log``. If an earlier driver submitted a job for the task, no second
        one is started.

        Raises:
            TemperError: the engine cannot be reached.
        """
        ...
