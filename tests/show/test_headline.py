"""The headline and the tables of a report: what changed, and whether that may be chance."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_steps import judge, measure, prepare
from rich.console import Console

from pipeline import Step, Store, run
from pipeline.cli.reports import Looks, story_of
from pipeline.show.report.headline import Headline, headline
from pipeline.show.report.page import render
from pipeline.show.report.report_model import ReportedStep, Story
from pipeline.store.catalog import Catalog
from pipeline.store.runs import read_runs

pytestmark = pytest.mark.usefixtures("workers_here")


def story(store: Store, results: Mapping[str, Step], console: Console) -> Story:
    """What the newest run tells."""
    run(dict(results), store, console=console)
    newest = read_runs(store)[-1:]
    return story_of(newest, Catalog(store), Looks(newest))


def said(store: Store, results: Mapping[str, Step], console: Console) -> Headline:
    found = headline(story(store, results, console))
    assert found is not None
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_a_tested_gain_is_the_headline_with_its_size_and_its_p(
    store: Store, console: Console
) -> None:
    before = judge(40)
    found = said(store, {"SFT": before, "DPO": judge(60, 20, 0.004, baseline=before)}, console)
    assert found.sentence == (
        "DPO against SFT: share right went from 0.4 to 0.6 (+0.2), 95 % interval 0.1 to 0.3; "
        "significant (p = 0.004)."
    )
    assert found.tone == "good"
    assert found.also == ["no change: words"]


def test_a_metric_that_has_not_moved_does_not_lead(store: Store, console: Console) -> None:
    before = judge(60)
    found = said(store, {"SFT": before, "DPO": judge(60, 0, 1.0, baseline=before)}, console)
    assert "share right did not change (0.6)" in found.sentence  # nothing has moved at all
    told = story(store, {"SFT": before, "DPO": judge(60, 0, 1.0, baseline=before)}, console)
    made = told.results["DPO"].manifest
    assert made
    words = {"value": 2.0, "low": 1.0, "high": 3.0}
    moved = replace(made, metrics={**made.metrics, "gain/words": words, "gain/words/p": 0.001})
    results = {**told.results, "DPO": replace(told.results["DPO"], manifest=moved)}
    lead = headline(replace(told, results=results))
    assert lead
    assert "words went up by 2" in lead.sentence
    assert lead.also == ["no change: share right (0.6)"]


@pytest.mark.parametrize(
    ("first", "final", "told"),
    [
        ({"loss": 2.0}, {"loss": 1.5}, "SFT: loss of training went from 2 to 1.5 in 9 steps."),
        ({"loss": 2.0, "reward": 0.1}, {"loss": 1.0, "reward": 0.7}, "reward went from 0.1 to 0.7"),
        ({"loss": 2.0, "eval_loss": 3.0}, {"loss": 1.0, "eval_loss": 2.5}, "held-out loss went"),
    ],
)
def test_training_alone_states_how_far_it_came(
    first: Mapping[str, float],
    final: Mapping[str, float],
    told: str,
    store: Store,
    console: Console,
) -> None:
    known = story(store, {"SFT": judge(40)}, console)
    made = known.results["SFT"].manifest
    assert made
    metrics = {"steps": 9, "first": first, "final": final}
    results = {"SFT": replace(known.results["SFT"], manifest=replace(made, metrics=metrics))}
    found = headline(replace(known, results=results))
    assert found
    assert told in found.sentence


def test_the_best_of_several_has_a_p_that_counts_them(store: Store, console: Console) -> None:
    before = judge(40)
    tried = {f"beta {n}": judge(40 + n, n, 0.03, baseline=before) for n in (5, 20, 10)}
    again = {"the same as beta 10": tried["beta 10"]}
    found = said(store, {"SFT": before, **tried, **again}, console)
    assert found.sentence.startswith("Best of 3, beta 20 against SFT: ")
    assert "not significant after correction for 3 results (p = 0.09)" in found.sentence
    assert found.tone == ""


def test_results_as_good_as_the_best_are_counted(store: Store, console: Console) -> None:
    before = judge(40)
    tried: dict[str, Any] = {
        name: judge(60, 20, 0.004, answer=name, baseline=before) for name in ("DPO", "IPO")
    }
    found = said(store, {"SFT": before, **tried}, console)
    assert found.sentence.startswith("Best of 2, DPO (tied with IPO) against SFT: ")
    untested = {name: judge(60, answer=name) for name in ("DPO", "IPO", "KTO")}
    found = said(store, {"SFT": before, **untested}, console)
    assert found.sentence.startswith("DPO (tied with 2 others), the best of 3, against SFT: ")


@pytest.mark.parametrize(
    ("right", "ending", "tone"),
    [(80, "intervals do not overlap.", "good"), (45, "overlap, so it may be chance.", "")],
)
def test_without_a_test_intervals_are_compared(
    store: Store, console: Console, right: int, ending: str, tone: str
) -> None:
    found = said(store, {"SFT": judge(40), "DPO": judge(right), "control": judge(38)}, console)
    assert found.sentence.startswith("DPO, the best of 2, against SFT: share right went from 0.4")
    assert found.sentence.endswith(ending)
    assert found.tone == tone


def test_intervals_of_one_observation_are_no_evidence(store: Store, console: Console) -> None:
    told = story(store, {"SFT": judge(40), "DPO": judge(80)}, console)

    def of_one(reported: ReportedStep) -> ReportedStep:
        assert reported.manifest
        value = reported.manifest.metrics["right"]["value"]
        metrics = {"right": {"value": value, "low": value, "high": value}}
        return replace(reported, manifest=replace(reported.manifest, metrics=metrics))

    results = {name: of_one(reported) for name, reported in told.results.items()}
    assert headline(replace(told, results=results)) is None


def test_what_a_result_was_in_other_runs_is_told_with_what_differed(
    store: Store, console: Console
) -> None:
    betas = (0.1, 0.5, 0.5)
    *_, told = [story(store, {"swept": measure(prepare(), beta=b)}, console) for b in betas]
    (past,) = told.past
    assert (past.result, len(past.by_run)) == ("swept", 2)
    assert list(past.settings) == ["beta"]
    assert list(past.settings["beta"].values()) == [0.1, 0.5]
    page = render(told)
    assert "swept</bdi>: 2 versions" in page
