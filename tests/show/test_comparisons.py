"""Runs and results side by side: what differs, and what that did."""

import pytest
from report_steps import HOSTILE, hostile, measure, prepare, prepare_again
from rich.console import Console
from typer.testing import CliRunner

from pipeline import Artifact, Output, Store, TemperError, compare, results, run, step
from pipeline.cli import app
from pipeline.plan.planning import make_plan
from pipeline.running.rounds import RunFailed
from pipeline.store.runs import names_of_runs, read_runs

pytestmark = pytest.mark.usefixtures("workers_here")


def temper(store: Store, *arguments: str) -> str:
    """What a command prints, without its columns' padding."""
    result = CliRunner().invoke(app, [*arguments, "--store", store.url], env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return "\n".join(" ".join(line.split()) for line in result.output.splitlines())


def test_two_runs_differ_in_a_setting_and_so_in_their_metrics(
    store: Store, console: Console
) -> None:
    data = prepare()
    for beta in (0.1, 0.5):
        run({"after": measure(data, beta=beta), "data": data}, store, console=console)
    shown = temper(store, "diff", *names_of_runs(store))
    assert "measure (after)" not in shown  # there is no other
    assert "measure\nsettings: beta: 0.1 → 0.5" in shown
    assert "after loss 0.2 0.04762 -0.1524" in shown
    assert "1 result is the same artifact in both" in shown
    assert "prepare" not in shown


@step(version="1")
def breaks(out: Output, data: Artifact, rate: float) -> dict:
    raise ValueError(rate)


def test_what_neither_of_two_runs_made_is_not_called_equal(store: Store, console: Console) -> None:
    for rate in (0.1, 0.5):
        with pytest.raises(RunFailed):
            run({"model": breaks(prepare(), rate), "data": prepare()}, store, console=console)
    one, two = names_of_runs(store)
    shown = temper(store, "diff", one, two)
    assert "neither run made breaks: they differ" in shown
    assert "no difference" not in shown
    assert "1 result is the same artifact in both" in shown
    assert "no difference" in temper(store, "diff", one, one)


def test_results_are_a_table_with_settings_metrics_and_intervals(
    store: Store, console: Console
) -> None:
    data = prepare()
    made = run(
        {"base": data, **{f"b{b}": measure(data, beta=b) for b in (0.1, 0.5)}},
        store,
        console=console,
    )
    table = results(made)
    assert table.column_names[:6] == ["result", "experiment", "step", "key", "beta", "rows"]
    rows = {row["result"]: row for row in table.to_pylist()}
    assert rows["b0.5"]["beta"] == 0.5
    assert rows["b0.5"]["loss"] == made["b0.5"].metrics["loss"]
    assert rows["b0.5"]["accuracy.low"] == made["b0.5"].metrics["accuracy"]["low"]
    assert rows["base"]["loss"] is None
    assert table.to_pandas().set_index("result").loc["b0.1", "accuracy"] == pytest.approx(0.8)


def test_results_of_a_step_are_all_it_ever_made_by_what_lies_above_too(
    store: Store, console: Console
) -> None:
    for beta in (0.1, 0.5):
        run([prepare_again(measure(prepare(), beta=beta))], store, console=console)
    table = results("prepare_again", store)
    assert table["beta"].to_pylist() == [0.1, 0.5]
    with pytest.raises(
        TemperError, match=r"no artifact of 'teach', and no run of an .*; it has: measure, prepare"
    ):
        results("teach", store)


def test_results_of_an_experiment_are_those_of_its_newest_run(
    store: Store, console: Console
) -> None:
    for beta in (0.1, 0.5):
        run({"it": measure(prepare(), beta=beta), "data": prepare()}, store, console=console)
    experiment = read_runs(store)[0].experiment
    table = results(experiment, store).to_pylist()
    assert [row["result"] for row in table] == ["it", "data"]
    assert [row["step"] for row in table] == ["measure", "prepare"]
    assert table[0]["loss"] == pytest.approx(1 / 21)
    older = results(names_of_runs(store)[0], store).to_pylist()
    assert older[0]["loss"] == pytest.approx(0.2)
    assert [*compare(experiment, store=store).results] == ["it", "data"]


def test_a_step_and_a_plan_have_a_picture_in_a_notebook_with_everything_escaped(
    store: Store, console: Console
) -> None:
    step = hostile(prepare(), HOSTILE, note=HOSTILE["script"])
    shown = step._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown
    assert "<td" in shown
    assert not {"\x1b", "\u202e", "\u2066", "\x07"} & set(shown)
    assert "data" in shown
    plan = make_plan({HOSTILE["html"]: step, "x": hostile(prepare(), {})}, store)
    drawn = plan._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in drawn
    assert "<b>bold" not in drawn
    assert "never run" in drawn
