"""The Python of an experiment, as the docs print it, in one file; and the how-to's step."""

import json
import re
from pathlib import Path

import pytest
from command_line import script
from drivers import printed_by
from places import REPOSITORY, model_for_plans
from pyarrow import parquet


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Path:
    """A folder with a script of the experiment and its step, and the files that they name."""
    page = (repository / "docs" / "python.md").read_text().partition("## Steps in a notebook")[0]
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    (tmp_path / "readme.py").write_text("\n".join(snippets))
    rows = [{"prompt": f"{n}?", "chosen": "Yes. " * n, "rejected": "No."} for n in range(40)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model_for_plans(tmp_path / "MODEL")
    return tmp_path


def test_the_experiment_is_planned_with_all_its_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TEMPER_PLAN_ONLY", "1")
    shown = script(folder / "readme.py").out
    assert "10 to run, 0 cached" in shown
    assert "beta=0.05" in shown


def test_the_step_of_one_s_own_keeps_both_splits(folder: Path) -> None:
    """It is in a script of one's own, and a worker imports that."""
    source = (folder / "readme.py").read_text()
    guard = source.index("if __name__")
    end = source.index("\n\n", guard)
    own = (
        'if __name__ == "__main__":\n    run([drop_long(load_preferences(File("pairs.jsonl")))])\n'
    )
    moved = f"{source[:guard]}{source[end:]}\n\n{own}".replace(
        "limit: int = 2000", "limit: int = 200"
    )
    (folder / "own.py").write_text(moved)
    printed_by(folder / "own.py", path=str(REPOSITORY))
    (made,) = (folder / "store" / "attempts" / "drop_long").glob("*/*/content")
    for split in ("train", "test"):
        rows = parquet.read_table(made / split / "pairs-00000.parquet").to_pylist()
        assert rows
        assert all(len(str(row["chosen"])) <= 200 for row in rows)


@pytest.mark.usefixtures("workers_here")
def test_the_how_to_s_step_runs(
    folder: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    page = (repository / "docs" / "howto" / "own_step.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "lengths.py").write_text(snippet)
    said = script(folder / "lengths.py").out.splitlines()
    assert any(line.startswith("{'rows': ") and "} [" in line for line in said)
