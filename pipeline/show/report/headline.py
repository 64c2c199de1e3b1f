"""The headline: one sentence that states what changed, by how much, and whether it is significant.

The headline states the first change that the kind of a result declares
(:class:`pipeline.show.views.Measures`), with the test that the step computed. A metric that has
not moved in any result, as one that was perfect before, is skipped and named below the headline, as
are further changes of the same result. If several results have this change, the headline names the
best one and multiplies its p-value by the number of results (Bonferroni), since the best of many is
more likely to look good by chance. If no step computed a test, the headline compares the confidence
intervals of two results; and without these it states how training moved the loss or the reward.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.text import counted
from pipeline.show.metrics import SIGNIFICANT, has_width, is_interval, is_number
from pipeline.show.report.report_model import ReportedStep, Story, story_of_results
from pipeline.show.report.scoreboard import Cell, measures_of
from pipeline.show.report.wording import number, probability, rough, signed
from pipeline.show.views import Measure
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

MOST_ALSO = 4
"""The most other numbers of a training run below its headline."""


@dataclass(frozen=True)
class Headline:
    """
    Attributes:
        tone: ``good``, ``bad``, ``changed``, or empty if the change is not significant.
        also: other changes of the same result, each tested on its own.
        title: what the sentence is about, in short.
        value: its number: after the change, or that of the change if it is all that is known.
    """

    sentence: str
    tone: str
    also: Sequence[str] = ()
    title: str = ""
    value: float | None = None


@dataclass(frozen=True)
class _Change:
    """A tested change of a result against its baseline."""

    result: str
    reported: ReportedStep
    measure: Measure
    interval: Mapping[str, float]
    p: float

    @property
    def value(self) -> float:
        return self.interval["value"]


def outcome(results: Mapping[str, Manifest], catalog: Catalog) -> Headline | None:
    """The headline of results alone, as at the end of a run."""
    return headline(story_of_results(results, catalog))


def headline(story: Story) -> Headline | None:
    """The headline of a story; ``None`` if no two results can be compared.

    An artifact with several names counts once.
    """
    once = {reported.id: (name, reported) for name, reported in reversed([*story.results.items()])}
    changes = [
        change for name, reported in reversed(once.values()) for change in _changes(name, reported)
    ]
    if not changes:
        return _of_intervals(story) or _of_training(story)
    first = next((c for c in changes if c.value), changes[0]).measure.metric
    rivals = [change for change in changes if change.measure.metric == first]
    best = max(rivals, key=lambda change: change.value * (change.measure.better or 1))
    others = [c for c in changes if c.result == best.result and c is not best]
    tone = Cell(best.value, p=_corrected(best, rivals), better=best.measure.better).tone
    after = _after(best)
    value = after["value"] if is_interval(after) else best.value
    said, also = _sentence(best, rivals, story), list(_in_short(others))
    return Headline(said, tone, also, best.measure.title, value)


def _changes(result: str, reported: ReportedStep) -> Iterator[_Change]:
    metrics = reported.manifest.metrics if reported.manifest else {}
    for measure in measures_of(reported).measures:
        interval, p = metrics.get(measure.metric), metrics.get(measure.p)
        if measure.p and is_interval(interval) and is_number(p):
            yield _Change(result, reported, measure, interval, p)


def _corrected(best: _Change, rivals: Sequence[_Change]) -> float:
    return min(1.0, best.p * len(rivals))


def _sentence(best: _Change, rivals: Sequence[_Change], story: Story) -> str:
    baseline = _baseline(best.reported, story)
    against = f" against {baseline}" if baseline else ""
    p = _corrected(best, rivals)
    verdict = "significant" if p < SIGNIFICANT else "not significant"
    ends = f"95 % interval {rough(best.interval['low'])} to {rough(best.interval['high'])}"
    corrected = f" after correction for {len(rivals)} results" if len(rivals) > 1 else ""
    equals = [c.result for c in rivals if c is not best and c.value == best.value]
    opening = f"{best.result}{_tied(equals)}{against}"
    if len(rivals) > 1:
        opening = f"Best of {len(rivals)}, {opening}"
    return (
        f"{opening}: {best.measure.title} {_movement(best)}, {ends}; "
        f"{verdict}{corrected} ({probability(p)})."
    )


def _tied(equals: Sequence[str]) -> str:
    """Which other results are as good as the named one."""
    if not equals:
        return ""
    return f" (tied with {equals[0] if len(equals) == 1 else f'{len(equals)} others'})"


def _movement(change: _Change) -> str:
    after = _after(change)
    if change.value == 0:
        return f"did not change{_still(change)}"
    if is_interval(after):
        before = number(after["value"] - change.value)
        return f"went from {before} to {number(after['value'])} ({signed(change.value)})"
    return f"went {'up' if change.value > 0 else 'down'} by {rough(abs(change.value))}"


def _after(change: _Change) -> Any:
    made = change.reported.manifest
    return made.metrics.get(change.measure.change_of) if made else None


def _still(change: _Change) -> str:
    return f" ({number(after['value'])})" if is_interval(after := _after(change)) else ""


def _in_short(changes: Sequence[_Change]) -> Iterator[str]:
    """A line for each change, and one line that lists all measures without a change."""
    for change in changes:
        if change.value:
            verdict = "significant" if change.p < SIGNIFICANT else "may be chance"
            p = probability(change.p)
            yield f"{change.measure.title} {signed(change.value)} ({verdict}, {p})"
    if same := [f"{c.measure.title}{_still(c)}" for c in changes if not c.value]:
        yield f"no change: {', '.join(same)}"


def _baseline(reported: ReportedStep, story: Story) -> str:
    """The name of the baseline of a result; empty if it has none."""
    id = reported.given.get(measures_of(reported).baseline, "")
    names = [name for name, other in story.results.items() if other.id == id]
    steps = [other.name for other in story.steps if other.id == id]
    return (*names, *steps, "")[0]


def _of_intervals(story: Story) -> Headline | None:
    """Compares the first result with the best other one by a metric without a test."""
    measures = (m for reported in story.results.values() for m in measures_of(reported).measures)
    for measure in measures:
        known = {
            name: value
            for name, reported in story.results.items()
            if reported.manifest
            and is_interval(value := reported.manifest.metrics.get(measure.metric))
            and has_width(value)
        }
        if measure.better and len(known) > 1:
            return _by_intervals(measure, known)
    return None


LEARNT = {"reward": "reward", "eval_loss": "held-out loss", "loss": "loss of training"}
"""What training moves, by the name in its log: the first that it has is its headline."""


def _of_training(story: Story) -> Headline | None:
    """How a training run moved what it learns from, from its first to its last step."""
    for name, reported in story.results.items():
        metrics: Mapping[str, Any] = reported.manifest.metrics if reported.manifest else {}
        first, final = (metrics.get(when) for when in ("first", "final"))
        if not isinstance(first, Mapping) or not isinstance(final, Mapping):
            continue
        moved = [n for n in first if is_number(first[n]) and is_number(final.get(n))]
        if lead := next((n for n in LEARNT if n in moved), None):
            steps = metrics.get("steps") or metrics.get("iterations")
            during = f" in {counted(steps, 'step')}" if isinstance(steps, int) else ""
            told = {n: f"from {number(first[n])} to {number(final[n])}" for n in moved}
            also = [
                f"{LEARNT.get(n, n)} {told[n]}" for n in moved if n != lead and first[n] != final[n]
            ]
            sentence = f"{name}: {LEARNT[lead]} went {told[lead]}{during}."
            return Headline(sentence, "", also[:MOST_ALSO], LEARNT[lead], final[lead])
    return None


def _by_intervals(measure: Measure, known: Mapping[str, Mapping[str, float]]) -> Headline:
    (first, before), *others = known.items()
    best, after = max(others, key=lambda result: result[1]["value"] * measure.better)
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    change = after["value"] - before["value"]
    equals = [name for name, value in others if name != best and value["value"] == after["value"]]
    which = f", the best of {len(others)}" if len(others) > 1 else ""
    relation = "do not overlap" if apart else "overlap, so it may be chance"
    sentence = (
        f"{best}{_tied(equals)}{which}, against {first}: {measure.title} went from "
        f"{number(before['value'])} to {number(after['value'])} ({signed(change)}); "
        f"the 95 % intervals {relation}."
    )
    tone = Cell(change, p=0.0 if apart else 1.0, better=measure.better).tone
    return Headline(sentence, tone, (), measure.title, after["value"])
