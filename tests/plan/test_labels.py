"""What steps are called on screens, so that a person finds the one that is meant."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import Artifact, File, Output, Step, Store, TemperError, run, step
from pipeline.plan.planning import display_names, make_plan
from pipeline.plan.variants import Node, effective
from pipeline.show.report.report_model import story_of_runs
from pipeline.store.catalog import Catalog
from pipeline.store.runs import names_of_runs, read_run

pytestmark = pytest.mark.usefixtures("workers_here")


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0


@step(version="1")
def mix(out: Output, parts: tuple[Part, ...]) -> dict:
    (out.path / "rows.txt").write_text(" ".join(part.name for part in parts))
    return {}


@step(version="1")
def learn(out: Output, rows: Artifact, base: Artifact | None = None) -> dict:
    return {}


@step(version="1")
def judge(out: Output, model: Artifact, baseline: Artifact | None = None) -> dict:
    return {}


def called(roots: dict[str, Step], store: Store) -> list[str]:
    """What the plan calls each step."""
    return list(display_names(make_plan(roots, store)).values())


@step(version="1")
def load(out: Output, rows: File) -> dict:
    return {}


SOURCES = ("a", "b", "c")


def chain(names: tuple[str, ...]) -> Step:
    """What one variant of an ablation is made of, up to the model."""
    return learn(mix(tuple(map(Part, names))))


def without(source: str) -> tuple[str, ...]:
    return tuple(name for name in SOURCES if name != source)


def test_a_name_is_no_part_of_the_key() -> None:
    plain = chain(SOURCES)
    named = plain.named("everything")
    assert named.fingerprint == plain.fingerprint
    assert judge(named).fingerprint == judge(plain).fingerprint
    assert (plain.label, named.label) == ("", "everything")
    assert named.on(cpus=1).label == "everything"
    assert repr(named) == f"<Step learn (everything) {plain.fingerprint[:8]}>"


@pytest.mark.parametrize("name", ["", " ", "two\nlines", 3])
def test_a_name_is_a_text_on_one_line(name: str) -> None:
    with pytest.raises(TemperError, match=r"learn\.named: .* is no name; give a text on one line"):
        chain(SOURCES).named(name)


def test_every_step_of_an_ablation_is_called_by_the_result_it_is_for(store: Store) -> None:
    roots = {"all": judge(chain(SOURCES))}
    roots |= {f"no {s}": judge(chain(without(s)), chain(SOURCES)) for s in SOURCES}
    names = called(roots, store)
    for source in SOURCES:
        for name in ("mix", "learn", "judge"):
            assert f"{name} (no {source})" in names
    assert len(names) == 12
    assert len({*names}) == 12


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["easy.jsonl", "hard.jsonl"], ["easy.jsonl", "hard.jsonl"]),
        (["easy/a.jsonl", "hard/a.jsonl", "b.jsonl"], ["a.jsonl #1", "a.jsonl #2", "b.jsonl"]),
        (["easy", "hard/"], ["easy", "hard"]),  # folders
    ],
)
def test_what_read_different_files_is_called_by_their_names(
    files: list[str], names: list[str], tmp_path: Path, store: Store
) -> None:
    for name in files:
        path = tmp_path / name
        rows = path if "." in path.name else path / "rows.jsonl"
        rows.parent.mkdir(exist_ok=True)
        rows.write_text(f"of {name}")
    roots = {name: learn(load(File(f"{tmp_path}/{name}"))) for name in files}
    roots["all"] = learn(mix(()), base=load(File(f"{tmp_path}/{files[0]}")))  # not of one result
    shown = [n for n in called(roots, store) if n.startswith("load")]
    assert shown == [f"load (rows={name})" for name in names]


def test_results_in_a_list_are_called_as_they_were_named(store: Store, console: Console) -> None:
    models = [chain(without(s)).named(f"no {s}") for s in SOURCES]
    assert [*run(models, store, console=console)] == ["no a", "no b", "no c"]
    assert [*run([judge(model) for model in models], store, console=console)] == [
        "judge no a", "judge no b", "judge no c",
    ]  # fmt: skip
    (_, newest) = names_of_runs(store)
    labels = [s.get("label") for s in read_run(store, newest).steps if s["step"] == "mix"]
    assert labels == ["no a", "no b", "no c"]
    catalog = Catalog(store)
    assert len(catalog.history("learn")) == 3  # a name has made nothing anew
    told = story_of_runs([read_run(store, newest)], catalog, look=None)
    assert [s.name for s in told.steps if s.step == "mix"] == [f"mix (no {s})" for s in SOURCES]


def test_no_result_is_lost_to_a_name_that_two_share(store: Store, console: Console) -> None:
    model = chain(SOURCES)
    roots = [model.named("judge"), judge(model), judge(model, model).named("judge")]
    for some in (roots, roots[:2]):
        made = run(some, store, console=console)
        assert len(made) == len(some)
        assert len({result.key for result in made.values()}) == len(some)


def trained_with(*losses: tuple[str, str, float]) -> dict[str, Node]:
    """Evaluations of models that several kinds of training made, each with its loss."""
    nodes = {}
    for number, (trainer, kind, beta) in enumerate(losses):
        settings = {"loss type": kind, "loss.beta": beta}
        nodes[f"model {number}"] = Node(trainer, settings, {})
        nodes[f"{number}"] = Node("evaluate", settings, {"model": f"model {number}"})
    nodes["before"] = Node("evaluate", {}, {})
    return nodes


def test_losses_of_different_kinds_of_training_are_one_setting() -> None:
    """Their betas are no setting of their own: each loss has one."""
    swept = trained_with(("dpo", "Dpo", 0.1), ("dpo", "Ipo", 0.2), ("free", "Simpo", 2.0))
    swept |= {f"free {n}": node for n, node in trained_with(("free", "Cpo", 0.1)).items()}
    swept["free 0"] = replace(swept["free 0"], inputs={"model": "free model 0"})
    told = effective(swept, ["0", "1", "2", "free 0", "before"])
    assert told == {"loss": {"0": "Dpo", "1": "Ipo", "2": "Simpo", "free 0": "Cpo"}}
