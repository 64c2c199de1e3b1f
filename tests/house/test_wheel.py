"""The wheel, installed where nothing of the repository is."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from drivers import printed_by
from places import REPOSITORY

_KEYS = """
import json, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
sys.path.insert(0, ".")
from own_loss import ShiftedDpo
from own_step import drop_long
from own_checker import ShortAnswer
import pipeline, steps
from pipeline import File
from steps.load_preferences import load_preferences
from steps.load_prompts import load_prompts
from steps.import_model import import_model
from steps.judge import judge
from steps.sample_rollouts import sample_rollouts
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.training.config import PreferenceConfig

base = import_model(File("x.gguf"))
tokens = tokenize_preferences(drop_long(load_preferences(File("pairs.jsonl")), 100), base)
model = train_on_pairs(tokens["train"], base, PreferenceConfig(loss=ShiftedDpo()))
answers = sample_rollouts(load_prompts(File("questions.jsonl"))["train"], model)
found, waiting = {}, [judge(answers, ShortAnswer())]
while waiting:
    step = waiting.pop()
    found[step.name] = step.fingerprint
    waiting += [used.step for used in step.inputs]
print(json.dumps({"keys": found, "home": str(Path(pipeline.__file__).parents[1])}))
"""


def build(
    folder: Path, edits: Mapping[str, tuple[str, str]] | None = None, *moved: tuple[str, str]
) -> Path:
    """The wheel, built from a copy of what is tracked, with a text replaced in each edited file,
    and modules that lie elsewhere; all public names can still be imported from the old place."""
    source = folder / "source"
    for name in ("pipeline", "steps", "experiments", "conf"):
        shutil.copytree(REPOSITORY / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(REPOSITORY / name, source / name)
    for name, (old, new) in (edits or {}).items():
        replace_in(source / name, old, new)
    for old, new in moved:
        files = [source / f"{name.replace('.', '/')}.py" for name in (old, new)]
        files[0].rename(files[1])
        files[0].write_text(f"from {new} import *\n")
    wheels = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run(
        [*wheels, "--wheel-dir", str(folder), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("temper_ml-*.whl")
    return built


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new), "utf-8")


def install(wheel: Path, site: Path) -> None:
    """In place of an earlier one."""
    for old in (*site.glob("temper_ml-*"), *map(site.joinpath, ("pipeline", "steps"))):
        shutil.rmtree(old, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def new_environment(folder: Path) -> tuple[Path, Path]:
    """An interpreter that has the libraries of this one, and its folder of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    libraries = [entry for entry in sys.path if "site-packages" in Path(entry).parts]
    (site / "libraries.pth").write_text("\n".join(libraries))
    return folder / "bin/python", site


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the wheel, and the libraries of this one."""
    command, site = new_environment(tmp_path_factory.mktemp("installed"))
    install(wheel, site)
    return command


def called(python: Path | str, *words: str, folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TEMPER_STORE")}
    done = subprocess.run(
        [str(python), *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_code_recipes_configs_and_the_template(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "pipeline", "steps", "experiments", "conf"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    wanted = {f"experiments/{n}" if n.startswith("conf/") else n for n in tracked}
    assert wanted <= held
    assert not [name for name in held if "__pycache__" in name or name.startswith("tests/")]


@pytest.mark.slow
def test_a_recipe_is_planned_outside_the_repository(python: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "p", "chosen": "c", "rejected": "r"}\n')
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    arguments = ("--data", "pairs.jsonl", "--model", "x.gguf", "--plan")
    shown = called(python, "-m", "pipeline", "run", "dpo", *arguments, folder=tmp_path)
    assert "10 to run" in shown


@pytest.mark.slow
def test_keys_do_not_depend_on_where_temper_is_installed(python: Path, tmp_path: Path) -> None:
    """Those of steps, losses and checkers of one's own neither, which use the code of Temper's."""
    project = tmp_path / "project"
    called(python, "-m", "pipeline", "init", str(project), folder=tmp_path)
    (project / "x.gguf").write_bytes(b"GGUF")
    (project / "keys.py").write_text(_KEYS)
    installed = json.loads(called(python, "keys.py", folder=project))
    here = json.loads(printed_by(project / "keys.py", path=str(REPOSITORY)))
    assert installed["home"] != here["home"] == str(REPOSITORY)
    assert installed["keys"] == here["keys"]


_DPO = """
import json, sys
from pipeline import File, Store, run
from pipeline.plan.planning import make_plan
from steps.data.formats.choice import FormatChoice
from steps.data.load.config import LoadConfig
from steps.data.tokens.config import TokenizeConfig
from steps.evaluate import evaluate
from steps.evaluation.config import EvaluateConfig
from steps.init_model import LlamaShape, init_model
from steps.load_preferences import load_preferences
from steps.tokenize_preferences import tokenize_preferences
from steps.train_on_pairs import train_on_pairs
from steps.training.config import PreferenceConfig
from mine import count_lines

columns = FormatChoice("preference", {"prompt": "question", "chosen": "good", "rejected": "bad"})
base = init_model(LlamaShape(hidden_size=16, layers=1, heads=2, feed_forward=32))
pairs = load_preferences(File("pairs.jsonl"), config=LoadConfig(test_fraction=0.2, format=columns))
tokens = tokenize_preferences(pairs, base, TokenizeConfig(max_length=64, max_prompt_length=32))
model = train_on_pairs(tokens["train"], base, PreferenceConfig())
evaluation = evaluate(tokens["test"], model, EvaluateConfig(sample_prompts=0))
roots = {"after DPO": evaluation, "lines": count_lines(File("pairs.jsonl"))}
store = Store("store")
missing = [p.step.name for p in make_plan(roots, store).steps if p.state.name != "CACHED"]
if "run" in sys.argv:
    run(roots, store, verbosity=-1)
print(json.dumps(missing))
"""
_MINE = """
from pipeline import File, Metrics, Output, step

@step
def count_lines(out: Output, file: File) -> Metrics:
    return {"lines": len(open(file.url).readlines())}
"""
_LOSS = "logistic(chosen - rejected,"


@pytest.mark.slow
def test_an_upgrade_reruns_the_steps_whose_release_was_raised(wheel: Path, tmp_path: Path) -> None:
    """And no other, however their code has changed, and wherever the classes of arguments lie; an
    edited installation counts by its code."""
    python, site = new_environment(tmp_path / "installed")
    shutil.copy(REPOSITORY / "examples/data/pairs.jsonl", tmp_path / "pairs.jsonl")
    (tmp_path / "dpo.py").write_text(_DPO)
    (tmp_path / "mine.py").write_text(_MINE)

    def missing(*words: str) -> list[str]:
        return json.loads(called(python, "dpo.py", *words, folder=tmp_path).splitlines()[-1])

    install(wheel, site)
    assert len(missing("run")) == 7
    assert missing() == []
    loss = site / "steps/losses/dpo.py"
    replace_in(loss, _LOSS, f"logistic(  {_LOSS.partition('(')[2]}  # as in equation 7\n")
    assert missing() == []  # not as installed, so the trace counts, which holds
    replace_in(loss, "chosen - rejected,", "chosen - 2 * rejected,")
    assert missing() == ["train_dpo", "evaluate"]

    refactored = {"steps/losses/dpo.py": (_LOSS, "logistic(-(rejected - chosen),")}
    moved = (
        ("steps.evaluation.config", "steps.evaluation.settings"),
        ("pipeline.dag.inputs", "pipeline.dag.sources"),
    )
    install(build(tmp_path / "refactored", refactored, *moved), site)
    assert missing() == []
    changed = {
        "steps/losses/dpo.py": (_LOSS, "logistic(2 * (chosen - rejected),"),
        "steps/releases.json": ('"train_dpo": "1"', '"train_dpo": "2"'),
    }
    install(build(tmp_path / "changed", changed), site)
    assert missing("run") == ["train_dpo", "evaluate"]
    assert missing() == []
    install(wheel, site)
    assert missing() == []  # the earlier release's results are still there
