"""The scripts of ``examples/``, as a reader runs them, on a store that they share."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import script
from places import REPOSITORY
from waiting import HANGS_SECONDS
from workers_here import instead_of_processes

EXAMPLES = REPOSITORY / "examples"
SCRIPTS = sorted(
    path.stem
    for path in EXAMPLES.glob("*.py")
    if path.stem != "sums" and not path.stem.endswith("_in_one_file")
)
SHARED = ("sums", "dpo_on_my_rows")
"""What examples import from each other."""


def test_the_readme_lists_every_example() -> None:
    readme = (EXAMPLES / "README.md").read_text("utf-8")
    assert len(SCRIPTS) == 8
    assert not [name for name in SCRIPTS if f"| [`{name}.py`]({name}.py) |" not in readme]


def test_an_example_says_how_it_is_run() -> None:
    for name in SCRIPTS:
        assert f"    python examples/{name}.py\n" in (EXAMPLES / f"{name}.py").read_text("utf-8")


@pytest.mark.slow
def test_every_example_runs_and_shares_what_the_others_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process of the tests, on a sixth of the rows; in one of its own, a script finds what
    they made."""
    shown = {}
    examples = tmp_path / "examples"
    shutil.copytree(EXAMPLES, examples, ignore=shutil.ignore_patterns("__pycache__"))
    for rows in (examples / "data").iterdir():
        lines = rows.read_text("utf-8").splitlines(keepends=True)
        rows.write_text("".join(lines[: len(lines) // 6]), "utf-8")
    grpo = examples / "grpo.py"  # takes all questions in each iteration
    grpo.write_text(grpo.read_text("utf-8").replace("prompts=36", "prompts=6"), "utf-8")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        instead_of_processes(patch)
        for name in SCRIPTS:
            for module in SHARED:
                patch.delitem(sys.modules, module, raising=False)
            ran = script(examples / f"{name}.py")
            assert ran.status == 0, ran.out + ran.err
            shown[name] = ran.out
    made = sorted(path.name for path in (tmp_path / "store" / "attempts" / "init_model").iterdir())
    assert len(made) == 1
    assert "off by 2" in shown["own_checker"]
    assert "parameters" in shown["sweep"]
    assert "nothing to run" in _run(examples / "own_loss.py", tmp_path)


def _run(example: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=4 * HANGS_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
