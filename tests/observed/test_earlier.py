"""Scratch of interrupted attempts: when its results are used, and when they are not."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import TemperError
from pipeline.code.walk import NO_CODE
from pipeline.observed.discovery import Home
from pipeline.observed.earlier import go_on_from, has_results
from pipeline.store.layout import RECORDS


def kept(folder: Path, read: dict[Path, str]) -> None:
    """What an attempt wrote that read these files with these digests."""
    (folder / "rules").write_text(json.dumps([[], [], "app", "/"]))
    events = [json.dumps(["read", str(path), digest]) for path, digest in read.items()]
    (folder / "events").write_text("".join(f"{event}\n" for event in events) + '["read", "/to')
    (folder / "modules").touch()


def go_on(scratch: Path, read: dict[Path, str] | None = None, is_shared: bool = False) -> Any:
    """Go on from scratch with an attempt that reads these files, and whose end is torn."""
    observation: Any = SimpleNamespace(keep=lambda folder: kept(folder, read or {}))
    home = Home("app.steps", str(scratch.parent))
    return go_on_from(scratch, observation, home, NO_CODE, is_versioned=False, is_shared=is_shared)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """With a result of an attempt that found no file at a place."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    go_on(folder, {tmp_path / "rule.txt": "absent"})
    (folder / "result").touch()
    return folder


def test_what_is_unchanged_is_a_dependency_of_what_goes_on(scratch: Path) -> None:
    earlier, changes = go_on(scratch)
    assert (earlier.discovered.files, changes) == ({"rule.txt": "absent"}, [])
    assert has_results(scratch)
    earlier, _ = go_on(scratch)
    assert earlier.discovered.files == {"rule.txt": "absent"}, "after two interruptions, too"


def test_what_has_changed_empties_scratch(scratch: Path) -> None:
    (scratch.parent / "rule.txt").touch()
    earlier, changes = go_on(scratch)
    assert changes == ["rule.txt, which it looked for, is there now"]
    assert not earlier.discovered
    assert not has_results(scratch)


def test_on_several_nodes_what_has_changed_is_an_error(scratch: Path) -> None:
    (scratch.parent / "rule.txt").touch()
    with pytest.raises(TemperError, match=r"is there now, and results in .* depend on it; undo"):
        go_on(scratch, is_shared=True)
    assert has_results(scratch)


def test_damaged_records_empty_scratch_and_those_of_no_step_do_not(scratch: Path) -> None:
    (begun := scratch / RECORDS / "begun").mkdir()
    (begun / "rules").write_text("")
    assert go_on(scratch)[1] == []
    (begun / "modules").touch()
    assert go_on(scratch)[1] == [f"the records in {begun} are damaged"]
    assert not has_results(scratch)


def test_records_without_results_are_those_of_nothing(scratch: Path) -> None:
    (scratch / "result").unlink()
    (scratch.parent / "rule.txt").touch()
    earlier, changes = go_on(scratch)
    assert (changes, bool(earlier.discovered)) == ([], False)
    assert len(list((scratch / RECORDS).iterdir())) == 1
