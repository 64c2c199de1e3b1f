"""A search for the best settings, as a user sees it: what runs, what stops, what a kill costs."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from drivers import Driver

pytest.importorskip("optuna")

from optuna.pruners import PercentilePruner
from places import REPOSITORY, SUPPORT_PATH
from rich.console import Console
from tuning_steps import Config, Fit, experiment, numbers_of

import pipeline.tuning.driver
from pipeline import File, Step, Store, TemperError, run, tune
from pipeline.plan.planning import make_plan
from pipeline.store.catalog import Catalog
from pipeline.tuning.summary import Tuned

pytestmark = pytest.mark.usefixtures("workers_here")

GRID = {"fit.rate": [0.1, 0.3], "fit.beta": [1.0, 2.0]}
WIDE = {"fit.rate": [0.1, 0.2, 0.3, 0.4], "fit.beta": [1.0, 2.0, 3.0]}
BEST = {"fit.rate": 0.3, "fit.beta": 2.0}
HALVED: dict[str, Any] = {"stop_on": "fit.eval_loss", "rungs": [2, 4]}


def tuned(store: Store, journal: str, console: Console, **options: Any) -> Tuned:
    chosen: dict[str, Any] = {"space": GRID, "sampler": "grid", "trials": 12} | options
    metric = chosen.pop("metric", "after.quality")
    return tune(experiment, Config(journal), metric=metric, store=store, console=console, **chosen)


def steps_done(journal: str) -> Counter[str]:
    """How many updates each trial has made."""
    lines = Path(journal).read_text().splitlines()
    return Counter(line.rpartition(" step ")[0] for line in lines if " step " in line)


def outcome(tuned: Tuned) -> list[Any]:
    return [(t.number, t.settings, t.state, t.held_out, t.value) for t in tuned.trials]


def test_the_best_of_a_grid_is_found_and_what_trials_share_is_made_once(
    store: Store, journal: str, console: Console
) -> None:
    found = tuned(store, journal, console)
    assert found.best.settings == BEST
    assert found.best.value == pytest.approx(-1 / 8)
    assert [trial.state for trial in found.trials] == ["done"] * 4
    assert Path(journal).read_text().count("corpus") == 1
    assert set(steps_done(journal).values()) == {8}


def test_trials_that_are_not_among_the_best_are_stopped_and_the_best_is_found_all_the_same(
    store: Store, journal: str, console: Console
) -> None:
    found = tuned(store, journal, console, space=WIDE, **HALVED)
    assert found.best.settings == BEST
    assert found.best.value == pytest.approx(-1 / 8)
    states = Counter(trial.state for trial in found.trials)
    assert states == {"stopped": 8, "done": 4}
    # a step leaves after the update in which it learns that it is to pause
    done = Counter(steps_done(journal).values())
    assert (done[3] + done[5], done[8]) == (8, 4)


def test_a_pruner_of_optuna_sees_values_by_updates_and_with_the_sign_of_the_goal(
    store: Store, journal: str, console: Console
) -> None:
    """The goal rises and the loss, by which it stops trials, falls."""
    pruner = PercentilePruner(1.0, n_startup_trials=1, n_warmup_steps=3)
    options = {**HALVED, "rungs": [2, 6], "pruner": pruner, "batch": 1}
    found = tuned(store, journal, console, **options)
    assert found.best.settings == BEST
    assert {trial.state for trial in found.trials} == {"done", "stopped"}
    stopped = [trial for trial in found.trials if trial.state == "stopped"]
    assert [[*trial.held_out] for trial in stopped] == [[2, 6]] * len(stopped)
    assert [trial.state.name for trial in found.study.trials].count("PRUNED") == len(stopped)


def test_a_trial_that_was_stopped_is_no_artifact_and_goes_on_at_its_own_place(
    store: Store, journal: str, console: Console
) -> None:
    found = tuned(store, journal, console, **HALVED)
    stopped = next(trial for trial in found.trials if trial.state == "stopped")
    config = Config(journal, Fit(stopped.settings["fit.rate"], stopped.settings["fit.beta"]))
    name = f"rate={config.fit.rate:g} beta={config.fit.beta:g}"
    done = steps_done(journal)[name]
    plan = make_plan(experiment(config), store)
    (training,) = [
        p for p in plan.steps if p.step.name == "fit" and p.step.arguments["config"] == config.fit
    ]
    assert training.manifest is None
    assert "goes on from its scratch" in training.reason
    made = run(experiment(config), store, console=console)["after"]
    assert steps_done(journal)[name] == 8
    assert done < 8
    assert made.metrics["quality"]["value"] == pytest.approx(
        -((config.fit.rate - 0.3) ** 2 + (config.fit.beta - 2) ** 2 + 1 / 8)
    )


def test_what_is_cached_changes_what_a_study_costs_and_not_what_it_finds(
    store: Store, journal: str, console: Console, tmp_path: Path
) -> None:
    tuned(store, journal, console)  # every trial to its end
    before = Path(journal).read_text()
    again = tuned(store, journal, console, **HALVED)
    assert Path(journal).read_text() == before
    fresh = tuned(Store(str(tmp_path / "other")), f"{journal}-other", console, **HALVED)
    assert outcome(again) == outcome(fresh)


def test_a_trial_that_fails_is_one_trial_less(store: Store, journal: str, console: Console) -> None:
    space = {"fit.method": ["plain", "explode"]}
    found = tuned(store, journal, console, space=space, stop_on="fit.eval_loss", rungs=[2])
    assert [trial.state for trial in found.trials] == ["done", "failed"]
    assert "the loss is not finite" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(TemperError, match=r"every trial failed \(1\)"):
        tuned(store, journal, console, space={"fit.method": ["explode"]})


@pytest.mark.parametrize("more", [{}, {"stop_on": "fit.eval_loss", "rungs": [2]}])
def test_a_trial_without_the_metric_that_others_have_is_one_trial_less(
    store: Store, journal: str, console: Console, more: dict[str, Any]
) -> None:
    space = {"fit.method": ["plain", "silent"]}
    found = tuned(store, journal, console, space=space, **more)
    assert [trial.state for trial in found.trials] == ["done", "failed"]
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "trial #1 (method=silent) fails: --" in shown
    assert more or "no number of this name; quality is None" in shown


def test_all_trials_of_a_study_have_the_same_files(
    store: Store, journal: str, console: Console, tmp_path: Path
) -> None:
    """One that is edited meanwhile fails the trials after it, which could not be compared."""
    rows = tmp_path / "rows.txt"
    rows.write_text("1 2 3")

    def counted(config: Config) -> dict[str, Step]:
        if config.fit.beta == 2:
            rows.write_text("1 2 3 4")
        return {"numbers": numbers_of(File(str(rows)), config.fit.beta)}

    found = tune(counted, Config(journal), {"fit.beta": [1.0, 2.0]}, "numbers.count",
                 trials=2, sampler="grid", batch=1, store=store, console=console)  # fmt: skip
    assert [trial.state for trial in found.trials] == ["done", "failed"]
    assert "rows.txt" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_study_ends_with_a_table_and_a_run_on_record(
    store: Store, journal: str, console: Console
) -> None:
    found = tuned(store, journal, console, space={"fit.beta": [1.0, 2.0]})
    console.print(found)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "after.quality, more is better" in shown
    assert "best: fit.beta=2  quality -0.165" in shown
    assert [*found.made] == ["beta=1", "beta=2"]
    assert found.made["beta=2"].metrics["loss"] == pytest.approx(0.165)
    names = [manifest.step for manifest in Catalog(store).history("score")]
    assert len(names) == 2


def test_a_study_that_is_interrupted_shows_the_trials_that_are_done(
    store: Store, journal: str, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a batch too, of which no other has ended."""
    rest = [pipeline.tuning.driver.advance]

    def interrupted(roots: Any, *others: Any) -> Any:
        first = dict([*roots.items()][:1])
        rest.pop()(first, *others)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.tuning.driver, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tuned(store, journal, console, jobs=4)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "best: fit.rate=0.1 fit.beta=1  quality -1.165" in said
    assert "1 of 4 trials are done; the same command goes on" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": {"fit.bta": [1.0]}}, "has no field 'fit.bta'; did you mean fit.beta"),
        ({"metric": "afterwards.quality"}, "did you mean after"),
        ({"metric": "after.qualty"}, "after has no number of this name; did you mean quality"),
        ({"stop_on": "fit.eval_los", "rungs": [2]}, "fit has logged no such value; did you mean"),
        ({"stop_on": "fits.eval_loss", "rungs": [2]}, "--stop-on fits.eval_loss: .* mean fit"),
        ({"space": {"fit": [Fit()], "fit.beta": [1.0]}}, "fit.beta lies within fit"),
        ({"space": ["fit.beta"]}, "the space is a list; give a dict"),
        ({"jobs": 0}, "jobs=0: at least one step"),
        ({"sinks": ["wand"]}, "there is no sink 'wand'"),
    ],
)
def test_a_mistake_is_told_by_name(
    store: Store, journal: str, console: Console, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TemperError, match=message):
        tuned(store, journal, console, **{"space": {"fit.beta": [2.0]}, **options})


GRID_OF_A_STUDY: dict[str, Any] = {"trials": 4, **HALVED}
DRIVER = """
import json, os, sys
from pathlib import Path
from rich.console import Console
from tuning_steps import Config, experiment

journal, store, workers, space, options = sys.argv[1:]
if __name__ == "__main__":
    if workers == "here":
        import pytest
        from workers_here import instead_of_processes
        instead_of_processes(pytest.MonkeyPatch())
    from pipeline import Store, tune
    Path(journal + ".driver").write_text(str(os.getpid()))
    tune(experiment, Config(journal), json.loads(space), "after.quality", sampler="grid",
         store=Store(store), **json.loads(options))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "workers"),
    [
        pytest.param("0.1 2 1", "here", marks=pytest.mark.attack),
        pytest.param("0.3 1 2", "here", marks=pytest.mark.attack),
        ("0.3 2 3", "processes"),
        pytest.param("0.1 2 4", "here", marks=pytest.mark.attack),
        pytest.param("0.3 2 7", "here", marks=pytest.mark.attack),
    ],
    ids=["before a rung", "at a rung", "as it leaves", "at the second rung", "near its end"],
)
def test_a_killed_study_goes_on_and_no_update_is_made_twice(
    tmp_path: Path, store: Store, journal: str, console: Console, moment: str, workers: str
) -> None:
    """Where workers are no processes, they end with their driver, at the same moment."""
    Path(f"{journal}.kill").write_text(moment)
    (script := tmp_path / "study.py").write_text(DRIVER)
    killed = Driver(
        [str(script), journal, store.root, workers, json.dumps(GRID), json.dumps(GRID_OF_A_STUDY)],
        Path.cwd(),
        {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), SUPPORT_PATH))},
    )
    printed = killed.communicate()
    assert killed.returncode == -9, printed
    gone_on = tuned(store, journal, console, **GRID_OF_A_STUDY)
    lines = Path(journal).read_text().splitlines()
    assert len(lines) == len({*lines})
    other = Store(str(tmp_path / "undisturbed"))
    undisturbed = tuned(other, f"{journal}-other", console, **GRID_OF_A_STUDY)
    assert outcome(gone_on) == outcome(undisturbed)
    assert len(undisturbed.trials) == 4
