"""``temper init``: a project to begin from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import temper
from places import REPOSITORY


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_project_has_what_is_ones_own_and_its_name(desk: Path) -> None:
    said = temper("init", "haiku")
    assert said.status == 0, said.err
    made = {str(path.relative_to("haiku")) for path in Path("haiku").rglob("*") if path.is_file()}
    own = {"experiment.py", "own_step.py", "own_loss.py", "own_checker.py", "pairs.jsonl"}
    around = {"README.md", "pyproject.toml", ".gitignore", ".github/workflows/test.yml"}
    assert own | around | {"tests/test_project.py"} <= made
    assert Path("haiku/README.md").read_text().startswith("# haiku\n")
    assert 'name = "haiku"' in Path("haiku/pyproject.toml").read_text()
    assert "my-project" not in "".join(Path("haiku", name).read_text() for name in made)


def test_nothing_is_overwritten(desk: Path) -> None:
    Path("haiku").mkdir()
    Path("haiku/README.md").write_text("mine")
    assert "haiku is there already, and is not empty" in temper("init", "haiku").error
    assert [path.name for path in Path("haiku").iterdir()] == ["README.md"]


def test_a_name_that_no_package_can_have_is_refused(desk: Path) -> None:
    assert "is no name for a project" in temper("init", "my project!").error
    assert "Temper has a package pipeline, too" in temper("init", "pipeline").error
    assert not list(desk.iterdir())


@pytest.mark.slow
def test_the_tests_of_a_project_pass(desk: Path) -> None:
    assert temper("init", "haiku").status == 0
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=desk / "haiku",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout
