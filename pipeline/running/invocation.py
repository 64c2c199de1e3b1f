"""One invocation of ``run``: its plan, its record, and what it was asked for."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import TemperError
from pipeline.dag.step import Step
from pipeline.observed.discovery import Present
from pipeline.plan.expected import require_expected
from pipeline.plan.planning import Plan, State, make_plan
from pipeline.plan.resolver import Resolver
from pipeline.running.record import RunRecord
from pipeline.store.catalog import Catalog
from pipeline.store.layout import Store

if TYPE_CHECKING:  # imported late: workers import this module too, and need none of these
    from rich.console import Console

    from pipeline.estimate.estimates import Estimates
    from pipeline.launchers.config import LauncherConfig
    from pipeline.show.live import Board


@dataclass(frozen=True)
class RunOptions:
    """How steps are run; see :func:`pipeline.running.session.run`."""

    jobs: int = 1
    launcher: "LauncherConfig | None" = None
    scheduler: str | None = None
    verbosity: int = 0
    again: Callable[[str], str] | None = None
    sinks: Collection[str] = ()
    budget: str | None = None


class Invocation:
    """One invocation: its plan (made again if data turns out to be lost) and its record."""

    def __init__(
        self,
        roots: Mapping[str, Step],
        store: Store,
        console: "Console",
        force: Collection[str],
        expecting: Collection[Step],
        title: str = "",
    ):
        self.roots, self.store, self.console = roots, store, console
        self.expecting = expecting
        self.force = force
        self.record = RunRecord.begin(roots, store, title)
        self.catalog = Catalog(store)
        self._present = Present()  # a run sees one version of discovered dependencies
        self.current: Plan
        self._outcomes: dict[str, dict[str, Any]] = {}

    def plan(self) -> Plan:
        self.current = make_plan(
            self.roots,
            self.store,
            self.force,
            self.catalog,
            self.record.name,
            self.record.experiment,
            self._present,
        )
        forced = (p.step for p in self.current.steps if p.step.fingerprint in self.current.forced)
        # keys may be others in the next plan of the same run
        self.force = [f"{step.name}@{step.fingerprint}" for step in forced]
        return self.current

    def require_expected(self) -> None:
        """Refuse a plan that is not what :meth:`Step.expect` says."""
        if any(step.expected for step in self.expecting):
            require_expected(self.current, self.catalog, self.expecting)

    def missing(self) -> list[Step]:
        """The steps that will run, or may run."""
        return [planned.step for planned in self.current.steps if planned.state is not State.CACHED]

    def estimates(self, options: RunOptions) -> "Estimates | None":
        """The estimated cost of the plan; ``None`` if everything is cached."""
        if self.current.is_complete:
            return None
        from pipeline.running.forecast import estimates_of

        return estimates_of(self.current, self.catalog, options.launcher, options.jobs)

    def resolver(self) -> Resolver:
        return Resolver(
            self.catalog,
            self.current.unusable,
            self.current.forced,
            self.record.name,
            live=True,
            present=self._present,
        )

    def plan_again(self) -> bool:
        """Plan again after failures. True if artifacts were lost or deleted meanwhile."""
        before = self.current
        self.catalog = Catalog(self.store)
        try:
            after = self.plan()
            self.require_expected()
        except TemperError:  # for example a missing part of an input: its step has failed
            return False
        lost = after.unusable.keys() - before.unusable.keys()
        return bool(lost or before.manifests().keys() - after.manifests().keys())

    def lacks_results(self) -> bool:
        """Whether a result is an earlier artifact whose data is gone. If its key was unknown during
        planning, nobody has checked its data yet. In that case this method plans again."""
        resolver = self.resolver()
        made = filter(None, map(resolver.artifact, self.roots.values()))
        if all(manifest.provenance.get("run") == self.record.name for manifest in made):
            return False
        self.catalog = Catalog(self.store)
        return not self.plan().is_complete

    def begin(self) -> None:
        """Write the record of the run at its beginning.

        Raises:
            TemperError: the store cannot be written.
        """
        self.store.record_run(self.record.to_dict("running", self.current, self._outcomes))

    def keep(self, outcome: str, board: "Board | None" = None) -> OSError | None:
        """Write the record of the run so far, and the index for the next run.

        Returns:
            Why the record could not be written, which is no reason to fail; ``None`` if it was.
        """
        for fingerprint, went in (board.outcomes() if board else {}).items():
            if went["state"] != "cached" or fingerprint not in self._outcomes:
                self._outcomes[fingerprint] = went
        fault = None
        try:
            self.store.record_run(self.record.to_dict(outcome, self.current, self._outcomes))
            self.store.forget_steps_of_run(self.record.name)
        except TemperError as error:
            fault = error.__cause__
        self.catalog.save()
        return fault if isinstance(fault, OSError) else None

    def note_alive(self) -> None:
        """Record how long the run has taken until now."""
        self.store.record_step(self.record.name, "driver", {"after": self.record.seconds})

    def note(self, fingerprint: str, board: "Board") -> None:
        """Record the outcome of a step at once, since this process may be killed at any moment."""
        after = {"after": self.record.seconds}
        went = board.outcome(fingerprint) | after
        self.store.record_step(self.record.name, fingerprint, went)
