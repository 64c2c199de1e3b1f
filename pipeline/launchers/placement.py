"""Assigns each step to a launcher, and checks the assignment before anything runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.base.errors import TemperError
from pipeline.base.text import did_you_mean
from pipeline.dag.resources import NOTHING, Resources
from pipeline.dag.step import Step

if TYPE_CHECKING:
    from pipeline.wire.launcher import Launcher


@dataclass(frozen=True)
class Place:
    """The launcher of a step, and the resources that it has there."""

    launcher: "Launcher"
    resources: Resources


class Placement:
    """The places of the steps of one run.

    Args:
        launchers: in order of preference.
        requests: the resources that each step requests, by fingerprint; see :func:`requests`.
        open_launcher: opens other launchers by kind, for jobs of an earlier driver.
    """

    def __init__(
        self,
        launchers: "Sequence[Launcher]",
        requests: Mapping[str, Resources] | None = None,
        open_launcher: "Callable[[str], Launcher] | None" = None,
    ):
        self.launchers = tuple(launchers)
        self._requests = dict(requests or {})
        self._open = open_launcher
        self._places: dict[str, Place] = {}

    def place(self, step: Step) -> Place:
        """The place of a step. It stays the same for the whole run, even if machines appear or
        vanish.

        Raises:
            TemperError: no launcher has the resources that the step requests.
        """
        if (known := self._places.get(step.fingerprint)) is not None:
            return known
        asked = self._requests.get(step.fingerprint, step.resources)
        offered = []
        for launcher in self.launchers:
            shortage = launcher.shortage(asked)
            if shortage is None:
                return self._places.setdefault(step.fingerprint, Place(launcher, asked))
            offered.append(f"{launcher.kind} has {shortage}")
        raise TemperError(
            f"{step.name} asks for {asked}, and {'; '.join(offered)}; ask for less, or choose "
            "another launcher= (add --plan to see what would run)"
        )

    def description(self, step: Step) -> str:
        """The place of a step in a few words: ``slurm, gpus=8``; empty if no launcher can run
        it."""
        try:
            place = self.place(step)
        except TemperError:  # if the step is not cached, `require` raises this error
            return ""
        asked = place.resources
        return place.launcher.kind if asked == NOTHING else f"{place.launcher.kind}, {asked}"

    def require(self, steps: Iterable[Step]) -> None:
        """Refuse steps that no launcher can run, or not in as many processes as they request.

        Raises:
            TemperError: no launcher can run one of them; the message says what it requests.
        """
        for step in steps:
            require_processes(step, self.place(step).resources)

    @contextmanager
    def ready(self, steps: Iterable[Step]) -> Iterator[None]:
        """Let launchers prepare for the steps that will run inside the block."""
        asked: dict[int, list[tuple[str, Resources]]] = {}
        for step in steps:
            place = self.place(step)
            wanted = step.function.reference, place.resources
            asked.setdefault(id(place.launcher), []).append(wanted)
        with ExitStack() as stack:
            for launcher in self.launchers:
                stack.enter_context(launcher.ready(asked.get(id(launcher), [])))
            yield

    def capacity(self) -> dict[str, int]:
        """The resources that running steps share, by name."""
        return {name: n for launcher in self.launchers for name, n in launcher.capacity().items()}

    def claims(self, step: Step) -> Mapping[str, int]:
        """The part of :meth:`capacity` that a step uses; empty if no launcher can run it."""
        try:
            place = self.place(step)
        except TemperError:  # if the step is not cached, `require` raises this error
            return {}
        return place.launcher.claims(place.resources)

    @property
    def grace_seconds(self) -> float:
        """The longest time that a worker has to stop."""
        return max((launcher.grace_seconds for launcher in self.launchers), default=0.0)

    def launcher(self, kind: str) -> "Launcher":
        """The launcher of this kind, even if no step of this run uses it.

        Raises:
            TemperError: there is none.
        """
        for launcher in self.launchers:
            if launcher.kind == kind:
                return launcher
        if self._open is None:
            raise TemperError(f"there is no launcher {kind}")
        return self._open(kind)


def require_processes(step: Step, resources: Resources) -> None:
    """Refuse a step that cannot run in as many processes as it requests. A class of its arguments
    that declares a method ``require_processes`` is asked; the method raises ValueError.

    Raises:
        TemperError: the message says what the step requests, and what forbids it.
    """
    count = resources.num_nodes * resources.num_processes
    for value in step.arguments.values():
        if not hasattr(type(value), "require_processes"):
            continue
        try:
            value.require_processes(count)
        except ValueError as error:
            where = f"{step.name} would run in {count} processes ({resources})"
            raise TemperError(f"{where}: {error}") from error


def requests(roots: Iterable[Step], defaults: Mapping[str, Resources]) -> dict[str, Resources]:
    """The resources that every step of the DAG requests, by fingerprint.

    Args:
        defaults: default requests, by step name.

    Raises:
        TemperError: two calls of a step with equal arguments request different resources, or a
            default is for a name that is nearly that of a step.
    """
    asked: dict[str, tuple[str, Resources]] = {}
    pending, seen = [*reversed(list(roots))], set[int]()
    while pending:
        step = pending.pop()
        if id(step) in seen:
            continue
        seen.add(id(step))
        pending.extend(reference.step for reference in step.inputs)
        _, before = asked.get(step.fingerprint, ("", NOTHING))
        requested = step.resources.requested
        if any(requested.get(name, value) != value for name, value in before.requested.items()):
            raise TemperError(
                f"{step.name} asks for {before} in one place and for {step.resources} in another; "
                "calls with equal arguments are one step: ask once"
            )
        asked[step.fingerprint] = step.name, step.resources.over(before)
    _refuse_misspelt(defaults, {name for name, _ in asked.values()})
    return {
        fingerprint: _over(name, resources, defaults.get(name, NOTHING))
        for fingerprint, (name, resources) in asked.items()
    }


def _refuse_misspelt(defaults: Iterable[str], steps: Collection[str]) -> None:
    """Refuse a default for nearly a step of this experiment; one for a step of others is usual."""
    for name in defaults:
        if name not in steps and (similar := did_you_mean(name, steps, 0.85)):
            raise TemperError(f"launcher.steps.{name}: no step is {name}{similar}")


def _over(step: str, asked: Resources, defaults: Resources) -> Resources:
    try:
        return asked.over(defaults)
    except TemperError as error:
        raise TemperError(
            f"{step} asks for {asked}, and launcher.steps.{step} for {defaults}: {error}"
        ) from error
