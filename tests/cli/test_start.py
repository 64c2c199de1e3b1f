"""``temper init``: a project to begin from."""

import errno
import inspect
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import script, temper
from places import REPOSITORY
from workers_here import instead_of_processes


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


def test_an_empty_folder_may_be_there(desk: Path) -> None:
    Path("haiku").mkdir()
    assert temper("init", "haiku").status == 0


def test_nothing_is_overwritten(desk: Path) -> None:
    Path("haiku").mkdir()
    Path("haiku/README.md").write_text("mine")
    assert "haiku is there already, and is not empty" in temper("init", "haiku").error
    assert [path.name for path in Path("haiku").iterdir()] == ["README.md"]


@pytest.mark.parametrize("words", [("init", "mine"), ("recipes", "copy", "arithmetic", "mine.py")])
def test_a_full_disk_leaves_nothing_half_and_is_named(
    desk: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is half there would be in the way of the same command, once there is room."""
    before = {*desk.iterdir()}
    write = Path.write_text
    count: list[Path] = []

    def full(path: Path, text: str, *others: Any) -> int:
        count.append(path)
        if len(count) == 2:
            path.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, *others)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        told = "no space is left on a disk ([Errno 28] No space left on device); make room"
        assert told in temper(*words).error
    assert {*desk.iterdir()} - before <= {desk / "conf"}
    assert temper(*words).status == 0


def test_a_name_that_no_package_can_have_is_refused(desk: Path) -> None:
    assert "is no name for a project" in temper("init", "my project!").error
    assert "Temper has a package pipeline, too" in temper("init", "pipeline").error
    assert not list(desk.iterdir())


def test_the_tests_of_a_project_pass_in_this_process(
    desk: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert temper("init", "haiku").status == 0
    instead_of_processes(monkeypatch)
    monkeypatch.syspath_prepend(desk / "haiku")
    for name in ("own_step", "own_loss", "own_checker"):
        monkeypatch.setitem(sys.modules, name, None)  # what is imported goes when the test ends
        del sys.modules[name]
    tests = runpy.run_path("haiku/tests/test_project.py")
    monkeypatch.chdir("haiku")
    names = [name for name in tests if name.startswith("test_")]
    assert len(names) >= 4
    for name in names:
        monkeypatch.setitem(tests[name].__globals__, "subprocess", SimpleNamespace(run=_run))
        fixtures = {"tiny_model": tiny_model, "tmp_path": desk / name}
        wanted = inspect.signature(tests[name]).parameters
        (desk / name).mkdir()
        tests[name](**{fixture: fixtures[fixture] for fixture in wanted})


def _run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
    said = script(Path(command[1]).absolute(), *command[2:])
    return subprocess.CompletedProcess(command, said.status, said.out, said.err)


@pytest.mark.attack
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
