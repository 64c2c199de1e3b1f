"""What a plan says a run will take, before it takes it."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from priced_steps import (
    price_breaks,
    price_is_missing,
    price_is_nonsense,
    price_is_of_a_gpu,
    sum_rows,
    unpriced,
    write_rows,
)
from rich.console import Console

from pipeline import Step, Store, TemperError, run, step
from pipeline.plan.planning import Plan, make_plan
from pipeline.price.estimator import Hardware
from pipeline.price.experience import Experience, corrected_seconds, experience_of
from pipeline.price.pricing import Pricer, Prices
from pipeline.price.remaining import Ahead, left_of
from pipeline.show.terminal import show_plan
from pipeline.store.catalog import Catalog
from pipeline.text import about, clock, counted, size

pytestmark = pytest.mark.usefixtures("workers_here")


def planned(store: Store, **roots: Step) -> tuple[Plan, Prices]:
    catalog = Catalog(store)
    plan = make_plan(roots, store, catalog=catalog)
    return plan, Pricer(catalog).price(plan)


def shown(plan: Plan, prices: Prices, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show_plan(console, plan, prices=prices)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_plan_says_what_each_step_takes_and_what_all_of_them_do(store: Store) -> None:
    rows = write_rows(1000)
    text = shown(*planned(store, total=sum_rows(rows), other=unpriced(rows)))
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines()}
    assert lines["step"] == "step plan time memory disk why"
    assert "~2 s 100 MB 10 kB" in lines["write_rows"]
    assert "~13 s 200 MB 20 B" in lines["sum_rows"]
    # nobody knows anything of a step without an estimator that has never run
    assert any("unpriced" in line and line.count("–") == 3 for line in text.splitlines())
    assert "3 to run, 0 cached: at least 15 s, 10 kB to write, " in text


def test_a_cached_plan_has_no_price_and_imports_nothing_to_say_so(store: Store) -> None:
    root = sum_rows(write_rows(3))
    run({"sum": root}, store, console=Console(quiet=True))
    plan, prices = planned(store, sum=root)
    assert not prices.of
    assert "time" not in shown(plan, prices)
    script = (
        "import sys; from pipeline import run; from priced_steps import sum_rows, write_rows;"
        f"run([sum_rows(write_rows(3))], {store.url!r}, verbosity=-1);"
        "print('pipeline.running.forecast' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    path = {"PYTHONPATH": ":".join(sys.path)}
    again = subprocess.run(command, capture_output=True, text=True, env=path, check=True)
    assert again.stdout.splitlines()[-1] == "False"


def test_an_estimator_is_in_no_key(store: Store) -> None:
    function = sum_rows.function
    others = [step(estimate=named)(function) for named in (None, "elsewhere:OTHER")]
    one, other = (each(write_rows(3)) for each in others)
    assert one.fingerprint == other.fingerprint == sum_rows(write_rows(3)).fingerprint


def test_an_estimator_that_breaks_or_is_not_there_breaks_no_plan(store: Store) -> None:
    roots = {"a": price_breaks(write_rows(3)), "b": price_is_missing(), "c": price_is_nonsense()}
    text = shown(*planned(store, **roots))
    for name in ("price_breaks", "price_is_missing", "price_is_nonsense"):
        assert any(name in line and line.count("–") == 3 for line in text.splitlines())
    made = run(roots, store, console=Console(quiet=True))["c"].manifest
    assert made.provenance["foreseen"].keys() == {"by", "inputs"}


def test_an_estimate_is_named_by_a_text() -> None:
    with pytest.raises(TemperError, match="name it, as in 'module:name'"):
        step(estimate="no reference")(sum_rows.function)


@pytest.mark.real_workers
def test_an_attempt_records_what_it_took_and_what_was_foreseen(store: Store) -> None:
    made = run({"sum": sum_rows(write_rows(1000))}, store, console=Console(quiet=True))[
        "sum"
    ].manifest
    spent, foreseen = made.provenance["spent"], made.provenance["foreseen"]
    assert spent["model"]
    assert spent["memory"] > 1e6
    assert spent["cpu_seconds"] > 0
    assert 0 < spent["seconds"] < made.seconds  # without the start of the worker
    assert "resumed" not in spent
    assert foreseen == {
        "by": "priced_steps:SUM 1", "seconds": 13.0, "overhead": 13.0, "cpu_seconds": 13.0,
        "memory": 2e8 + 1000, "bytes": 20.0, "inputs": 4,
    }  # fmt: skip


@pytest.mark.real_workers
def test_the_memory_of_an_attempt_is_not_that_of_who_started_it(store: Store) -> None:
    """A driver may be a notebook that holds a large table."""
    large = bytearray(b"1") * 2**28
    made = run({"sum": sum_rows(write_rows(1000))}, store, console=Console(quiet=True))
    assert made["sum"].manifest.provenance["spent"]["memory"] < len(large)


@pytest.mark.real_workers  # so that memory is not that of many tests before
def test_a_price_follows_what_earlier_attempts_took(store: Store) -> None:
    run({"sum": sum_rows(write_rows(1000))}, store, console=Console(quiet=True))
    (made,) = Catalog(store).history("sum_rows")
    plan, prices = planned(store, sum=sum_rows(write_rows(1000), scale=2.0))
    (price,) = prices.of.values()
    assert price.seconds == pytest.approx(made.provenance["spent"]["seconds"], rel=0.2)
    assert price.memory == pytest.approx(made.provenance["spent"]["memory"], rel=0.2)
    assert "~" not in shown(plan, prices)


def test_a_step_without_estimator_takes_what_it_took(store: Store) -> None:
    run({"it": unpriced(write_rows(3))}, store, console=Console(quiet=True))
    (made,) = Catalog(store).history("unpriced")
    _, prices = planned(store, it=unpriced(write_rows(3), times=2))
    (price,) = prices.of.values()
    assert (price.seconds, price.disk) == (made.provenance["spent"]["seconds"], 100)


def test_a_step_without_estimator_takes_about_what_it_took_with_other_threads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run([unpriced(write_rows(100))], store, console=Console(quiet=True))
    monkeypatch.setenv("OMP_NUM_THREADS", "5000")
    plan, prices = planned(store, other=unpriced(write_rows(100), times=2))
    price = prices.of[plan.roots["other"].fingerprint]
    assert price.seconds
    assert price.is_rough


def test_nothing_is_learnt_from_an_attempt_that_went_on_from_scratch(store: Store) -> None:
    made = run({"sum": sum_rows(write_rows(3))}, store, console=Console(quiet=True))["sum"].manifest
    assert experience_of(made) is not None
    spent = {**made.provenance["spent"], "resumed": True}
    assert experience_of(replace(made, provenance={**made.provenance, "spent": spent})) is None


@pytest.mark.parametrize(
    "spent",
    [None, 3, {"devices": "many", "threads": None, "memory": "much"}, {"memory": -1, "model": 3}],
)
def test_what_a_store_says_of_attempts_is_not_believed(store: Store, spent: object) -> None:
    made = run({"sum": sum_rows(write_rows(3))}, store, console=Console(quiet=True))["sum"].manifest
    told = experience_of(replace(made, provenance={**made.provenance, "spent": spent}))
    assert told is None or "memory" not in told.took


def test_the_closer_an_earlier_attempt_in_size_the_more_it_counts(store: Store) -> None:
    (one, *_) = experiences(store)
    small = replace(one, foreseen={"seconds": 1.0}, took={"seconds": 10.0})
    large = replace(one, foreseen={"seconds": 1000.0}, took={"seconds": 1000.0})
    assert corrected_seconds(900.0, 0.0, one.estimator, [small, large], []) < 1500
    assert corrected_seconds(1.2, 0.0, one.estimator, [large, small], []) > 8


def test_a_small_attempt_which_mostly_starts_shows_little_of_how_fast_work_is(store: Store) -> None:
    (one, *_) = experiences(store)
    start = {"seconds": 1.0, "overhead": 0.95}
    small = replace(one, foreseen=start, took={"seconds": 0.25})
    assert corrected_seconds(1.0, 0.95, one.estimator, [small], []) < 0.3
    assert 30 < corrected_seconds(100.0, 0.95, one.estimator, [small], []) < 50
    large = replace(one, foreseen={"seconds": 50.0, "overhead": 0.95}, took={"seconds": 100.0})
    assert corrected_seconds(100.0, 0.95, one.estimator, [small, large], []) > 180


@pytest.mark.parametrize(("expected", "took"), [(1e-9, 1e300), (1e300, 1e-300), (1.0, 1e12)])
def test_what_no_attempt_can_have_taken_is_not_believed(expected: float, took: float) -> None:
    """A store may say anything, and a plan is shown all the same."""
    one = Experience("step", Hardware(), "by 1", {"seconds": expected}, {"seconds": took})
    assert corrected_seconds(10.0, 1.0, "by 1", [one], []) == pytest.approx(10)


def experiences(store: Store) -> list[Experience]:
    run({"sum": sum_rows(write_rows(3))}, store, console=Console(quiet=True))
    return list(filter(None, map(experience_of, Catalog(store).history("sum_rows"))))


def test_a_time_that_depends_on_the_kind_of_gpu_is_known_once_that_is_named(store: Store) -> None:
    step = price_is_of_a_gpu().on(gpus=8)
    text = shown(*planned(store, train=step))
    assert "! price_is_of_a_gpu: how long it takes depends on the kind of GPU" in text
    assert "accelerator=H100" in text
    text = shown(*planned(store, train=step.on(gpus=8, accelerator="H100")))
    assert "~60 s" in text
    assert "!" not in text


def test_a_disk_that_is_too_small_is_said_before_anything_runs(store: Store) -> None:
    plan, prices = planned(store, sum=sum_rows(write_rows(1000)))
    full = shown(plan, replace(prices, free=500_000))
    assert "! the disk of the store has 500 kB free" in full
    assert "checkpoints of 1.0 MB" in full
    assert "!" not in shown(plan, replace(prices, free=2_000_000))


def test_a_step_that_does_not_fit_into_memory_is_named(store: Store) -> None:
    plan, prices = planned(store, rows=write_rows(1000))
    small = {name: replace(price, capacity=5e7) for name, price in prices.of.items()}
    text = shown(plan, replace(prices, of=small))
    assert "! write_rows needs about 100 MB of memory, which has 50 MB" in text


def test_what_is_left_is_laid_out_over_the_steps_that_run_at_once() -> None:
    first, needs = Ahead("a", 10.0), frozenset({"a"})
    rest = [Ahead("b", 4.0, needs), Ahead("c", 6.0, needs), Ahead("d", None, frozenset({"b"}))]
    assert left_of([first, *rest], jobs=1).seconds == 20
    assert left_of([first, *rest], jobs=2).seconds == 16
    assert not left_of([first, *rest], jobs=2).is_complete
    running = [Ahead("c", 1.0, needs, is_running=True), Ahead("b", 4.0, needs)]
    assert left_of(running, jobs=1).seconds == 5  # what they need is there


def test_durations_and_numbers_of_things_are_shown_as_people_write_them() -> None:
    assert [clock(s) for s in (0.04, 59.94, 59.97, 60, 119.9, 185, 3599.9, 3600, 7620)] == [
        "0.0s", "59.9s", "1m00s", "1m00s", "1m59s", "3m05s", "59m59s", "1h00m", "2h07m",
    ]  # fmt: skip
    assert [counted(n, "step") for n in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_estimates_are_told_no_more_exactly_than_they_are_known() -> None:
    assert [about(s) for s in (0.2, 3.4, 89, 130, 7200, 40 * 3600, 3e6)] == [
        "1 s", "3 s", "89 s", "2 min", "2.0 h", "40 h", "35 days",
    ]  # fmt: skip
    assert [size(b) for b in (0, 999, 1000, 9.96e6, 542e6, 16e9, 2.5e12)] == [
        "0 B", "999 B", "1.0 kB", "10 MB", "542 MB", "16 GB", "2.5 TB",
    ]  # fmt: skip


def test_a_store_that_is_not_there_yet_has_the_free_disk_of_its_place(tmp_path: Path) -> None:
    _, prices = planned(Store(f"{tmp_path}/not/yet"), rows=write_rows(3))
    assert prices.free
