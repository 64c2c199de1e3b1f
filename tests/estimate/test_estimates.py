"""What a plan says a run will take, before it takes it."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from estimated_steps import (
    breaks_estimate,
    missing_estimate,
    nonsense_estimate,
    sum_rows,
    undeclared,
    write_rows,
)
from rich.console import Console

from pipeline import Output, Step, Store, run, step
from pipeline.estimate.estimates import Estimates, Estimator
from pipeline.estimate.machine import Hardware
from pipeline.estimate.past_runs import PastRun, past_run, seconds_of
from pipeline.plan.planning import Plan, make_plan
from pipeline.show.terminal import show_plan
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest

pytestmark = pytest.mark.usefixtures("workers_here")
QUIET = Console(quiet=True)


def planned(store: Store, **roots: Step) -> tuple[Plan, Estimates]:
    catalog = Catalog(store)
    plan = make_plan(roots, store, catalog=catalog)
    return plan, Estimator(catalog).estimate(plan)


def shown(plan: Plan, estimates: Estimates, width: int = 150) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show_plan(console, plan, estimates=estimates)
    return console.file.getvalue()  # type: ignore[attr-defined]


def spent(store: Store, name: str, **changes: object) -> Manifest:
    """The latest artifact of a step, with other records of what its run took."""
    made = Catalog(store).history(name)[-1]
    provenance = {**made.provenance, "spent": {**made.provenance["spent"], **changes}}
    return replace(made, provenance=provenance)


def test_a_plan_says_memory_and_disk_by_formula_and_that_a_step_never_ran(store: Store) -> None:
    rows = write_rows(1000)
    text = shown(*planned(store, total=sum_rows(rows), other=undeclared(rows)))
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines()}
    assert lines["step"] == "step plan time memory disk why"
    assert "– 100 MB 10 kB" in lines["write_rows"]
    assert "– 200 MB 20 B" in lines["sum_rows"]
    assert lines["undeclared"].count("–") == 3
    unknown = "time of 3 steps unknown (never run on such hardware)"
    assert f"3 to run, 0 cached: {unknown}, 10 kB to write, " in text


def test_a_step_takes_what_its_last_run_took_and_totals_say_what_is_unknown(store: Store) -> None:
    run({"sum": sum_rows(write_rows(1000))}, store, console=QUIET)
    took = spent(store, "sum_rows").provenance["spent"]
    again, new = sum_rows(write_rows(1000), scale=2.0), undeclared(write_rows(1000))
    plan, estimates = planned(store, again=again, new=new)
    estimate = estimates.of[again.fingerprint]
    assert (estimate.seconds, estimate.memory) == (took["seconds"], took["memory"])
    text = shown(plan, estimates)
    assert "~" not in text
    assert ": at least 1 s, time of 1 step unknown (never run on such hardware), " in text


@step(version="1")
def count(out: Output, until: int) -> None:
    (out.path / "count.txt").write_text(f"{until}")


def test_a_step_that_resumes_takes_the_share_that_is_left(store: Store) -> None:
    run([count(7)], store, console=QUIET)
    wanted = count(8)
    plan, whole = planned(store, it=wanted)
    key = plan.steps[-1].key
    assert key is not None
    scratch = store.scratch_path("count", key)
    scratch.mkdir(parents=True)
    (scratch / "checkpoint").write_text("6")
    told = Path(store.progress_path("count", key))
    told.parent.mkdir(parents=True, exist_ok=True)
    told.write_text('{"done": 6, "total": 8}')
    _, left = planned(store, it=wanted)
    (before,), (after,) = whole.of.values(), left.of.values()
    assert before.seconds
    assert after == replace(before, seconds=before.seconds / 4)


def test_what_declares_nothing_is_scaled_by_the_bytes_of_its_inputs(store: Store) -> None:
    run({"it": undeclared(write_rows(10**30))}, store, console=QUIET)
    small = spent(store, "undeclared", seconds=100.0)
    assert small.provenance["foreseen"]["work"] == {"bytes": 31}
    known = past_run(small)
    assert known is not None
    assert seconds_of({"bytes": 31.0}, [known]) == 100
    _, estimates = planned(store, it=undeclared(write_rows(10**30), times=2))
    (estimate,) = estimates.of.values()
    assert (estimate.disk, estimate.is_rough) == (100, False)


def test_a_cached_plan_has_no_estimate_and_imports_nothing_to_say_so(store: Store) -> None:
    root = sum_rows(write_rows(3))
    run({"sum": root}, store, console=QUIET)
    plan, estimates = planned(store, sum=root)
    assert not estimates.of
    assert "time" not in shown(plan, estimates)
    script = (
        "import sys; from pipeline import run; from estimated_steps import sum_rows, write_rows;"
        f"run([sum_rows(write_rows(3))], {store.url!r}, verbosity=-1);"
        "print('pipeline.running.forecast' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    path = {"PYTHONPATH": ":".join(sys.path)}
    again = subprocess.run(command, capture_output=True, text=True, env=path, check=True)
    assert again.stdout.splitlines()[-1] == "False"


def test_a_declaration_that_breaks_or_is_not_there_breaks_no_plan(store: Store) -> None:
    roots = {"a": breaks_estimate(write_rows(3)), "b": missing_estimate(), "c": nonsense_estimate()}
    text = shown(*planned(store, **roots))
    for name in ("breaks_estimate", "missing_estimate", "nonsense_estimate"):
        assert any(name in line and line.count("–") == 3 for line in text.splitlines())
    made = run(roots, store, console=QUIET)["c"].manifest
    assert made.provenance["foreseen"] == {"work": {}}


@pytest.mark.parametrize(
    ("changes", "took"),
    [
        ({"resumed": True}, None),
        ({"memory": "much", "seconds": -1, "devices": "many", "threads": None}, {"disk"}),
        ({"memory": 1e300, "model": 3}, {"disk", "seconds"}),
    ],
)
def test_what_a_store_says_of_runs_is_not_believed(
    store: Store, changes: dict[str, Any], took: set[str] | None
) -> None:
    run({"sum": sum_rows(write_rows(3))}, store, console=QUIET)
    found = past_run(spent(store, "sum_rows", **changes))
    assert (None if found is None else set(found.took)) == took


def past(rows: float, seconds: float) -> PastRun:
    return PastRun(Hardware(), {"rows": rows}, {"memory": 10.0}, {"seconds": seconds, "memory": 30})


@pytest.mark.parametrize(
    ("runs", "rows", "seconds"),
    [
        ([(100, 50)], 200, 95),  # of one run, five seconds may be its start
        ([(100, 4)], 1, 2.02),
        ([(1, 20), (1000, 120)], 1000, 120),
        ([(10, 21), (1010, 121)], 510, 71),  # a start of 20 s
        ([(10, 21), (1010, 121)], 3010, 321),
        ([(10, 50), (1000, 20)], 500, 20),  # not faster with more work
        ([(1, 1e-3), (10, 1e29)], 1e29, 1e57),
    ],
)
def test_time_grows_with_work_as_it_did_between_runs(
    runs: list[tuple[float, float]], rows: float, seconds: float
) -> None:
    found = seconds_of({"rows": rows}, [past(*one) for one in runs])
    assert found == pytest.approx(seconds, rel=0.02)


def test_a_disk_that_is_too_small_is_said_before_anything_runs(store: Store) -> None:
    plan, estimates = planned(store, sum=sum_rows(write_rows(1000)))
    full = shown(plan, replace(estimates, free=500_000))
    assert "! the disk of the store has 500 kB free" in full
    assert "checkpoints of 1.0 MB" in full
    assert "!" not in shown(plan, replace(estimates, free=2_000_000))


def test_a_step_that_does_not_fit_into_memory_is_named(store: Store) -> None:
    plan, estimates = planned(store, rows=write_rows(1000))
    small = {name: replace(estimate, capacity=5e7) for name, estimate in estimates.of.items()}
    text = shown(plan, replace(estimates, of=small))
    assert "! write_rows needs about 100 MB of memory, which has 50 MB" in text
