"""``-m SETTING=1,2``: the jobs of a sweep are one run."""

import re
from pathlib import Path

import pytest
from command_line import script, temper

from pipeline import results
from pipeline.store.layout import Store
from pipeline.store.runs import read_runs

SWEPT = """
from dataclasses import dataclass, field
from pipeline import Output, Step, step
from pipeline.dag.artifact import Artifact
from pipeline.experiment import ExperimentConfig, main

@dataclass
class Learn:
    beta: float = 0.1
    seed: int = 0
    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ValueError(f"beta must be positive, got {self.beta}")

@dataclass
class Config(ExperimentConfig):
    rows: int = 3
    learn: Learn = field(default_factory=Learn)

@step
def prepare(out: Output, rows: int) -> dict:
    (out.path / "rows.txt").write_text("row " * rows)
    return {"rows": rows}

@step
def learn(out: Output, data: Artifact, config: Learn) -> dict:
    (out.path / "model.txt").write_text(str(config))
    return {"right": 1 - config.beta + 0.02 * config.seed}

def swept(cfg: Config) -> dict[str, Step]:
    data = prepare(cfg.rows)
    return {"data": data, "model": learn(data, cfg.learn)}

if __name__ == "__main__":
    main(swept)
"""


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "swept.py"
    file.write_text(SWEPT)
    return file


def test_jobs_are_one_run_whose_results_have_the_settings_that_they_depend_on(swept: Path) -> None:
    said = script(swept, "-m", "learn.beta=0.1,0.3", "learn.seed=0,1,2")
    assert said.status == 0, said.error
    assert "swept; 6 jobs by beta, seed" in said.out
    assert "7 to run" in said.out  # the data is made once
    (run,) = read_runs(Store("store"))
    variants = [f"model beta={beta} seed={seed}" for beta in (0.1, 0.3) for seed in (0, 1, 2)]
    assert list(run.roots) == ["data", *variants]

    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.out.splitlines()]
    assert ["model", "0.3", "1", "0.72"] in cells  # settings are columns
    assert ["model", "0.3", "mean of 3", "0.72 (0.7 – 0.74)"] in cells
    page = temper("report").status == 0 and Path("report.html").read_text()
    (drawn,) = re.findall(r'aria-label="right by (\w+)', str(page))
    assert drawn == "beta"  # a seed is no quantity
    assert "model beta=0.1, mean of 3" in str(page)
    both = results([run.name, run.name])
    assert both["seed"].to_pylist() == 2 * [None, 0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (
            ["learn.beta=0.1,-1", "learn.seed=0,1"],
            "beta=-1 seed=0 and 1 more job: invalid configuration in learn: "
            "beta must be positive, got -1.0; nothing has run",
        ),
        (["store=a,b"], "-m: all jobs are one run, which has one value of store; give one"),
        (["learn.beta=0.1,x"], "Value 'x' of type 'str' could not be converted to Float"),
    ],
)
def test_a_wrong_job_is_told_before_any_runs(swept: Path, typed: list[str], told: str) -> None:
    said = script(swept, "-m", *typed)
    assert (said.status, said.out) == (1, "")
    assert told in said.error
    assert not Path("store").exists()
