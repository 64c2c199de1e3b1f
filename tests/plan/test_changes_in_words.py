"""What the plan says of a setting that became another thing."""

from dataclasses import dataclass
from typing import Any

import pytest
from estimated_steps import Adapter, Prompted, Settings, adapt
from numbers_lab import Lab
from rich.console import Console
from toy_steps import Times

from pipeline import Artifact, Output, Store, run, step
from pipeline.plan.planning import PlannedStep, State, make_plan

pytestmark = pytest.mark.usefixtures("workers_here")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, Adapter(r=8), "config.adapter null → Adapter(r=8, alpha=32.0)"),
        (Adapter(r=8), None, "config.adapter Adapter(r=8, alpha=32.0) → null"),
        (Adapter(r=8), Prompted(), "config.adapter Adapter(r=8, alpha=32.0) → Prompted(tokens=4)"),
        (Adapter(r=8), Adapter(r=4), "config.adapter.r 8 → 4"),
    ],
)
def test_a_value_that_takes_the_place_of_another_is_one_phrase(
    store: Store, before: Adapter | None, after: Adapter | None, told: str
) -> None:
    run([adapt(Settings(adapter=before))], store, console=Console(quiet=True))
    (planned,) = make_plan({"it": adapt(Settings(adapter=after))}, store).steps
    assert planned.reason == told


@step(version="1")
def fit(out: Output, rows: Artifact, held_out: Any = None, config: Any = None) -> dict:
    (out.path / "fitted.txt").write_text(f"{config}")
    return {}


@step(version="1")
def judge(out: Output, model: Artifact) -> dict:
    return {}


@step(version="1")
def rows(out: Output, seed: int = 0) -> dict:
    (out.path / "rows.txt").write_text(f"{seed}")
    return {}


@dataclass(frozen=True)
class Rewarded:
    model: Any
    scale: float = 1.0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"held_out": rows(1)}, "held_out added"),
        ({"held_out": rows(1)}, {}, "held_out removed"),
        ({"held_out": [rows(1)]}, {"held_out": [rows(1), rows(2)]}, "held_out[1] added"),
        ({"held_out": 3}, {"held_out": rows(1)}, "held_out 3 → rows"),
        ({}, {"config": Rewarded(rows(1))}, "config added"),
        ({"config": Rewarded(rows(1))}, {"config": Rewarded(rows(2))}, "rows changed"),
        ({"config": [1, 2]}, {"config": 3}, "config [1, 2] → 3"),
    ],
)
def test_what_was_added_or_removed_is_told_as_that(
    store: Store, before: dict[str, Any], after: dict[str, Any], told: str
) -> None:
    run([fit(rows(), **before), rows(1), rows(2)], store, console=Console(quiet=True))
    assert make_plan({"it": fit(rows(), **after)}, store).steps[-1].reason == told


def test_what_was_never_made_is_not_called_changed(store: Store) -> None:
    """Its input may turn out to have the bytes of another's; then nothing runs, all the same."""

    def planned(config: int) -> PlannedStep:
        return make_plan({"it": judge(fit(rows(), config=config))}, store).steps[-1]

    run([judge(fit(rows(), config=1))], store, console=Console(quiet=True))
    assert (planned(2).state, planned(2).reason) == (State.RUN, "after fit")
    assert planned(2).may_match
    run([fit(rows(), config=2)], store, console=Console(quiet=True))
    assert (planned(2).state, planned(2).reason) == (State.RUN, "fit changed")


def test_what_was_made_of_the_same_calls_with_other_files_may_have_changed(lab: Lab) -> None:
    def planned(factor: int) -> PlannedStep:
        steps = make_plan({"it": judge(lab.product(Times(factor)))}, lab.store).steps
        return steps[-1]

    run([judge(lab.product(Times(2)))], lab.store, console=lab.console)
    run([lab.product(Times(3))], lab.store, console=lab.console)
    lab.source.write_text("3 1 2 4")
    assert planned(2).state is State.MAYBE
    assert planned(3).state is State.RUN, "the product was made, and was never judged"
    run([lab.numbers()], lab.store, console=lab.console)
    assert planned(2).state is State.MAYBE, "also where the numbers are cached by now"
