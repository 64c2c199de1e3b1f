"""What a step leaves behind when it returns: an artifact is whole, or there is none."""

import gzip
import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_steps import write
from leaving_steps import TEXT, close_streams, fork, leave_open, write_over
from pyarrow.parquet import read_table
from rich.console import Console
from waiting import HANGS_SECONDS

from pipeline import Step, Store, TemperError, run
from pipeline.dag.files import FileEntry, describe
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.worker import content as worker_content
from pipeline.worker.calling import checked_metrics
from pipeline.worker.content import describe_files

pytestmark = pytest.mark.real_workers


def make(store: Store, step: Step) -> str:
    """Run a step; return what the screen shows."""
    console = Console(file=(screen := io.StringIO()), width=200)
    run({"result": step}, store, console=console)
    return screen.getvalue()


def failure(store: Store, step: Step) -> str:
    console = Console(file=(screen := io.StringIO()), width=400)
    with pytest.raises(RunFailed):
        run({"result": step}, store, console=console)
    return screen.getvalue()


def content(store: Store, name: str) -> Path:
    (made,) = Catalog(store).history(name)
    return Path(store.content_path(made))


READ: dict[str, Callable[[Path], str]] = {
    "text": Path.read_text,
    "circle": Path.read_text,
    "gzip": lambda path: gzip.open(path, "rt").read(),  # noqa: SIM115
    "zip": lambda path: zipfile.ZipFile(path).read("text").decode(),
    "parquet": lambda path: read_table(path)["text"][0].as_py(),
}


@pytest.mark.parametrize("how", READ)
def test_a_file_that_a_step_did_not_close_is_whole(how: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    make(store, leave_open(how))
    assert READ[how](content(store, "leave_open") / "content") == TEXT


@pytest.mark.parametrize("how", ["return", "exit", "raise"])
def test_a_fork_that_leaves_the_step_function_is_not_the_worker(how: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    make(store, fork(how))
    (made,) = Catalog(store).history("fork")
    assert made.metrics == {"who": "parent"}
    assert (content(store, "fork") / "a.txt").read_text() == "made"


def test_an_output_that_is_still_written_to_is_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a thread or a program that the step started: here, right after the file was read."""

    def describe_and_write(path: Path) -> FileEntry:
        found = describe(path)
        open_file.write("more")
        open_file.flush()
        return found

    monkeypatch.setattr(worker_content, "describe", describe_and_write)
    said = "a.txt was written after the step had returned"
    with open(tmp_path / "a.txt", "w") as open_file, pytest.raises(TemperError, match=said):
        describe_files(tmp_path)


def test_every_file_is_flushed_and_several_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One flush after the other takes 3 ms for each of many small files."""
    flushed, another = list[int](), threading.Barrier(2)

    def flush(descriptor: int) -> None:
        flushed.append(os.fstat(descriptor).st_ino)
        another.wait(timeout=HANGS_SECONDS)

    monkeypatch.setattr(os, "fsync", flush)
    for name in "abcd":
        (tmp_path / name).write_text(name)
    assert describe_files(tmp_path).keys() == set("abcd")
    assert sorted(flushed) == sorted(path.stat().st_ino for path in tmp_path.iterdir())


def test_a_hard_link_costs_no_other_file_of_the_output(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    (tmp_path / "scratch").write_text("linked")
    (out / "a").hardlink_to(tmp_path / "scratch")
    (out / ".a.copy").write_text("another")
    assert describe_files(out).keys() == {"a", ".a.copy"}
    assert (out / ".a.copy").read_text() == "another"
    assert (out / "a").stat().st_nlink == 1


def test_a_step_may_close_the_standard_streams(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    make(store, close_streams())
    assert "there is no such row; name another" in failure(store, close_streams(fails=True))


def test_a_write_into_an_input_that_hides_its_time_is_found(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    shown = failure(store, write_over(write()))
    assert "a.txt in the input from write was written while the step ran" in shown


def test_two_keys_that_are_one_in_json_are_refused() -> None:
    assert checked_metrics("count", {"of": {1: 2}}) == {"of": {1: 2}}
    with pytest.raises(TemperError, match="two of its keys are '1' in JSON"):
        checked_metrics("count", {"of": {1: 2, "1": 3}})
