"""Scratch of interrupted attempts: when its results are used, and when they are not."""

import errno
import json
import shutil
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import TemperError
from pipeline.dag.digests import file_digests
from pipeline.observed import observation, scratch_dependencies
from pipeline.observed.discovery import Home
from pipeline.observed.observation import Observation
from pipeline.observed.path_filter import Rules
from pipeline.observed.scratch_dependencies import go_on_from, has_results
from pipeline.store.layout import RECORDS


def kept(folder: Path, read: dict[Path, str]) -> None:
    """What an attempt wrote that read these files with these digests."""
    (folder / "rules").write_text(json.dumps(astuple(Rules((), (), "app", "/"))))
    events = [json.dumps(["read", str(path), digest]) for path, digest in read.items()]
    (folder / "events").write_text("".join(f"{event}\n" for event in events) + '["read", "/to')
    (folder / "marks").touch()
    (folder / "modules").touch()


def go_on(scratch: Path, read: dict[Path, str] | None = None, is_shared: bool = False) -> Any:
    """Go on from scratch with an attempt that reads these files, and whose end is torn."""
    observing: Any = SimpleNamespace(keep=lambda folder: kept(folder, read or {}))
    home = Home("app.steps", str(scratch.parent))
    return go_on_from(scratch, observing, home, is_versioned=False, is_shared=is_shared)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """With a result of an attempt that found no file at a place."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    go_on(folder, {tmp_path / "rule.txt": "absent"})
    (folder / "result").touch()
    return folder


def test_what_is_unchanged_is_a_dependency_of_what_goes_on(scratch: Path) -> None:
    found, changes = go_on(scratch)
    assert (found.discovered.files, changes) == ({"rule.txt": "absent"}, [])
    assert has_results(scratch)
    found, _ = go_on(scratch)
    assert found.discovered.files == {"rule.txt": "absent"}, "after two interruptions, too"


def test_what_has_changed_empties_scratch(scratch: Path) -> None:
    (scratch.parent / "rule.txt").touch()
    found, changes = go_on(scratch)
    assert changes == ["rule.txt, which it looked for, is there now"]
    assert not found.discovered
    assert not has_results(scratch)


def test_an_end_while_scratch_is_emptied_leaves_no_results_without_records(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process were killed at each of the removals."""
    (scratch / "another").touch()
    (scratch.parent / "rule.txt").touch()
    remove = scratch_dependencies._remove

    def killed(entry: Path) -> None:
        remove(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(scratch_dependencies, "_remove", killed)
    inner = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(sorted(inner(self))))  # records first
    while has_results(scratch):
        with pytest.raises(KeyboardInterrupt):
            go_on(scratch)
        assert (scratch / RECORDS).exists() or not has_results(scratch)


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
    found, changes = go_on(scratch)
    assert (changes, bool(found.discovered)) == ([], False)
    assert len(list((scratch / RECORDS).iterdir())) == 1


def test_results_without_any_record_are_not_used(scratch: Path) -> None:
    """A step has emptied its scratch, with the records of what it had read before."""
    shutil.rmtree(scratch / RECORDS)
    assert go_on(scratch)[1] == ["no record says what the results in it depend on"]
    assert not has_results(scratch)


def test_records_that_could_not_be_written_are_not_trusted(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, line: bytes) -> int:
        raise OSError(errno.ENOSPC, "the disk is full")

    record = next((scratch / RECORDS).iterdir())
    running = Observation(str(scratch.parent), Rules((), (), "app", "/"))
    running._kept = record
    monkeypatch.setattr(observation, "_append", full)
    running._keep(running.events, ["read", str(scratch.parent / "other.txt"), None])
    assert go_on(scratch)[1] == [f"the records in {record} are damaged"]


def test_a_file_that_cannot_be_read_is_in_the_records(scratch: Path) -> None:
    record = next((scratch / RECORDS).iterdir())
    running = Observation(str(scratch.parent), Rules((), (), "app", "/"))
    running._kept = record
    gone = str(scratch.parent / "gone.txt")
    (record / "events").write_text("")
    running._keep(running.events, ["read", gone, [1, 2, 3, 4, 5]])
    assert go_on(scratch)[1] == ["gone.txt, which it read, changed while it ran"]


def test_two_checkouts_with_different_code_do_not_lose_each_other_s_results(tmp_path: Path) -> None:
    scratch = tmp_path / "store" / "0123abcd"
    scratch.mkdir(parents=True)
    checkouts = [tmp_path / "one", tmp_path / "other"]

    def attempt(checkout: Path, rule: str) -> list[str]:
        """Go on, and leave a result that depends on the checkout's rule; return what was there."""
        checkout.mkdir(exist_ok=True)
        (checkout / "rule.txt").write_text(rule)
        read = {checkout / "rule.txt": file_digests([str(checkout / "rule.txt")])[0]}
        observing: Any = SimpleNamespace(keep=lambda folder: kept(folder, read))
        home = Home("app.steps", str(checkout))
        go_on_from(scratch, observing, home, is_versioned=False, is_shared=False)
        found = sorted(path.name for path in scratch.iterdir() if path.name != RECORDS)
        (scratch / f"result of {rule}").touch()
        return found

    assert attempt(checkouts[0], "a") == []
    assert attempt(checkouts[1], "b") == [], "another rule, so another result"
    assert attempt(checkouts[0], "a") == ["result of a"]
    assert attempt(checkouts[1], "b") == ["result of b"]
    assert attempt(checkouts[0], "b") == ["result of b"], "equal in what counts"
    assert attempt(checkouts[0], "c") == []
