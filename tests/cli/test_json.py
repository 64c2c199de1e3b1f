"""``--json``: the schemas of docs/agents.md, and the exit status of a command."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import temper
from numbers_lab import Lab
from places import model_for_plans
from rich.console import Console
from toy_steps import Times, fail
from typer.testing import CliRunner

from pipeline import Store
from pipeline.base.errors import TemperError
from pipeline.cli import app
from pipeline.running.rounds import RunFailed
from pipeline.store.runs import names_of_runs

pytestmark = pytest.mark.usefixtures("workers_here")
ARTIFACT = "artifact step key attempt digest kind seconds size files run metrics inputs"
RUN = "run experiment title outcome seconds command commit host results done cached failed"
SCHEMAS = {
    "list": ("artifacts unreadable", {"artifacts": f"{ARTIFACT} label state"}),
    "runs": ("runs", {"runs": RUN}),
    "runs RUN": ("runs", {"runs": f"{RUN} steps"}),
    "status": ("running", {}),
    "results": ("runs headline also results", {"runs": RUN, "results": f"{ARTIFACT} path"}),
    "logs multiply": ("artifact log lines", {}),
    "explain multiply": (
        "manifest nearest state uses discovered outdated tags",
        {"manifest": ARTIFACT, "nearest": ARTIFACT, "uses": ARTIFACT},
    ),
    "diff RUN RUN": (
        "of old new steps only_old only_new neither effects same_results",
        {"old": RUN, "new": RUN, "steps": "name compared command"},
    ),
    "diff numbers multiply": (
        "of old new logs items settings inputs code files same_files metrics",
        {"old": ARTIFACT, "new": ARTIFACT, "settings": "name old new"},
    ),
}
"""The fields of what each command prints, and of the values of these fields."""


@pytest.fixture
def lab(tmp_path: Path, store: Store, console: Console) -> Lab:
    lab = Lab(tmp_path, store, console)
    lab.run(numbers=lab.numbers(), product=lab.product())
    lab.run(numbers=lab.numbers(), product=lab.product(Times(5)))
    return lab


@pytest.mark.parametrize("command", SCHEMAS)
def test_a_command_prints_its_schema(command: str, lab: Lab) -> None:
    names = iter(names_of_runs(lab.store))
    words = [next(names) if word == "RUN" else word for word in command.split()]
    called = CliRunner().invoke(app, [*words, "--json", "--store", lab.store.url])
    assert called.exit_code == 0, (called.output, called.exception)
    told: dict[str, Any] = json.loads(called.stdout)
    fields, parts = SCHEMAS[command]
    assert told.pop("schema") == f"temper.{words[0]}/1"
    assert [*told] == fields.split()
    for name, of_part in parts.items():
        values = told[name]
        values = values.values() if name == "results" else values
        for value in [values] if isinstance(values, dict) else values:
            assert value is None or [*value] == of_part.split()


def test_a_plan_is_one_object_and_notes_stand_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model_for_plans(tmp_path / "model")
    within = ("--budget", "2h", "--dry", "--json")
    said = temper("run", "dpo", "--model", "model", "sft=none", *within)
    told = json.loads(said.out)
    assert [*told] == ["schema", "title", "is_complete", "seconds", "unknown", "steps"]
    assert told["seconds"] is None
    assert told["unknown"] == len(told["steps"])
    assert told["schema"] == "temper.plan/1"
    assert told["title"] == "dpo: data house_style, model model"
    wanted = "step label results state reason key seconds memory disk"
    assert all([*step] == wanted.split() for step in told["steps"])
    assert "note: no --data" in said.err


def test_the_exit_status_tells_failed_steps_from_all_else(lab: Lab) -> None:
    with pytest.raises(RunFailed) as failed:
        lab.run(wrong=fail(lab.numbers(), lab.journal))
    assert (failed.value.status, TemperError.status) == (3, 1)
