"""What a launcher is: it runs the workers of one attempt of a step to their end."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import Event
from typing import IO, Protocol

from pipeline.dag.resources import NOTHING, Resources

PREEMPTED = 75
"""A worker's exit status when it was told to leave and left in order (``EX_TEMPFAIL``): scratch
holds what it had, and the step goes on from there in another attempt. Its report says so too, and
that is what counts: any step can end with any status."""
REFUSED = 76
"""A worker's exit status when its attempt was begun by another process, or given up."""
NODE, MASTER = "TEMPER_NODE", "TEMPER_MASTER"
"""Set by launchers of several nodes: which node this is, from 0, and ``host:port`` of the first."""


@dataclass(frozen=True)
class Task:
    """One attempt of a step, for a launcher to run.

    Attributes:
        name: the attempt's, which no other has; an engine's job is found by it.
        folder: the attempt's path within the store; ``spec.json`` lies there.
        spec_url: what a worker is given.
        function: ``module:name`` of the step function.
        environment: what its workers find in their environment besides; see
            :func:`pipeline.wire.spec.handed_over`.
        is_new: this driver has just made the attempt. False if an earlier one did, and may have
            submitted a job for it.
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
    """How the workers of an attempt ended. Whether there is a result, their report says.

    Attributes:
        status: exit status, or minus the number of the signal; ``None`` where it is not known.
        reason: what the engine says, its own name of the job included.
        preempted: says the engine: its machine was taken away or lost.
        cancelled: somebody has ended it on purpose.
        confirmed: no process of it is left. If not, the engine has only lost sight of them.
    """

    status: int | None
    reason: str = ""
    preempted: bool = False
    cancelled: bool = False
    confirmed: bool = True


class Launcher(Protocol):
    """An engine, as it is configured."""

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
        """How long a worker that was told to leave has for its checkpoint."""
        ...

    def shortage(self, resources: Resources) -> str | None:
        """What there is, in words, if that is not enough for a request; otherwise ``None``."""
        ...

    def claims(self, resources: Resources) -> Mapping[str, int]:
        """What a step takes of :meth:`capacity` while it runs."""
        ...

    def capacity(self) -> Mapping[str, int]:
        """What steps that run at once must share, by name; empty if the engine sees to that."""
        ...

    def ready(self, asked: Sequence[tuple[str, Resources]]) -> AbstractContextManager[None]:
        """Prepare, within the block, for steps that are going to run here.

        Args:
            asked: the function (``module:name``) of each, and what it asks for.
        """
        ...

    def run(self, task: Task, log: IO[bytes], stop: Event) -> Ended:
        """Run the workers to their end, or until ``stop`` is set: this driver has lost the lease.

        What they print goes to ``log``. A job that an earlier driver submitted for the task is
        not started again.

        Raises:
            TemperError: the engine cannot be asked.
        """
        ...
