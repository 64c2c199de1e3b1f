"""Scratch that survives its machine. A machine is a folder here, except where a process matters."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest
from job_steps import count_to, leave_once, lines
from numbers_lab import workers
from places import SUPPORT
from rich.console import Console
from waiting import HANGS_SECONDS, held, wait_until

from pipeline import Store, run
from pipeline.store import scratch_snapshots as module
from pipeline.store.objects import Objects, open_objects
from pipeline.store.scratch_snapshots import Staging

REMOTE = "/staging/scratch/step/key"


@pytest.fixture
def objects() -> Iterator[Objects]:
    yield open_objects("memory://staging")[0]
    fsspec.filesystem("memory").store.clear()


def staging(
    objects: Objects, machine: Path, epoch: int = 0, node: int = 0, nodes: int = 1
) -> Staging:
    return Staging(objects, machine / f"key-{epoch}", REMOTE, epoch, node, nodes)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(text)
        os.replace(path.with_suffix(".new"), path)


def read(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_another_machine_begins_with_what_was_kept_last(objects: Objects, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = staging(objects, one)
    first.restore()
    assert not first.is_used
    write(one / "key-0", step_1__state="1")
    assert first.keep()
    write(one / "key-0", step_2__state="2", log="a")
    shutil.rmtree(one / "key-0" / "step_1")
    assert first.keep()
    write(one / "key-0", log="never kept")
    second = staging(objects, other)
    second.restore()
    assert second.is_used
    assert read(other / "key-0") == {"step_2/state": "2", "log": "a"}
    assert read(one / "key-0")["log"] == "never kept"


def test_a_machine_that_was_not_the_last_takes_what_the_last_one_kept(
    objects: Objects, tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = staging(objects, one)
    write(one / "key-0", count="1")
    first.keep()
    second = staging(objects, other)
    second.restore()
    write(other / "key-0", count="2")
    second.keep()
    staging(objects, one).restore()
    assert read(one / "key-0") == {"count": "2"}
    write(one / "key-0", count="3")  # and then it is killed
    staging(objects, one).restore()
    assert read(one / "key-0") == {"count": "3"}, "nobody was here since"


def test_while_a_step_runs_its_scratch_is_kept_at_intervals_also_after_a_failure(
    objects: Objects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.01)
    one, other = tmp_path / "one", tmp_path / "other"
    first = staging(objects, one)
    first.restore()
    upload, failures = first.keep, [OSError("the bucket is away")]

    def keep() -> bool:
        if failures:
            raise failures.pop()
        return upload()

    monkeypatch.setattr(first, "keep", keep)
    write(one / "key-0", state="1")
    threads = set(threading.enumerate())
    with first.running():
        wait_until(lambda: first.is_used)
    wait_until(lambda: threads >= set(threading.enumerate()), "it keeps no more")
    second = staging(objects, other)
    second.restore()
    assert read(other / "key-0") == {"state": "1"}
    assert "scratch could not be kept: the bucket is away" in capsys.readouterr().out


def test_what_a_step_wrote_before_it_failed_is_kept_and_nothing_after(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", HANGS_SECONDS)
    first, threads = staging(objects, tmp_path / "one"), set(threading.enumerate())
    write(tmp_path / "one" / "key-0", state="1")
    with pytest.raises(ValueError, match="the loss is nan"), first.running():
        raise ValueError("the loss is nan")
    wait_until(lambda: threads >= set(threading.enumerate()), "it keeps no more")
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"state": "1"}


def test_what_is_there_is_not_sent_again_and_what_is_not_needed_goes(
    objects: Objects, tmp_path: Path
) -> None:
    sent: list[str] = []
    put = objects.put
    objects.put = lambda files: (sent.extend(files), put(files))[1]  # type: ignore[method-assign]
    first = staging(objects, tmp_path)
    write(tmp_path / "key-0", large="x" * 10**6, count="0")
    for count in range(1, 6):
        write(tmp_path / "key-0", count=str(count))
        assert first.keep()
        assert first.keep()  # nothing has changed
    assert len(sent) == 1 + 5
    kept = objects.sizes(REMOTE)
    assert len([name for name in kept if name.endswith(".json")]) == 2
    assert len(kept) == 2 + 1 + 2  # two snapshots, the large file, two counts


def test_a_folder_is_kept_as_it_was_at_one_moment(objects: Objects, tmp_path: Path) -> None:
    """Two files that are always changed together are never kept apart."""
    first, over = staging(objects, tmp_path), threading.Event()
    write(tmp_path / "key-0", a="0", b="0")

    def change() -> None:
        for count in range(1, 100_000):
            write(tmp_path / "key-0", a=str(count), b=str(count))
            if over.wait(0.05):
                return

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for machine in range(20):
            if first.keep():
                other = tmp_path / f"other-{machine}"
                staging(objects, other).restore()
                state = read(other / "key-0")
                assert state["a"] == state["b"] or int(state["a"]) == int(state["b"]) + 1
    finally:
        over.set()
        changing.join()
    assert first.keep()
    assert first.is_used


@pytest.mark.parametrize("damage", [b"", b"other bytes", None])
def test_of_a_damaged_copy_the_one_before_is_taken(
    objects: Objects, tmp_path: Path, damage: bytes | None
) -> None:
    first = staging(objects, tmp_path / "one")
    write(tmp_path / "one" / "key-0", count="1")
    first.keep()
    before = objects.sizes(REMOTE).keys()
    write(tmp_path / "one" / "key-0", count="2")
    first.keep()
    (blob,) = [n for n in objects.sizes(REMOTE).keys() - before if not n.endswith(".json")]
    if damage is None:
        objects.remove(f"{REMOTE}/{blob}")
    else:
        objects.replace(f"{REMOTE}/{blob}", damage)
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"count": "1"}


@pytest.mark.parametrize(
    "snapshot",
    [
        b'{"count": ', b"[]", b'{"count": 1}', b'{"a": {"folder": 1}}',
        rb'{"a\u0000b": {"link": "x"}}', rb'{"a": {"link": "x\u0000"}}',
        b'{"../../../up": {"folder": true}}',
    ],
)  # fmt: skip
def test_of_a_damaged_snapshot_the_one_before_is_taken(
    objects: Objects, tmp_path: Path, snapshot: bytes
) -> None:
    first = staging(objects, tmp_path / "one")
    for count in "12":
        write(tmp_path / "one" / "key-0", count=count)
        first.keep()
    objects.replace(f"{REMOTE}/0/0/00000002.json", snapshot)
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"count": "1"}
    assert {path.name for path in tmp_path.iterdir()} == {"one", "other"}


def test_a_copy_that_came_short_is_sent_again(objects: Objects, tmp_path: Path) -> None:
    first, put = staging(objects, tmp_path / "one"), objects.put
    write(tmp_path / "one" / "key-0", count="12345")
    objects.put = lambda files: [objects.replace(path, b"12") for path in files]  # type: ignore[assignment, return-value]
    with pytest.raises(OSError, match="is not what was sent"):
        first.keep()
    assert not first.is_used
    objects.put = put  # type: ignore[method-assign]
    assert first.keep()
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"count": "12345"}


def test_a_large_file_that_grows_while_it_is_sent_is_kept_once_it_is_at_rest(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COPIED_BYTES", 3)
    first, put = staging(objects, tmp_path / "one"), objects.put
    write(tmp_path / "one" / "key-0", log="first")
    growing = tmp_path / "one" / "key-0" / "log"

    def put_while_it_grows(files: Mapping[str, Path]) -> None:
        put(files)
        growing.write_text(growing.read_text() + ", second")

    objects.put = put_while_it_grows  # type: ignore[method-assign]
    assert not first.keep()
    assert not first.is_used
    objects.put = put  # type: ignore[method-assign]
    assert first.keep()
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"log": "first, second"}


def test_a_later_epoch_begins_with_the_earlier_and_leaves_it_alone(
    objects: Objects, tmp_path: Path
) -> None:
    zombie = staging(objects, tmp_path / "one")
    write(tmp_path / "one" / "key-0", count="1")
    zombie.keep()
    heir = staging(objects, tmp_path / "other", epoch=1)
    heir.restore()
    assert read(tmp_path / "other" / "key-1") == {"count": "1"}
    write(tmp_path / "other" / "key-1", count="2")
    heir.keep()
    write(tmp_path / "one" / "key-0", count="nonsense")
    zombie.keep()
    again = staging(objects, tmp_path / "third", epoch=2)
    again.restore()
    assert read(tmp_path / "third" / "key-2") == {"count": "2"}


def test_on_several_nodes_the_parts_of_a_checkpoint_come_together(
    objects: Objects, tmp_path: Path
) -> None:
    """One node had kept its part of the second checkpoint, and the other had not."""
    nodes = [staging(objects, tmp_path / f"n{node}", node=node, nodes=2) for node in range(2)]
    for node in nodes:
        node.restore()
    for index in range(2):
        write(tmp_path / f"n{index}" / "key-0", **{f"step_1__part_{index}": "1"})
        nodes[index].keep()
    shutil.rmtree(tmp_path / "n0" / "key-0" / "step_1")
    write(tmp_path / "n0" / "key-0", step_2__part_0="2")
    nodes[0].keep()
    again = staging(objects, tmp_path / "third", nodes=2)
    again.restore()
    assert read(tmp_path / "third" / "key-0") == {
        "step_1/part_0": "1",
        "step_1/part_1": "1",
        "step_2/part_0": "2",
    }


# --- with workers and a bucket -----------------------------------------------------------------

DRIVER = """
import sys
from job_steps import count_to
from pipeline import run
run([count_to(int(sys.argv[3]), sys.argv[2], 0.1, heed=False)], sys.argv[1])
"""


def scratch_copies(store: Store) -> list[str]:
    return list(store.objects.sizes(f"{store.root}/scratch"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of our own: scratch lies below its folder for temporary files."""
    (tmp_path / "machine").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "machine"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "machine"))
    return tmp_path / "machine"


def test_a_step_that_leaves_its_machine_goes_on_from_the_bucket(
    gcs_bucket: str, machine: Path, tmp_path: Path, console: Console
) -> None:
    store, journal = Store(f"{gcs_bucket}/{os.urandom(4).hex()}"), str(tmp_path / "journal")
    with pytest.raises(Exception, match="failed: leave_once"):
        run([leave_once(journal).on(preemptions=0)], store, console=console)
    assert lines(journal) == ["left"]
    assert scratch_copies(store)
    shutil.rmtree(machine)
    machine.mkdir()
    run([leave_once(journal).on(preemptions=0)], store, console=console)
    assert lines(journal) == ["left", "done"]
    assert not scratch_copies(store)


def test_after_a_kill_another_machine_loses_at_most_one_interval(
    gcs_bucket: str, machine: Path, tmp_path: Path, console: Console
) -> None:
    store, journal = Store(f"{gcs_bucket}/{os.urandom(4).hex()}"), str(tmp_path / "journal")
    paths = os.pathsep.join([str(SUPPORT), *sys.path])

    def copied() -> bool:  # by a snapshot, which follows the files that it names
        names = [name for name in scratch_copies(store) if name.endswith(".json")]
        return any(b"count.txt" in (store.read(f"{store.root}/scratch/{n}") or b"") for n in names)

    with held(journal, 3):
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, store.url, journal, "6"],
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.DEVNULL,
        )
        wait_until(copied, "a copy of a count is made")
        driver.kill()
        driver.wait()
        wait_until(lambda: not workers(store), "the worker ends with its driver")
    shutil.rmtree(machine)
    machine.mkdir()
    run([count_to(6, journal, heed=False)], store, console=console)
    ran = lines(journal)
    (resumed,) = [i for i, line in enumerate(ran) if line.startswith("from") and i > 0]
    counts = [int(line.split()[-1]) for line in ran if line.startswith("count")]
    assert int(ran[resumed].split()[-1]) >= 1
    assert sorted(set(counts)) == list(range(1, 7))


def test_links_and_empty_folders_of_scratch_are_kept(objects: Objects, tmp_path: Path) -> None:
    """As `last.ckpt`, which Lightning links to the last checkpoint, or to its absolute path."""
    here, there = tmp_path / "one" / "key-0", tmp_path / "other" / "key-1"
    write(here, ckpt__step_1="1", ckpt__step_2="2")
    (here / "empty" / "below").mkdir(parents=True)
    (here / "last.ckpt").symlink_to("latest")
    (here / "latest").symlink_to(here / "ckpt" / "step_2")
    (here / "best").symlink_to(Path("..") / "key-0" / "ckpt")
    (here / "ckpt" / "later").symlink_to("step_3")
    (here / "links").mkdir()
    (here / "links" / "first").symlink_to("../ckpt/step_1")
    first = staging(objects, tmp_path / "one")
    assert first.keep()
    staging(objects, tmp_path / "other", epoch=1).restore()
    assert (there / "empty" / "below").is_dir()
    links = {str(p.relative_to(there)): os.readlink(p) for p in there.rglob("*") if p.is_symlink()}
    assert links == {
        "last.ckpt": "latest",
        "latest": "ckpt/step_2",
        "best": "ckpt",
        "ckpt/later": "step_3",
        "links/first": "../ckpt/step_1",
    }
    assert (there / "last.ckpt").read_text() == "2"
    (here / "latest").unlink()
    (here / "latest").symlink_to("ckpt/step_1")
    assert first.keep()
    staging(objects, tmp_path / "third").restore()
    assert (tmp_path / "third" / "key-0" / "last.ckpt").read_text() == "1"


def test_a_link_out_of_scratch_is_in_no_copy_and_is_told_once(
    objects: Objects, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "elsewhere", weights="theirs")
    write(tmp_path / "one" / "key-0", step="1")
    (tmp_path / "one" / "key-0" / "cache").symlink_to(tmp_path / "elsewhere")
    first = staging(objects, tmp_path / "one")
    first.keep()
    write(tmp_path / "one" / "key-0", step="2")
    first.keep()
    assert capfd.readouterr().out.count("cache is a link out of the scratch folder") == 1
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"step": "2"}


@pytest.mark.parametrize(
    "links",
    [
        {"out": "../../elsewhere"},
        {"out": "/"},
        {"here": ".", "out": "here/.."},
        {"a/b/c": "../../d", "d/x": "../a/b/c/../..", "out": "d/x"},
        {"up": "..", "up/out": "elsewhere"},
        {"out": "../..", "out/made/below": "x"},
    ],
    ids=str,
)
def test_a_copy_whose_links_lead_out_of_scratch_is_damaged(
    objects: Objects, tmp_path: Path, links: dict[str, str]
) -> None:
    """A step would write where whoever can write to the bucket wants."""
    first = staging(objects, tmp_path / "one")
    write(tmp_path / "one" / "key-0", step="1")
    first.keep()
    entries = {name: {"link": to} for name, to in links.items()}
    objects.replace(f"{REMOTE}/0/0/00000002.json", json.dumps(entries).encode())
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == {"step": "1"}
    assert not (tmp_path / "other" / "key-0" / "out").is_symlink()
    assert not (tmp_path / "other" / "made").exists()


def test_any_name_of_a_scratch_file_is_kept(objects: Objects, tmp_path: Path) -> None:
    """A backslash separates folders on other systems alone, and a name may be no UTF-8."""
    names = [r"dir\..\x", "..\\", "a\nb", "a\udcff", "ä" * 100]
    write(tmp_path / "one" / "key-0", **dict.fromkeys(names, "1"))
    assert staging(objects, tmp_path / "one").keep()
    staging(objects, tmp_path / "other").restore()
    assert read(tmp_path / "other" / "key-0") == dict.fromkeys(names, "1")
