"""Mistakes in the YAML files of an experiment's own ``conf``: one line, with what was meant."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command_line import script

from pipeline import TemperError, experiment
from pipeline.tuning.driver import TUNING, Options

EXPERIMENT = """
from dataclasses import dataclass, field
from pipeline import Metrics, Output, step
from pipeline.experiment import ExperimentConfig, main

@dataclass(frozen=True)
class Size:
    pass

@dataclass(frozen=True)
class Small(Size):
    width: int = 1

@dataclass(frozen=True)
class Big(Size):
    width: int = 9
    deep: bool = True

@dataclass
class Config(ExperimentConfig):
    n: int = 3
    model: Size = field(default_factory=Small)
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)

@step
def work(out: Output, n: int, model: Size) -> Metrics:
    return {"n": n, "width": model.width}

def mine(cfg: Config) -> dict:
    return {"made": work(cfg.n, cfg.model)}

if __name__ == "__main__":
    main(mine, choices={"model": {"small": Small, "big": Big}})
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("conf/model").mkdir(parents=True)
    path = tmp_path / "mine.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        # what is no YAML
        ("model:\n\twidth: 3\n", "found character '\\t'"),
        ("n: 4\nn: 5\n", "found duplicate key n"),
        # a setting of the class that is none, or has another type
        ("jobs: 2\nnote: a\nnn: 4\n", "mine.yaml: unknown config key 'nn'; did you mean n?"),
        (
            "model:\n  widht: 4\n",
            "mine.yaml: unknown config key 'model.widht'; did you",
        ),
        ("n: four\n", "In 'mine': ValidationError raised while composing config:; Value 'four'"),
        ("model:\n  _target_: mine.Big\n", "mine.yaml: unknown config key 'model._target_'"),
        ("jobs: 0\n", "invalid configuration: jobs must be at least 1"),
        # references
        ("n: 4\nnote: ${m}\n", "Interpolation key 'm' not found; full_key: note"),
        # defaults lists
        ("defaults: [_self_]\nn: 4\n", "defaults list of the config leaves out schema"),
        ("defaults: [schema, bas]\n", "Could not load 'bas'"),
        (
            "defaults: [schema, modle: big]\n",
            "modle=big: there is no choice modle; did you mean m",
        ),
        ("defaults: [schema, override model: bigg]\n", "unknown choice model=bigg"),
    ],
)
def test_a_mistake_in_an_own_config_is_one_line(
    mine: Path, content: str | bytes, told: str
) -> None:
    Path("conf/mine.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert told in script(mine, "--plan").error


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "defaults: [big, _self_]\nwidht: 7\n",
            "own.yaml: unknown config key 'model.widht'",
        ),
        (
            "defaults: [big, _self_]\nwidth: x\n",
            "In 'model/own': ValidationError raised while composing config:; Value 'x'",
        ),
        ("width: 7\n", "Key 'width' not in 'Size'; full_key: model.width"),
        (b"a: \xf6\n", "UnicodeDecodeError: 'utf-8' codec can't decode"),
    ],
)
def test_a_mistake_in_an_own_option_is_one_line(
    mine: Path, content: str | bytes, told: str
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    Path("conf/model/own.yaml").write_bytes(data)
    assert told in script(mine, "--plan", "model=own").error


def test_a_study_keeps_the_config_that_it_began_with(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def search(configure: Callable[[Any], Any], *others: Any, **more: Any) -> None:
        for edited in ("n: 5\n", "n: [\n"):
            arguments = configure({"model.width": 2})["made"].arguments
            found.append((arguments["n"], arguments["model"].width))
            Path("conf/mine.yaml").write_text(edited)
        raise TemperError("enough")

    Path("conf/mine.yaml").write_text("n: 4\n")
    monkeypatch.setenv(TUNING, json.dumps(asdict(Options("made.n", 2))))
    monkeypatch.setattr(experiment, "search", search)
    assert "enough" in script(mine, "model.width=1,2").error
    assert found == [(4, 2), (4, 2)]


def test_a_config_that_would_be_ignored_is_refused(mine: Path) -> None:
    """Without it, the experiment would run with other settings than its author has written."""
    Path("conf/mine.yml").write_text("n: 4\n")
    Path("inner").mkdir()
    script(Path(shutil.copy(mine, "inner")), "--plan")  # whose folder has no such file
    with pytest.raises(TemperError, match=r"mine\.yml would not be read; rename it"):
        script(mine, "--plan")
    Path("conf/mine.yaml").symlink_to("unmounted/mine.yaml")
    with pytest.raises(TemperError, match=r"mine\.yaml, a link to unmounted/mine\.yaml, cannot be"):
        script(mine, "--plan")
    Path("conf/mine.yaml").unlink()
    Path("conf/mine.yaml").mkdir()
    with pytest.raises(TemperError, match=r"mine\.yaml is no file that can be read"):
        script(mine, "--plan")
