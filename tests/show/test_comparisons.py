"""Runs and results side by side: what differs, and what that did."""

from pathlib import Path

import pytest
from report_steps import HOSTILE, hostile, measure, prepare, prepare_again
from rich.console import Console
from typer.testing import CliRunner

from pipeline import Artifact, Output, Store, TemperError, compare, results, run, step
from pipeline.cli import app
from pipeline.plan.planning import make_plan
from pipeline.running.session import RunFailed
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


def test_of_very_many_differences_some_are_told_and_the_command_for_the_rest(
    store: Store, console: Console
) -> None:
    for value in (1, 2):
        config = {f"setting_{i:02d}": value for i in range(30)}
        run({"x": hostile(prepare(), config)}, store, console=console)
    shown = temper(store, "diff", *names_of_runs(store))
    assert shown.count("settings: config.setting_") == 8
    (rest,) = [line for line in shown.splitlines() if "settings: and 22 more: " in line]
    command = rest.partition("more: ")[2].split()
    assert command[:2] == ["temper", "diff"]
    assert "setting_29: 1 → 2" in temper(store, *command[1:])


@step(version="1")
def wait_for_file(out: Output, data: Artifact, file: str, seed: int = 0) -> dict:
    return {"size": Path(file).stat().st_size}


def test_what_a_failed_run_did_not_make_is_what_only_the_other_has(
    store: Store, console: Console, tmp_path: Path
) -> None:
    file = tmp_path / "file.txt"
    data = prepare()
    made = wait_for_file(data, str(file))
    roots = {"data": data, "after": made, "end": prepare_again(made)}
    with pytest.raises(RunFailed):
        run(roots, store, console=console)
    file.write_text("there")
    run(roots, store, console=console)
    failed, whole = names_of_runs(store)
    shown = temper(store, "diff", failed, whole)
    assert "only the second run has wait_for_file, prepare_again" in shown
    assert "no difference" not in shown
    assert "only the first run has wait_for_file, " in temper(store, "diff", whole, failed)


def test_a_list_of_artifacts_names_what_differs(store: Store, console: Console) -> None:
    run([measure(prepare(), beta=b, seed=s) for b in (0.1, 0.5) for s in (0, 1)], store,
        console=console)  # fmt: skip
    shown = temper(store, "list", "measure")
    for label in ("beta=0.1 seed=0", "beta=0.5 seed=1"):
        assert f" {label} Experiment" in shown


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


def test_a_table_without_a_damaged_artifact_says_so(store: Store, console: Console) -> None:
    for beta in (0.1, 0.5):
        run([measure(prepare(), beta=beta)], store, console=console)
    (damaged, _) = Path(store.root).glob("manifests/measure/*")
    damaged.write_text("half")
    with pytest.warns(UserWarning, match=f"lacks an artifact of measure: .*{damaged.name}"):
        table = results("measure", store)
    assert table.num_rows == 1


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
