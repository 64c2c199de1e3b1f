"""Compares two runs: the settings, data and code of each step, and the results.

A step of one run is paired with the step of the other run that is the same result; or else has the
same name, and the same position if both runs have equally many steps of that name. A step that
differs only because its inputs differ is left out, since the steps above it are listed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.cli.differences.compare import Comparison, Difference, compare
from pipeline.dag.canonical import Json
from pipeline.show.metrics import comparable_metrics, is_interval, is_number
from pipeline.show.report.report_model import ReportedStep, Story, story_of_runs
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.runs import Run


@dataclass(frozen=True)
class ChangedStep:
    """A step that differs between two runs by more than its inputs.

    Attributes:
        command: the command that prints all differences.
    """

    name: str
    compared: Comparison
    command: str

    @property
    def data(self) -> list[Difference]:
        """Source files whose content differs."""
        return [d for d in self.compared.settings if d.name.endswith("content")]

    @property
    def settings(self) -> list[Difference]:
        return [d for d in self.compared.settings if not d.name.endswith("content")]


@dataclass(frozen=True)
class Effect:
    """A metric of one result in both runs; ``change`` is the difference, if both are numbers."""

    result: str
    metric: str
    old: Any
    new: Any

    @property
    def change(self) -> float | None:
        old, new = (v["value"] if is_interval(v) else v for v in (self.old, self.new))
        return new - old if is_number(old) and is_number(new) else None


@dataclass(frozen=True)
class RunDiff:
    """
    Attributes:
        only_old, only_new: names of steps that only the first or only the second run has, or made.
        neither: names of steps that differ and that neither run made, so nothing says in what.
    """

    old: Run
    new: Run
    steps: Sequence[ChangedStep]
    only_old: Sequence[str]
    only_new: Sequence[str]
    neither: Sequence[str]
    effects: Sequence[Effect]
    same_results: int


def diff_runs(catalog: Catalog, old: Run, new: Run) -> RunDiff:
    """Compare two runs.

    Raises:
        TemperError: the store cannot be read.
    """
    stories = [story_of_runs([run], catalog, look=None) for run in (old, new)]
    pairs, only_old, only_new = _paired(*stories)
    only_old += [one.name for one, two in pairs if one.manifest and not two.manifest]
    only_new += [two.name for one, two in pairs if two.manifest and not one.manifest]
    unmade = [(one, two) for one, two in pairs if not (one.manifest or two.manifest)]
    neither = [two.name for one, two in unmade if one.id != two.id]
    changed = [
        ChangedStep(two.name, compared, f"temper diff {one.manifest.name} {two.manifest.name}")
        for one, two in pairs
        if one.manifest and two.manifest and one.manifest.key != two.manifest.key
        for compared in [compare(one.manifest, two.manifest)]
        if compared.settings or compared.code
    ]
    named = [
        (name, reported, stories[1].results[name])
        for name, reported in stories[0].results.items()
        if name in stories[1].results
    ]
    effects = [e for name, one, two in named for e in _effects(name, one.manifest, two.manifest)]
    same = sum(one.id == two.id for _, one, two in named if two.manifest)
    return RunDiff(old, new, changed, only_old, only_new, neither, effects, same)


def _paired(
    old: Story, new: Story
) -> tuple[list[tuple[ReportedStep, ReportedStep]], list[str], list[str]]:
    pairs: dict[str, ReportedStep] = {}  # id of an old step: its partner in the new run
    taken: set[str] = set()

    def pair(one: ReportedStep, two: ReportedStep) -> None:
        if one.id not in pairs and two.id not in taken and one.step == two.step:
            pairs[one.id] = two
            taken.add(two.id)

    present = {reported.id: reported for reported in new.steps}
    for reported in old.steps:
        if reported.id in present:
            pair(reported, present[reported.id])
    for name, reported in old.results.items():
        if name in new.results:
            pair(reported, new.results[name])
    ours = _by_step([reported for reported in old.steps if reported.id not in pairs])
    left = _by_step([reported for reported in new.steps if reported.id not in taken])
    for step, ones in ours.items():
        others = left.get(step, [])
        for one, two in zip(ones, others, strict=True) if len(ones) == len(others) else ():
            pair(one, two)
    return (
        [(reported, pairs[reported.id]) for reported in old.steps if reported.id in pairs],
        [reported.name for reported in old.steps if reported.id not in pairs],
        [reported.name for reported in new.steps if reported.id not in taken],
    )


def _by_step(steps: Sequence[ReportedStep]) -> Mapping[str, list[ReportedStep]]:
    groups: dict[str, list[ReportedStep]] = {}
    for reported in steps:
        groups.setdefault(reported.step, []).append(reported)
    return groups


def _effects(name: str, old: Manifest | None, new: Manifest | None) -> list[Effect]:
    """The metrics of a result that differ between two runs."""
    if old is None or new is None:
        return []
    metrics: dict[str, tuple[Json, Json]] = {
        metric: (old.metrics.get(metric), new.metrics.get(metric))
        for metric in comparable_metrics([old, new])
    }
    return [Effect(name, metric, *both) for metric, both in metrics.items() if both[0] != both[1]]
