"""Results of earlier runs as inputs: no copy, the keys of one script, and the true lineage."""

from pathlib import Path

import pytest
from numbers_lab import Lab
from rich.console import Console
from toy_steps import Times, multiply

from pipeline import Artifact, Step, Store, TemperError, plan
from pipeline.plan.planning import State
from pipeline.store.catalog import Catalog
from pipeline.store.names.recorded import named_artifact, recorded
from pipeline.store.names.result_names import find_result
from pipeline.store.names.tags import set_tag
from pipeline.store.runs import experiment_of, names_of_runs, read_run
from steps.kinds import Model
from steps.load_preferences import load_preferences
from steps.sources import PreferenceData, load_rows

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("TEMPER_STORE", store.url)
    lab = Lab(tmp_path, store, console)
    lab.run(numbers=lab.numbers(), again=lab.product(Times(5)))
    return lab


def named(lab: Lab, result: str) -> str:
    return f"{read_run(lab.store, names_of_runs(lab.store)[-1]).experiment}/{result}"


def test_a_result_is_an_input_as_if_its_step_stood_in_the_script(lab: Lab) -> None:
    made = find_result(Catalog(lab.store), name := named(lab, "numbers"))
    set_tag(lab.store, "first", made)
    for asked in (name, "first", f"numbers@{made.key[:10]}", "numbers"):
        given = recorded(asked, Artifact)
        assert isinstance(given, Step)
        # the same key as in one script, so it is cached
        again = multiply(given["train"], Times(5), lab.journal)
        states = {"numbers": State.CACHED, "multiply": State.CACHED}
        assert {one.step.name: one.state for one in plan([again]).steps} == states
    assert lab.run(product=multiply(given["train"], Times(7), lab.journal)) == ["multiply"]
    below = find_result(Catalog(lab.store), named(lab, "product"))
    assert [(entry.step, entry.key) for entry in below.inputs] == [("numbers", made.key)]
    assert len(Catalog(lab.store).history("numbers")) == 1


def test_the_artifact_stays_the_named_one_whatever_became_of_its_sources(lab: Lab) -> None:
    given = recorded(named(lab, "numbers"), Artifact)
    assert isinstance(given, Step)
    lab.source.unlink()
    assert lab.run(product=multiply(given["train"], Times(7), lab.journal)) == ["multiply"]


def test_a_recipe_gives_its_name_to_the_experiment() -> None:
    for command, name in (
        ("/bin/python /bin/temper run dpo --data a.jsonl", "dpo"),
        ("python bin/temper run mine/own.yaml", "own"),
        ("python train.py", "train"),
        ("python -m lab.train lab/train.py", "train"),
        ("python temper list", "interactive"),
    ):
        assert experiment_of(command.split()) == name


def test_names_that_lead_nowhere_are_told(lab: Lab, tmp_path: Path) -> None:
    name = named(lab, "numbers")
    assert named_artifact("owner/name") is None  # perhaps of the Hub
    with pytest.raises(TemperError, match="has no result 'nothing'; it has: numbers, again"):
        recorded(name.replace("numbers", "nothing"), Artifact)
    with pytest.raises(TemperError, match="is a Artifact; a Model is wanted here"):
        recorded(name, Model)
    with pytest.raises(TemperError, match="is a Artifact; a Preferences is wanted here"):
        load_rows(load_preferences, PreferenceData(path=name))
    given = recorded(name, Artifact)
    lab.store.evict(find_result(Catalog(lab.store), name))
    with pytest.raises(TemperError, match="is evicted"):
        recorded(name, Artifact)
    assert isinstance(given, Step)
    with pytest.raises(TemperError, match="is evicted"):
        lab.states(product=multiply(given["train"], Times(9), lab.journal))
