"""Names apart from places: what moving and renaming does to keys, and what the plan says of it."""

import enum
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from numbers_lab import Lab
from places import SUPPORT
from toy_steps import Times, add, multiply, slow_count

from pipeline import Output, Step, TemperError, step
from pipeline.cli.differences.compare import compare
from pipeline.cli.maintenance.garbage import Kind, Policy, find_garbage
from pipeline.dag.canonical import Json
from pipeline.dag.step import StepFunction
from pipeline.plan.planning import State, make_plan
from pipeline.plan.rerun_reasons import History
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.runs import names_of_runs

pytestmark = pytest.mark.usefixtures("workers_here")


SETTINGS = """
import enum
from dataclasses import dataclass, field

class Mode(enum.Enum):
    FAST = 1

@dataclass
class Conf:
    beta: float = 0.1
    mode: Mode = Mode.FAST
"""

Make = Callable[[str, str], ModuleType]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Writes a module of a project and imports it."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def make(name: str, source: str) -> ModuleType:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


@step(version="1")
def train(out: Output, config: Any, other: Any = None) -> dict:
    return {}


# --- places --------------------------------------------------------------------------------------


def test_a_config_class_may_move_to_another_module_or_package(module: Make) -> None:
    places = [module(name, SETTINGS) for name in ("settings", "conf_", "deep.er.settings")]
    assert len({train(place.Conf()).fingerprint for place in places}) == 1
    assert len({train(place.Mode.FAST).fingerprint for place in places}) == 1


def test_a_step_may_move_to_another_module(module: Make) -> None:
    source = (
        "from pipeline import step, Output\n"
        "@step(version='1')\n"
        "def fit(out: Output, rate: float = 0.1) -> dict: ...\n"
    )
    one, other = (module(name, source) for name in ("work", "jobs.work"))
    assert one.fit().fingerprint == other.fit().fingerprint
    assert one.fit(0.2).fingerprint != other.fit().fingerprint


def test_two_classes_of_one_name_in_one_call_are_told_apart(module: Make) -> None:
    one, two = (module(name, SETTINGS) for name in ("first", "second"))
    crossed = [(one, two), (two, one), (one, one), (two, two)]
    keys = {train(a.Conf(), b.Conf()).fingerprint for a, b in crossed}
    assert len(keys) == 3, "alone, a class is its name and its fields"
    assert train([one.Mode.FAST, two.Mode.FAST]).fingerprint != (
        train([two.Mode.FAST, one.Mode.FAST]).fingerprint
    )


def test_classes_of_libraries_keep_their_module(module: Make, tmp_path: Path) -> None:
    """Their code is in no key."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    for name in ("liba", "libb"):
        (folder / f"{name}.py").write_text(SETTINGS)
    importlib.invalidate_caches()
    liba, libb = importlib.import_module("liba"), importlib.import_module("libb")
    sys.path.remove(str(folder))
    assert train(liba.Mode.FAST).fingerprint != train(libb.Mode.FAST).fingerprint
    assert train(liba.Conf()).fingerprint != train(libb.Conf()).fingerprint


def test_what_a_step_was_made_by_is_found_again_by_its_manifest(lab: Lab) -> None:
    lab.run(product=lab.product())
    made = Catalog(lab.store).history("multiply")[0]
    recipe: Any = made.recipe
    assert recipe["step"] == "multiply"
    assert "toy_steps" not in str(recipe)
    assert made.function == "toy_steps:multiply"
    assert made.discovered.entry == ("toy_steps:multiply", "toy_steps:Times")


# --- names ---------------------------------------------------------------------------------------


def renamed(name: str, function: StepFunction = multiply, **settings: Any) -> StepFunction:
    return step(version="1", name=name, **settings)(function.function)


def product(lab: Lab, function: StepFunction) -> Step:
    return function(lab.numbers()["train"], Times(), lab.journal)


def test_a_step_that_a_later_one_replaces_is_not_planned(module: Make, lab: Lab) -> None:
    """A worker would import the later one."""
    source = """
from pipeline import Output, step
found = []
for n in (1, 2):
    @step
    def fit(out: Output) -> dict:
        return {"n": n}
    found.append(fit())
"""
    first, second = module("loop", source).found
    make_plan({"second": second}, lab.store)
    with pytest.raises(TemperError, match="loop defines several steps fit"):
        make_plan({"first": first}, lab.store)


def test_a_stated_name_is_the_step_s(lab: Lab) -> None:
    same = renamed("multiply")
    assert same.name == "multiply"
    assert product(lab, same).fingerprint == lab.product().fingerprint
    assert renamed("scale").name == "scale"


def test_what_was_made_under_an_earlier_name_is_found(lab: Lab) -> None:
    lab.run(product=lab.product())
    scale = renamed("scale", was=("rescale", "multiply"))
    total = add([product(lab, scale)], lab.journal)
    planned = {p.step.name: p for p in make_plan({"sum": total}, lab.store).steps}
    assert planned["scale"].state is State.CACHED
    assert planned["scale"].reason == "made when it was called multiply"
    assert lab.run(sum=total) == ["add"]
    assert lab.run(sum=total) == []


def test_what_is_used_under_a_new_name_is_not_collected(lab: Lab) -> None:
    lab.run(product=lab.product())
    (first,) = names_of_runs(lab.store)
    scale = renamed("scale", was=("multiply",))
    lab.run(product=product(lab, scale))
    findings = find_garbage(lab.store, Policy(1, None, 0.0))
    assert first != names_of_runs(lab.store)[-1]
    assert not [g for g in findings.garbage if g.kind in (Kind.ARTIFACT, Kind.DATA)]


def test_two_functions_of_one_name_and_version_are_refused_in_one_experiment(
    lab: Lab,
    module: Make,
) -> None:
    other = module("other_steps", (SUPPORT / "toy_steps.py").read_text())
    roots = {
        "one": lab.product(),
        "two": other.multiply(lab.numbers()["train"], other.Times(3), ""),
    }
    with pytest.raises(TemperError, match=r"toy_steps:multiply and other_steps:multiply are two"):
        make_plan(roots, lab.store)


WORK = """
from pipeline import Output, step

def doubled(value):
    return 2 * value

@step
def fit(out: Output, value: int) -> dict:
    return {"twice": doubled(value)}
"""


def test_a_step_known_by_its_code_keeps_what_it_made_under_another_name(
    lab: Lab,
    module: Make,
) -> None:
    work = module("work", WORK)
    lab.run(it=work.fit(2))
    adapt = step(name="adapt", was=("fit",))(work.fit.function)
    assert lab.states(it=adapt(2)) == {"adapt": State.CACHED}
    assert lab.states(it=adapt(3)) == {"adapt": State.RUN}


# --- reasons -------------------------------------------------------------------------------------


def reason(lab: Lab, wanted: Step, experiment: str = "") -> str:
    return make_plan({"it": wanted}, lab.store, experiment=experiment).steps[-1].reason


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ((1, 2), [1, 2], "config (1, 2) → [1, 2]"),
        (1, True, "config 1 → True"),
        (1, 1.0, "config 1 → 1.0"),
        ({"fields": {"a": 1}}, {"a": 1}, "config.fields removed, config.a added as 1"),
        ({"a": (1, [2])}, {"a": (1, (2,))}, "config.a[1] [2] → (2,)"),
        ({"a.b": 1}, {"a": {"b": 1}}, "config.a.b removed, config.a added as {'b': 1}"),
        ({1}, frozenset({1}), "config is of another type"),
    ],
)
def test_a_reason_is_never_empty(lab: Lab, one: Any, other: Any, said: str) -> None:
    lab.run(it=train(one))
    assert set(reason(lab, train(other)).split(", ")) == set(said.split(", "))
    old = Catalog(lab.store).history("train")[0]
    lab.run(it=train(other))
    new = Catalog(lab.store).history("train")[1]
    assert compare(old, new).settings


def test_the_nearest_artifact_of_any_experiment_is_compared_with(lab: Lab) -> None:
    lab.run(it=lab.product(Times(2)), other=lab.product(Times(3)))
    (two, three) = Catalog(lab.store).history("multiply")
    recipe: Any = {"encoding": 3, "version": "1", "arguments": {"config": 9, "x": 1}}

    def nearest(*others: Manifest) -> tuple[Manifest, tuple[str, ...]]:
        close = History(others).nearest(recipe, {}, "mine")
        assert close is not None
        return close.manifest, close.changes

    mine, near = (
        _of(two, "mine", {"config": 7, "x": 2}),
        _of(three, "theirs", {"config": 7, "x": 1}),
    )
    assert nearest(near, mine) == (near, ("config 7 → 9",)), "whoever made it"
    alike = _of(three, "theirs", {"config": 8, "x": 2})
    for others in ((mine, alike), (alike, mine)):
        assert nearest(*others)[0] is mine, "of two as near, that of the same experiment"


def _of(made: Any, experiment: str, arguments: Json) -> Any:
    recipe = {"encoding": 3, "step": made.step, "version": "1", "arguments": arguments}
    return replace(made, recipe=recipe, provenance={"experiment": experiment})


# --- going on ------------------------------------------------------------------------------------


def test_a_step_that_will_resume_says_from_where(lab: Lab) -> None:
    wanted = slow_count(9, lab.journal)
    planned = make_plan({"it": wanted}, lab.store).steps[-1]
    assert planned.reason == "never run"
    assert planned.key is not None
    scratch = lab.store.scratch_path("slow_count", planned.key)
    scratch.mkdir(parents=True)
    assert reason(lab, wanted) == "never run", "nothing is in it"
    (scratch / "count.txt").write_text("4")
    at = time.strftime("%H:%M", time.localtime((scratch / "count.txt").stat().st_mtime))
    assert reason(lab, wanted) == f"never run; goes on from its scratch of {at}"
    told = Path(lab.store.progress_path("slow_count", planned.key))
    told.parent.mkdir(parents=True)
    told.write_text('{"done": 4.0, "total": 9.0}')
    assert reason(lab, wanted) == f"never run; goes on from its scratch of {at} (4 of 9)"
    for progress, shown, left in (
        ({"done": 6, "total": 8}, " (6 of 8)", 0.25),
        ({"done": 7, "total": None}, " (7)", 1.0),
        ({"done": 0, "total": 9}, " (0 of 9)", 1.0),
        ({"done": 0, "total": None}, "", 1.0),
        ({"done": 20, "total": 9}, " (20 of 9)", 1.0),
        ({"done": "seven", "total": 9}, "", 1.0),
        ([], "", 1.0),
    ):
        told.write_text(json.dumps(progress))
        again = make_plan({"it": wanted}, lab.store).steps[-1]
        assert again.reason == f"never run; goes on from its scratch of {at}{shown}"
        assert again.left == left
    assert reason(lab, slow_count(8, lab.journal)) == "never run"


@step
def ask(out: Output, settings: Any) -> None: ...


@pytest.mark.parametrize(
    ("variable", "key", "where"),
    [
        ("JUDGE_API_KEY", "sk-0123456789abcdef", ".headers.auth"),
        ("OPENAI_API_KEY_2", 'sk-"0123456789é-abc', ".headers.auth"),
        ("DB_PASSWORD", "correct-horse-battery", ".headers.auth"),
        ("OPENAI_KEY", "sk-proj-T3BlbkFJq0Zx81LmNvRt", ".headers.auth"),
    ],
)
def test_a_key_of_the_environment_is_refused_since_manifests_would_record_it(
    variable: str, key: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, key)
    with pytest.raises(TemperError, match=rf"^ask\(settings\){where}: .* {variable},"):
        ask({"headers": {"auth": f"Bearer {key}"}})
    with pytest.raises(TemperError, match=rf"^ask\(settings\)\[1\]: .* {variable},"):
        ask(["none", key])
    with pytest.raises(TemperError, match=rf"^ask: .* {variable},"):
        ask({key: 1})
    assert ask({"key_variable": variable})


class Service(enum.Enum):
    CHAT = "sk-0123456789abcdef"


def test_the_environment_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ask(Service.CHAT).fingerprint
    monkeypatch.setenv("JUDGE_API_KEY", Service.CHAT.value)
    assert ask(Service.CHAT).fingerprint == before
