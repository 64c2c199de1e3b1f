"""What a user sees of the caching: what runs, what does not, and why.

Steps write a line into a journal outside the store when they really run.
"""

import errno
import importlib
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from numbers_lab import Lab, end, start_held_driver
from toy_steps import (
    Times,
    add,
    edit_own_source,
    fail,
    journal_lines,
    list_files,
    misbehave,
    multiply,
    only_train,
    parity,
    slow_count,
)
from waiting import held

from pipeline import File, Step, TemperError, adopt, run
from pipeline.plan.planning import State, make_plan
from pipeline.running.budget import OverBudget
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.objects import LocalObjects

pytestmark = pytest.mark.usefixtures("workers_here")


def test_an_experiment_runs_once_and_is_cached_after(lab: Lab) -> None:
    assert lab.run(product=lab.product()) == ["numbers", "multiply"]
    assert lab.run(product=lab.product()) == []


def test_a_cached_run_on_a_store_that_it_cannot_write_says_what_is_not_on_record(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.run(product=lab.product())

    def refuse(objects: LocalObjects, path: str, data: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(LocalObjects, "replace", refuse)
    lab.run(product=lab.product())
    assert (
        f"note: the store {lab.store.url} cannot be written: Read-only file system, so its runs "
        "and its folder latest do not show this run"
    ) in lab.printed()


def test_calling_a_step_runs_nothing(lab: Lab) -> None:
    lab.product()
    assert journal_lines(lab.journal) == []


def test_a_changed_setting_reruns_the_step_and_what_follows_it_only(lab: Lab) -> None:
    def roots(factor: int) -> dict[str, Step]:
        product = lab.product(Times(factor))
        return {"sum": add([product], lab.journal)}

    lab.run(**roots(2))
    assert lab.run(**roots(3)) == ["multiply", "add"]
    assert lab.run(**roots(2)) == []  # the old artifacts are still there


def test_an_execution_detail_reruns_nothing(lab: Lab) -> None:
    lab.run(product=lab.product(Times(workers=1)))
    assert lab.run(product=lab.product(Times(workers=8))) == []


def test_edited_input_bytes_rerun_from_the_step_that_reads_them(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.source.write_text("1 2 3 6")
    os.utime(lab.source, (1, 1))  # not even the time of the file tells
    assert lab.run(product=lab.product(part="test")) == ["numbers", "multiply"]


def test_an_edit_reruns_only_what_uses_the_part_that_changed(lab: Lab) -> None:
    lab.run(train=lab.product(part="train"))
    lab.source.write_text("1 2 3 6")  # an even number: the test part
    assert lab.run(train=lab.product(part="train")) == ["numbers"]


def test_a_rerun_that_yields_the_same_content_reruns_nothing_below_it(lab: Lab) -> None:
    def roots() -> dict[str, Step]:
        even = parity(lab.numbers()["train"], lab.journal)
        return {"sum": add([even], lab.journal)}

    lab.run(**roots())
    lab.source.write_text("5 2 7 4")  # other odd numbers, the same parity
    assert lab.run(**roots()) == ["numbers", "parity"]


def test_a_part_and_the_whole_are_different_inputs(lab: Lab) -> None:
    """Even where all files of the artifact lie in the part: a step sees them elsewhere."""
    made = only_train(lab.journal)
    part, whole = list_files(made["train"], lab.journal), list_files(made, lab.journal)
    results = run({"part": part, "whole": whole}, lab.store, console=lab.console)
    assert results["part"].metrics == {"names": "values.json"}
    assert results["whole"].metrics == {"names": "train/values.json"}


@pytest.mark.parametrize(
    "how", ["link", "list", "notices", "nan", "surrogate", "exit", "kill", "interrupt"]
)
@pytest.mark.real_workers
def test_a_step_that_ends_badly_makes_no_artifact(lab: Lab, how: str) -> None:
    with pytest.raises(RunFailed):
        lab.run(bad=misbehave(how))
    assert Catalog(lab.store).history("misbehave") == []
    assert not list(Path(lab.store.root).rglob("half.txt"))


def test_a_result_whose_files_are_gone_is_made_again(lab: Lab) -> None:
    lab.run(product=lab.product())
    shutil.rmtree(Path(lab.store.root) / "attempts")
    assert lab.run(product=lab.product()) == ["numbers", "multiply"]
    assert "it has lost values.json; it is a result" in lab.printed()
    assert lab.run(product=lab.product()) == []


def test_equal_content_from_two_sources_is_worked_on_once(lab: Lab) -> None:
    other = Lab(lab.source.parent, lab.store, lab.console)
    other.source = lab.source.with_name("other.txt")
    other.source.write_text("1 2 3 4")
    lines = lab.run(one=lab.product(), two=other.product())
    assert lines == ["numbers", "multiply"]


def test_a_file_edited_while_its_step_runs_makes_no_artifact(lab: Lab) -> None:
    with pytest.raises(RunFailed):
        lab.run(edited=edit_own_source(File(str(lab.source)), lab.journal))
    assert "numbers.txt changed while the experiment ran" in lab.printed()
    assert Catalog(lab.store).history("edit_own_source") == []


def test_code_that_is_edited_after_a_run_of_cached_steps_is_seen(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "edited_helper": "VALUE = 1",
        "edited_step": "from pipeline import step\nfrom edited_helper import VALUE\n"
        "@step\ndef valued(out):\n    out.path.joinpath('value').write_text(str(VALUE))",
    }.items():
        file = tmp_path / "edited" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "edited"))
    valued = importlib.import_module("edited_step").valued
    (tmp_path / "adopted").mkdir()
    (tmp_path / "adopted" / "content").write_text("")
    lab.run(adopted=adopt(tmp_path / "adopted"))
    lab.run(valued=valued())
    assert lab.states(valued=valued()) == {"valued": State.CACHED}
    assert lab.run(adopted=adopt(tmp_path / "adopted")) == []
    (tmp_path / "edited" / "edited_helper.py").write_text("VALUE = 2")
    assert lab.states(valued=valued()) == {"valued": State.RUN}


def test_a_chain_of_thousands_of_steps_can_be_planned(lab: Lab) -> None:
    step = lab.product()
    for _ in range(3000):
        step = parity(step, lab.journal)
    assert len(make_plan({"end": step}, lab.store).steps) == 3002


def test_a_renamed_input_file_is_the_same_input(lab: Lab) -> None:
    lab.run(product=lab.product())
    lab.source = lab.source.rename(lab.source.with_name("moved.txt"))
    assert lab.run(product=lab.product()) == []


def test_the_plan_says_what_runs_and_why(lab: Lab) -> None:
    def roots(config: Times) -> dict[str, Step]:
        return {"sum": add([lab.product(config)], lab.journal)}

    assert lab.reasons(**roots(Times()))["numbers"] == "never run"
    lab.run(**roots(Times()))
    changed = roots(replace(Times(), factor=5))
    states = lab.states(**changed)
    assert states == {"numbers": State.CACHED, "multiply": State.RUN, "add": State.RUN}
    assert lab.reasons(**changed)["multiply"] == "config.factor 2 → 5"
    assert lab.reasons(**changed)["add"] == "after multiply", "no sum of it was ever made"
    lab.source.write_text("1 3 5")
    again = roots(Times())
    assert "content of source changed" in lab.reasons(**again)["numbers"]
    assert lab.reasons(**again)["add"] == "if the output of multiply changes"
    assert lab.states(**again)["add"] is State.MAYBE


def test_a_failed_step_leaves_no_result_and_stops_only_what_needs_it(lab: Lab) -> None:
    broken = fail(lab.numbers()["test"], lab.journal)
    with pytest.raises(RunFailed, match="fail"):
        lab.run(broken=add([broken], lab.journal), fine=lab.product())
    assert Catalog(lab.store).history("fail") == []
    assert journal_lines(lab.journal).count("multiply") == 1
    printed = lab.printed()
    assert "row 3 of the input: no number; correct it and run again" in printed
    assert "log.txt" in printed
    assert lab.run(fine=lab.product()) == []


@pytest.mark.real_workers
def test_two_jobs_at_once_give_the_same_result(lab: Lab) -> None:
    products = [lab.product(Times(factor)) for factor in (2, 3, 5)]
    made = run({"sum": add(products, lab.journal)}, lab.store, jobs=2, console=lab.console)
    assert made["sum"].metrics == {"total": (2 + 3 + 5) * (1 + 3)}


def test_an_input_that_lost_a_file_is_made_again_for_the_step_that_needs_it(lab: Lab) -> None:
    lab.run(product=lab.product())
    (_content(lab, lab.numbers()) / "train" / "values.json").unlink()
    assert lab.run(product=lab.product()) == []
    assert lab.run(product=lab.product(Times(7))) == ["numbers", "multiply"]
    assert "it has lost train/values.json; needed by multiply" in lab.printed()
    assert lab.run(product=lab.product(Times(8))) == ["multiply"]


def test_an_input_of_other_bytes_is_noticed_and_made_again(lab: Lab) -> None:
    """Same size, other content: only the worker, which reads it, can tell."""
    lab.run(product=lab.product())
    damaged = _content(lab, lab.numbers()) / "train" / "values.json"
    damaged.chmod(0o644)
    damaged.write_text("[1, 9]")
    made = run({"product": lab.product(Times(7))}, lab.store, console=lab.console)
    assert made["product"].metrics == {"largest": 21}
    assert "values.json of the artifact of numbers is damaged" in lab.printed()
    assert lab.run(product=lab.product(Times(7))) == []


def test_wrong_arguments_are_refused_when_the_dag_is_built(lab: Lab) -> None:
    with pytest.raises(TemperError, match=r"step multiply: .*'cofnig'"):
        multiply(lab.numbers(), Times(), lab.journal, cofnig=Times())


# --- killed and started again ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "jobs"),
    [
        (signal.SIGKILL, 2),
        pytest.param(signal.SIGTERM, 1, marks=pytest.mark.attack),
        (signal.SIGHUP, 1),
        (signal.SIGINT, 2),
    ],
)
@pytest.mark.real_workers
def test_a_stopped_run_goes_on_where_it_was(lab: Lab, number: signal.Signals, jobs: int) -> None:
    driver = start_held_driver(lab, 4, jobs)
    end(lab, driver, number)
    assert driver.returncode == -number, "a failure has another status"
    assert journal_lines(lab.journal)[-1] == "count 4"
    assert Catalog(lab.store).history("slow_count") == []

    lines = lab.run(count=slow_count(6, lab.journal))
    assert lines[0] == "slow_count"
    assert lines[1] == "count 5", "it did not go on from where it was"
    assert lines[-1] == "count 6"
    assert not [p for p in Path(lab.store.root).glob("scratch/slow_count/*") if p.is_dir()]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.real_workers
def test_a_budget_stops_a_run_which_then_goes_on_and_refuses_a_longer_plan(
    lab: Lab, jobs: int
) -> None:
    count = {"count": slow_count(6, lab.journal)}
    with held(lab.journal, 3), pytest.raises(OverBudget, match="budget=4s is used up") as error:
        run(count, lab.store, jobs, lab.console, budget="4s")
    assert error.value.status == 4
    assert Catalog(lab.store).history("slow_count") == []
    made = run(count, lab.store, jobs, lab.console, budget="1h30m")
    assert made["count"].metrics["until"] == 6
    assert journal_lines(lab.journal).count("count 1") == 1, "it began again"
    lab.run(count=slow_count(2, lab.journal))  # the time of a whole run is an estimate
    longer = {"count": slow_count(7, lab.journal)}
    with pytest.raises(OverBudget, match="nothing has run"):
        run(longer, lab.store, jobs, lab.console, budget="0.01s")
    for wrong in ("soon", "", "2", "2h and more"):
        with pytest.raises(TemperError, match="90m, 2h or 1h30m"):
            run(longer, lab.store, jobs, lab.console, budget=wrong)


def _content(lab: Lab, step: Step) -> Path:
    made = run({"step": step}, lab.store, console=lab.console)["step"]
    return made.path
