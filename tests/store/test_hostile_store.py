"""A store is not believed: whoever can write a bucket can write any name and any number into it.

Nothing outside the store is read, written, deleted, imported or called, whatever it says; and what
is found wrong is one clear error, or is made again.
"""

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import blake3
import fresh_processes
import pytest
from drivers import start_driver
from hostile_steps import count, fetch, look_around, write
from manifests import manifest
from rich.console import Console
from typer.testing import CliRunner, Result
from waiting import HANGS_SECONDS, wait_until
from workers_here import instead_of_processes

from pipeline import File, Store, TemperError, run
from pipeline.cli import app
from pipeline.dag.canonical import hash_json
from pipeline.dag.files import FileEntry
from pipeline.running.session import RunFailed
from pipeline.store.catalog import Catalog
from pipeline.store.manifest import Manifest
from pipeline.store.objects import open_objects
from pipeline.store.runs import names_of_runs, read_run
from pipeline.store.scratch_snapshots import Staging
from pipeline.store.untrusted_input import (
    is_attempt,
    is_file,
    is_path,
    is_step,
)

pytestmark = pytest.mark.usefixtures("workers_here")


TEMPER = str(Path(sys.executable).with_name("temper"))
ATTEMPT = "20200101T000000-000aaaaaa"


@pytest.fixture(params=["local", "gcs"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    return Store(f"{request.getfixturevalue('gcs_bucket')}/{os.urandom(4).hex()}")


@pytest.fixture(scope="module")
def first_written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A store with one result, which tests copy."""
    folder = tmp_path_factory.mktemp("written") / "store"
    with pytest.MonkeyPatch.context() as patch:
        instead_of_processes(patch)
        (made,) = make(Store(str(folder)), write())
    return folder, made


@pytest.fixture
def written(first_written: tuple[Path, Manifest], tmp_path: Path) -> tuple[Store, Manifest]:
    """A store of the test's own, and the manifest of what ``write`` has made in it."""
    shutil.copytree(first_written[0], tmp_path / "store")
    return Store(str(tmp_path / "store")), first_written[1]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of somebody else's, with all that lies in it as it was."""
    victim = tmp_path / "victim"
    for name in ("content/precious.txt", "precious.txt", ATTEMPT + "/content/precious.txt"):
        (victim / name).parent.mkdir(parents=True, exist_ok=True)
        (victim / name).write_text("precious")
    before = _everything(victim)
    yield victim
    assert _everything(victim) == before


def _everything(folder: Path) -> dict[str, str]:
    return {str(p): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


def make(store: Store, *steps: Any) -> list[Manifest]:
    roots = {str(i): step for i, step in enumerate(steps)}
    made = run(roots, store, console=Console(file=io.StringIO()), verbosity=-1)
    return [result.manifest for result in made.values()]


def temper(store: Store, *arguments: str) -> Result:
    """What a command answers; a traceback is never an answer."""
    result = CliRunner().invoke(app, arguments, env={"TEMPER_STORE": store.url})
    foreseen = result.exception is None or isinstance(result.exception, TemperError | SystemExit)
    if not foreseen and not isinstance(result.exception, OSError):
        assert result.exception is not None
        raise result.exception
    return result


def told(result: Result) -> str:
    return f"{result.output} {result.exception}"


def forge(store: Store, made: Manifest, **changes: Any) -> None:
    """Let the manifest say something else, with a valid checksum, and the index be lost."""
    path = store.manifest_path(made.step, made.key, made.generation)
    data = json.loads(store.read(path) or b"")
    data |= changes
    del data["checksum"]  # a manifest may be without, as older ones are
    if isinstance(changes.get("files"), dict):
        data["digest"] = hash_json(
            {name: [e["size"], e["blake3"]] for name, e in data["files"].items()}
        )
    store.objects.replace(path, json.dumps(data).encode())
    store.objects.remove(f"{store.root}/index/{made.step}.json")


COMMANDS: list[list[str]] = [
    ["list"], ["show", "write"], ["path", "write"], ["verify"], ["verify", "write"],
    ["explain", "write"], ["logs", "write"], ["status"], ["runs"],
    ["evict", "write", "--yes"], ["gc", "--keep-last", "0", "--grace", "0", "--yes"],
    ["accept", "write", "--yes"], ["diff", "write", "write"],
]  # fmt: skip

NO_MANIFESTS: dict[str, dict[str, Any]] = {
    "attempt leads up": {"attempt": f"{ATTEMPT}/../../../../../victim"},
    "attempt is up": {"attempt": ".."},
    "attempt is absolute": {"attempt": "/tmp/victim"},
    "attempt is empty": {"attempt": ""},
    "attempt has a newline": {"attempt": f"{ATTEMPT}\n"},
    "attempt is a list": {"attempt": [ATTEMPT]},
    "file leads up": {"files": {"../../../../../../victim/x": {"size": 1, "blake3": "0" * 64}}},
    "file is absolute": {"files": {"/etc/passwd": {"size": 1, "blake3": "0" * 64}}},
    "file is up": {"files": {"..": {"size": 1, "blake3": "0" * 64}}},
    "file has an empty folder": {"files": {"a//b": {"size": 1, "blake3": "0" * 64}}},
    "file holds NUL": {"files": {"a\0b": {"size": 1, "blake3": "0" * 64}}},
    "file leads up elsewhere": {"files": {"a\\..\\..\\b": {"size": 1, "blake3": "0" * 64}}},
    "size is negative": {"files": {"a.txt": {"size": -1, "blake3": "0" * 64}}},
    "size is a truth": {"files": {"a.txt": {"size": True, "blake3": "0" * 64}}},
    "size is huge": {"files": {"a.txt": {"size": 10**30, "blake3": "0" * 64}}},
    "digest of a file is a path": {"files": {"a.txt": {"size": 1, "blake3": "../../x"}}},
    "files are a list": {"files": []},
    "input is elsewhere": {
        "inputs": [{"step": "../../x", "key": "0" * 32, "part": None, "digest": "0" * 32}]
    },
    "part is up": {
        "inputs": [{"step": "write", "key": "0" * 32, "part": "..", "digest": "0" * 32}]
    },
    "seconds are text": {"seconds": "1"},
    "seconds are no number": {"seconds": float("nan")},
    "seconds are without end": {"seconds": 1e300},
    "generation is a truth": {"generation": False},
    "metrics are a list": {"metrics": []},
    "provenance is a text": {"provenance": "x"},
    "a file that it read holds NUL": {"discovered": {"files": {"a\0b": "x"}}},
    "step is another": {"step": "../../victim"},
    "recipe is a text": {"recipe": "x", "key": hash_json("x")},
}


LEADS_ELSEWHERE = ("attempt leads up", "file leads up", "input is elsewhere", "step is another")


@pytest.mark.parametrize("case", NO_MANIFESTS)
def test_a_manifest_that_names_what_no_store_holds_is_damaged(
    case: str, written: tuple[Store, Manifest], outside: Path
) -> None:
    """All commands read manifests in one way, so only those that lead elsewhere meet them all."""
    store, made = written
    forge(store, made, **NO_MANIFESTS[case])
    commands = COMMANDS if case in LEADS_ELSEWHERE else [["list"], ["show", "write"], ["verify"]]
    answers = [told(temper(store, *command)) for command in commands]
    assert any("is damaged" in answer and "delete it" in answer for answer in answers)
    with pytest.raises(TemperError, match=r"is damaged .*; delete it, and the step will be run"):
        make(store, write())
    if case in LEADS_ELSEWHERE:
        store.objects.remove(store.manifest_path("write", made.key))
        make(store, write())


def told_of_a_run(store: Store) -> str:
    """The error of a run; empty if there was none."""
    try:
        make(store, write("more"))
    except TemperError as error:
        return str(error)
    return ""


NO_RECORDS = [
    b"", b"[]", b'"text"', b"\xff\xfe", b"{}", b'{"step": 1}', b"[" * 100_000,
    b'{"seconds": 1e999}', b"\x1b]0;title\x07",
]  # fmt: skip


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.attack)])
@pytest.mark.parametrize("data", NO_RECORDS, ids=lambda data: repr(data[:12]))
def test_json_that_is_none_or_too_much_is_one_error_or_ignored(
    data: bytes, every: int, written: tuple[Store, Manifest]
) -> None:
    """Each place has some of these, and each of these is in some places."""
    store, made = written
    (name,) = names_of_runs(store)
    attempt = store.attempt_path(made)
    places = {
        "manifest": store.manifest_path("write", made.key),
        "index": f"{store.root}/index/write.json",
        "run": f"{store.root}/runs/{name}.json",
        "lease": f"{store.root}/leases/write/{made.key}/00000009.json",
        "job": store.job_path("write", made.key),
        "progress": store.progress_path("write", made.key),
        "report": f"{attempt}/report.json",
        "begun": f"{attempt}/begun.json",
        "spec": f"{attempt}/spec.json",
        "accepted": f"{store.root}/accepted/write/a-b.json",
        "layout": f"{store.root}/temper.json",
    }
    for number, (place, path) in enumerate(places.items(), start=NO_RECORDS.index(data)):
        if number % every:
            continue
        before = store.objects.read(path)
        store.objects.replace(path, data)
        for command in [["list"], ["status"], ["runs"], ["explain", "write"], ["gc"]]:
            answer = told(temper(store, *command))
            assert "\x1b" not in answer, (place, command)
        said = told_of_a_run(store)
        assert "\x1b" not in said
        remedies = ("delete it", '{"layout": 2}', "choose another store with store=")
        assert not said or any(remedy in said for remedy in remedies), (place, said)
        if before is None:
            store.objects.remove(path)
        else:
            store.objects.replace(path, before)


@pytest.mark.parametrize(
    "place", ["attempts", "attempts/write", "leases", "manifests/write", "runs", "scratch/write"]
)
def test_a_file_in_the_place_of_a_folder_is_named_with_advice(place: str, tmp_path: Path) -> None:
    file = tmp_path / "store" / place
    file.parent.mkdir(parents=True)
    file.touch()
    screen = Console(file=(said := io.StringIO()), width=500)
    with pytest.raises(TemperError) as caught:
        run({"made": write()}, Store(str(tmp_path / "store")), console=screen)
    told_in_all = f"{said.getvalue()} {caught.value}"
    assert f"{file} is a file where a store has a folder; move it away" in told_in_all
    assert "Errno" not in told_in_all


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("kind", ["steps.kinds:Tokens"]), ("function", None),
        ("seconds", True), ("seconds", -1), ("generation", -1), ("generation", 10**9),
        ("metrics", {"notices": "one"}), ("metrics", {"notices": [1]}),
        ("provenance", {"run": 1}), ("provenance", {"host": 1}), ("provenance", {"launcher": []}),
        ("recipe", {"function": 1}), ("recipe", {"arguments": []}),
        ("key", "0" * 32), ("digest", "0" * 32),
    ],
)  # fmt: skip
def test_a_manifest_with_a_value_of_another_form_is_told_with_its_field(
    field: str, wrong: Any
) -> None:
    data = json.loads(manifest("attempt").to_json()) | {field: wrong}
    if field == "recipe":
        data["key"] = hash_json(wrong)
    del data["checksum"]
    with pytest.raises(TemperError, match=rf"m\.json is damaged \(its {field} is .*; delete it"):
        Manifest.from_json(json.dumps(data).encode(), "m.json")


@pytest.mark.parametrize("what", ["code", "files", "folders"])
@pytest.mark.parametrize("wrong", [["a"], {"a": 1}, {"a\0b": "x"}])
def test_what_was_discovered_is_digests_by_names_of_files(what: str, wrong: Any) -> None:
    data = json.loads(manifest("attempt").to_json()) | {"discovered": {what: wrong}}
    del data["checksum"]
    with pytest.raises(TemperError, match=r"m\.json is damaged \(what was discovered .*delete it"):
        Manifest.from_json(json.dumps(data).encode(), "m.json")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "a/", "a//b", "a/./b", "a/../b", "../a", "a/..", "a\0", "..\\a",
             "a\\..", "x" * 5000, None, 1, b"a"],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_none(name: Any) -> None:
    assert not is_file(name)
    assert not is_step(name)
    assert name == "a//b" or not is_attempt(name)
    assert not is_path(name) or "\\" in name


# --- objects ---------------------------------------------------------------------------------


def test_an_object_whose_name_leads_up_is_not_downloaded(
    gcs_bucket: str, tmp_path: Path, outside: Path
) -> None:
    store = Store(f"{gcs_bucket}/{os.urandom(4).hex()}")
    (made,) = make(store, write())
    depth = "../" * 30
    evil = f"{store.content_path(made)}/{depth}{str(tmp_path).lstrip('/')}/victim/written.txt"
    store.objects.fs.call(
        "POST", f"{store.objects.fs._location}/upload/storage/v1/b/{{}}/o",
        evil.partition("/")[0], uploadType="media", name=evil.partition("/")[2], data=b"evil",
    )  # fmt: skip
    assert store.objects.strangers(store.content_path(made), made.files)
    with pytest.raises(OSError, match="no name of a file"):
        store.objects.download(store.content_path(made), tmp_path / "here")
    (seen,) = make(store, look_around(write()))
    assert seen.metrics["names"] == ["a.txt", "part", "part/b.txt"]
    assert Catalog(store).history("write")[-1].generation == 1, "it was damaged, and made again"


def test_a_copy_of_scratch_is_written_nowhere_else(
    gcs_bucket: str, tmp_path: Path, outside: Path
) -> None:
    objects, root = open_objects(f"{gcs_bucket}/{os.urandom(4).hex()}")
    local = tmp_path / "scratch" / "key"
    (digest,) = [e.blake3 for e in [FileEntry(1, "5" * 64)]]
    objects.replace(f"{root}/0/0/{digest}", b"evil")
    for number, names in enumerate(
        [["../../victim/x"], ["/etc/x"], ["a", "a/b"], ["a/../../../victim/x"]], start=1
    ):
        snapshot = {name: {"size": 4, "blake3": digest} for name in names}
        objects.replace(f"{root}/0/0/{number:08d}.json", json.dumps(snapshot).encode())
    for name in (
        "x/0/00000001.json",
        "0/../0/00000009.json",
        "0/0/-1.json",
        "9" * 30 + "/0/1.json",
    ):
        objects.replace(f"{root}/{name}", b"{}")
    Staging(objects, local, root, epoch=0).restore()
    assert not local.exists() or not any(local.iterdir())


def test_links_in_a_local_store_are_not_followed(tmp_path: Path, outside: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (made,) = make(store, write())
    attempt = Path(store.attempt_path(made))
    for place, target in (
        (attempt / "content", outside / "content"),
        (attempt, outside),
        (attempt.parent, outside),
        (attempt.parent.parent, outside),
    ):
        kept = place.with_name("kept")
        place.rename(kept)
        place.symlink_to(target)
        for command in COMMANDS:
            if command[0] != "gc":
                temper(store, *command)
        place.unlink(missing_ok=True)  # to evict it is to delete the link
        kept.rename(place)
    (Path(store.root) / "leases" / "look_around").symlink_to(outside)
    with pytest.raises((TemperError, RunFailed)):
        make(store, look_around(write()))


def test_scratch_is_forgotten_below_no_link(tmp_path: Path, outside: Path) -> None:
    store = Store(str(tmp_path / "store"))
    scratch = store.scratch_path("write", "content")
    scratch.mkdir(parents=True)
    store.forget_scratch("write", "content")
    assert not scratch.exists()
    scratch.parent.rmdir()
    scratch.parent.symlink_to(outside)
    store.forget_scratch("write", "content")


@pytest.mark.parametrize("top", ["attempts", "manifests", "scratch", "runs", "leases", "jobs"])
def test_garbage_is_collected_below_no_link(
    top: str, written: tuple[Store, Manifest], outside: Path
) -> None:
    store, _ = written
    (Path(store.root) / top).mkdir(exist_ok=True)
    (Path(store.root) / top / "evil").symlink_to(outside)
    (Path(store.root) / top / "write").mkdir(exist_ok=True)
    (Path(store.root) / top / "write" / ("0" * 32)).symlink_to(outside)
    temper(store, "gc", "--keep-last", "0", "--grace", "0", "--yes")


def test_a_view_reads_no_file_through_a_link(tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("private")
    store = Store(str(tmp_path / "store"))
    (made,) = make(store, write())
    path = Path(store.content_path(made)) / "a.txt"
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(TemperError, match="is a link"):
        store.read(str(path))
    log = Path(store.attempt_path(made)) / "log.txt"
    log.unlink()
    log.symlink_to(secret)
    assert "private" not in told(temper(store, "logs", "write"))


# --- what was added to an artifact -----------------------------------------------------------

ADDED: dict[str, Callable[[Path, Path], object]] = {
    "a file": lambda content, _: (content / "x.txt").write_text("x"),
    "a hidden file": lambda content, _: (content / ".x").write_text("x"),
    "a file in a folder of it": lambda content, _: (content / "part" / "x").write_text("x"),
    "a file in a hidden folder": lambda content, _: _new(content / ".d" / "x").write_text("x"),
    "an empty folder": lambda content, _: (content / "d").mkdir(),
    "an empty hidden folder": lambda content, _: (content / "part" / ".d").mkdir(),
    "a link to a file": lambda content, other: (content / "l").symlink_to(other / "precious.txt"),
    "a link to a folder": lambda content, other: (content / "l").symlink_to(other),
    "a broken link": lambda content, _: (content / ".l").symlink_to("nowhere"),
    "a pipe": lambda content, _: os.mkfifo(content / "pipe"),
    "a link in place of a file": lambda content, other: _link_instead(content, other),
}


def _new(path: Path) -> Path:
    path.parent.mkdir()
    return path


def _link_instead(content: Path, other: Path) -> None:
    shutil.copyfile(content / "a.txt", copy := other.parent / "copy")
    (content / "a.txt").unlink()
    (content / "a.txt").symlink_to(copy)


@pytest.mark.parametrize("case", ADDED)
def test_an_artifact_with_anything_added_is_damaged(
    case: str, written: tuple[Store, Manifest], tmp_path: Path, outside: Path
) -> None:
    store, made = written
    assert temper(store, "verify").exit_code == 0, "an empty folder of the step's is none of it"
    before = shutil.copytree(store.root, tmp_path / "other")
    ADDED[case](Path(store.content_path(made)), outside)

    (seen,) = make(store, look_around(write()))
    assert seen.metrics["names"] == ["a.txt", "part", "part/b.txt"]
    assert Catalog(store).history("write")[-1].generation == 1

    other = Store(str(before))
    ADDED[case](Path(other.content_path(made)), outside)
    answer = temper(other, "verify")
    assert answer.exit_code == 1
    assert "0 artifacts intact, 1 damaged" in answer.output


# --- leases, jobs, indexes, records ----------------------------------------------------------


def test_a_link_of_scratch_leads_into_the_scratch_of_the_new_holder(tmp_path: Path) -> None:
    """The old holder may still be writing to its own."""
    store = Store(str(tmp_path / "store"))
    first = store.scratch_path("write", "0" * 32)
    first.mkdir(parents=True)
    (first / "step_1").write_text("old")
    (first / "last").symlink_to(first / "step_1")
    second = store.scratch_path("write", "0" * 32, 1)
    (first / "step_1").write_text("written since")
    assert (second / "last").read_text() == "old"


def test_an_index_that_names_another_step_is_not_used(any_store: Store) -> None:
    made, other = make(any_store, write(), count(1))
    index = f"{any_store.root}/index/write.json"
    data = json.loads((any_store.read(index) or b"").partition(b"\n")[2])
    traces = {"traces": data.pop("traces")}
    (name,) = data

    def replace_index(entries: dict[str, Any]) -> None:
        text = json.dumps(traces | entries).encode()
        checksum = blake3.blake3(text).hexdigest().encode()
        any_store.objects.replace(index, checksum + b"\n" + text)

    for wrong in (
        {"step": "count"}, {"attempt": "../../x"}, {"key": other.key}, {"generation": 7},
        {"files": {"../x": {"size": 1, "blake3": "0" * 64}}}, {"metrics": None}, {"inputs": 5},
    ):  # fmt: skip
        replace_index({name: data[name] | {"manifest": data[name]["manifest"] | wrong}})
        assert Catalog(any_store).history("write") == [made]
    state = data[name]["trace"]
    for hostile in ({}, 5, {state: {"code": {"write:x": "0"}}}, {state: {"code": 5}}):
        replace_index({name: data[name], "traces": hostile})
        assert Catalog(any_store).history("write") == [made]
    replace_index({name: 5, "x": [], "../../y": {}})
    assert Catalog(any_store).history("write") == [made]


@pytest.mark.parametrize("every", [23, pytest.param(1, marks=pytest.mark.attack)])
def test_a_manifest_or_index_with_one_wrong_bit_is_not_believed(
    every: int, written: tuple[Store, Manifest]
) -> None:
    """Its metrics, inputs and discovered dependencies are in no key and in no digest."""
    store, made = written
    Catalog(store).rewrite("write")
    index = f"{store.root}/index/write.json"
    for path in (store.manifest_path("write", made.key), index):
        data = bytearray(store.read(path) or b"")
        for place in range(0, len(data), every):
            data[place] ^= 1 << place % 8
            store.objects.replace(path, bytes(data))
            found = Catalog(store).history("write")
            assert found in ([made], [] if path != index else [made]), bytes(data[place:][:30])
            data[place] ^= 1 << place % 8
        store.objects.replace(path, bytes(data))


def test_a_manifest_of_an_older_version_is_read_without_a_checksum(
    written: tuple[Store, Manifest],
) -> None:
    store, made = written
    forge(store, made)
    assert Catalog(store).history("write") == [made]


def test_the_report_of_a_worker_is_looked_at(tmp_path: Path) -> None:
    from pipeline.wire.spec import Report

    for wrong in (
        {"files": {"../x": {"size": 1, "blake3": "0" * 64}}}, {"damaged_input": -1},
        {"damaged_input": "0"}, {"preempted": "yes"}, {"metrics": []},
        {"discovered": {"code": {"a": 1}}}, {"error": ["x"]}, {"what": 1},
    ):  # fmt: skip
        data = json.loads(Report().to_json()) | wrong
        found = Report.from_json(json.dumps(data).encode())
        assert "damaged" in str(found.error), wrong
        assert not found.files


@pytest.mark.real_workers
def test_a_worker_runs_no_spec_but_its_drivers(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    (made,) = make(store, write())
    spec = Path(store.attempt_path(made)) / "spec.json"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["TEMPER_SPEC_DIGEST"] = "0" * 64
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.worker.attempt", str(spec)],
        env=environment, capture_output=True, text=True, timeout=HANGS_SECONDS,
    )  # fmt: skip
    assert done.returncode != 0
    assert "not what the driver has written" in done.stderr


# --- code that a store names -----------------------------------------------------------------

EVIL = """
from pathlib import Path
Path({mark!r}).write_text("imported")
from pipeline import Artifact

class Enum: pass

class K(Artifact):
    views = "evilmod:views"
    viewer = "evilmod:views"

def views(*_):
    Path({mark!r}).write_text("called")
    return []
"""

OWN_STEPS = """
from dataclasses import dataclass
from pipeline import Artifact, Output, step
from own_kinds import Drawing

@step(makes=Drawing)
def draw(out: Output, config: object) -> dict:
    (out.path / "drawing.txt").write_text("a drawing")
    return {"ink": config.ink}
"""
OWN_KINDS = """
from pipeline import Artifact
from pipeline.show.views import Note

class Drawing(Artifact):
    views = "own_views:drawing"
    viewer = "own_views:line"
"""
OWN_VIEWS = """
from pipeline.show.views import Note

def drawing(made):
    yield Note("A drawing of our own", made.text("drawing.txt"))

def line(url, row, split, console):
    console.print(f"line {row}")
"""
OWN_TYPES = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Pen:
    ink: int = 3
"""
OWN_SCRIPT = """
from pipeline import run
from own_steps import draw
from own_types import Pen

if __name__ == "__main__":
    run([draw(Pen())], "store")
"""


class Desk:
    """A project of somebody's own, and the shell they work in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = folder / "EVIL"
        (folder / "scripts").mkdir(parents=True)
        own = {"own_steps": OWN_STEPS, "own_kinds": OWN_KINDS, "own_views": OWN_VIEWS,
               "own_types": OWN_TYPES, "experiment": OWN_SCRIPT}  # fmt: skip
        for name, source in own.items():
            (folder / "scripts" / f"{name}.py").write_text(source)
        for place in (folder, folder / "scripts"):
            (place / "evilmod.py").write_text(EVIL.format(mark=str(self.mark)))

    def shell(self, *command: str) -> str:
        return fresh_processes.shell(command, self.folder, {**os.environ, "TEMPER_STORE": "store"})

    def look(self, *names: str) -> str:
        commands = (["show", "draw"], ["show", "draw", "--row", "1"], ["explain", "draw"],
                    ["accept", "draw", "--yes"], ["report"])  # fmt: skip
        chosen = [command for command in commands if not names or command[0] in names]
        answers = "\n".join(self.shell(TEMPER, *command) for command in chosen)
        assert "Traceback" not in answers
        return answers


@pytest.fixture(scope="module")
def first_desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk") / "project")
    assert (
        "1 result" in (said := desk.shell(sys.executable, "scripts/experiment.py"))
        or "done" in said
    )
    return desk


@pytest.fixture
def desk(first_desk: Desk, tmp_path: Path) -> Desk:
    copy = tmp_path / "project"
    made = Desk.__new__(Desk)
    made.folder, made.mark = copy, copy / "EVIL"
    shutil.copytree(first_desk.folder, copy)
    for place in (copy, copy / "scripts"):
        (place / "evilmod.py").write_text(EVIL.format(mark=str(made.mark)))
    return made


@pytest.mark.parametrize("which", ["kind", "function", "type", "kind and script", "run"])
def test_what_only_a_store_names_is_neither_imported_nor_called(desk: Desk, which: str) -> None:
    store = Store(str(desk.folder / "store"))
    (made,) = Catalog(store).history("draw")
    (name,) = names_of_runs(store)
    path = f"{store.root}/runs/{name}.json"
    record = json.loads(store.read(path) or b"")
    match which:
        case "kind":
            forge(store, made, kind="evilmod:K")
        case "function":
            forge(store, made, function="evilmod:views", kind="evilmod:K")
        case "type":
            forge(store, made, discovered={"entry": [made.function, "evilmod:K"]})
        case "kind and script":
            forge(store, made, kind="evilmod:K")
            record["argv"] = [record["argv"][0], "evilmod.py"]
            store.objects.replace(path, json.dumps(record).encode())
        case "run":
            (desk.folder.parent / "elsewhere").mkdir()
            for module in ("own_steps", "own_kinds", "own_types"):
                evil = desk.folder.parent / "elsewhere" / f"{module}.py"
                evil.write_text(EVIL.format(mark=str(desk.mark)))
            record |= {"cwd": str(desk.folder.parent / "elsewhere")}
            record["argv"] = [record["argv"][0], "../elsewhere/own_steps.py"]
            store.objects.replace(path, json.dumps(record).encode())
    answers = desk.look("show", "report") if "kind" in which else desk.look("explain", "accept")
    assert not desk.mark.exists(), answers
    if "kind" in which:
        assert "evilmod" in answers
        assert "only because a store names it" in answers


# --- secrets ---------------------------------------------------------------------------------

SECRET = "S3cr3tS3cr3t"


@pytest.fixture
def server() -> Iterator[str]:
    """Gives a file to who has the signature."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = SECRET in self.path
            self.send_response(200 if good else 403)
            body = b'{"row": 1}\n' if good else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    started = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=started.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{started.server_port}"
    started.shutdown()


@pytest.mark.real_workers
def test_the_secret_of_a_url_reaches_the_worker_and_no_store_nor_screen(
    any_store: Store, server: str
) -> None:
    pytest.importorskip("aiohttp")
    url = f"{server}/rows.jsonl?sv=1&X-Amz-Signature={SECRET}&part=2"
    screen = Console(file=io.StringIO(), width=400)
    run([fetch(File(url))], any_store, console=screen)
    with pytest.raises(RunFailed):
        run([fetch(File(url), fails=True)], any_store, console=screen, verbosity=1)
    wrong = url.replace("S3cr3t", "Wr0ng")
    with pytest.raises(TemperError) as refused:
        run([fetch(File(wrong))], any_store, console=screen)
    assert "Wr0ng" not in f"{refused.value}{refused.value.__cause__ or ''}"
    files = any_store.objects.sizes(any_store.root)
    assert any(path.endswith("spec.json") for path in files)
    for path in files:
        data = any_store.objects.read(f"{any_store.root}/{path}") or b""
        assert b"S3cr3t" not in data, path
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "S3cr3t" not in shown
    assert "cannot use http" in shown
    assert "X-Amz-Signature=…" in shown


def test_a_job_of_an_engine_is_not_given_a_secret(server: str, tmp_path: Path) -> None:
    from pipeline.wire.spec import StepSpec, handed_over

    def spec(url: str) -> StepSpec:
        arguments = {"source": {"$type": "pipeline.dag.inputs:File", "fields": {"url": url}}}
        return StepSpec(str(tmp_path), "fetch", "0" * 32, "m:f", arguments, (), "a", (), {url: "x"},
                        0)  # fmt: skip

    whole = spec("s3://AKIAXXXX:topsecret@bucket/x")
    kept, secrets = whole.without_secrets()
    assert "topsecret" not in kept.to_json().decode()
    assert list(secrets.values()) == ["s3://AKIAXXXX:topsecret@bucket/x"]
    environment = handed_over(kept.to_json(), secrets)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        assert StepSpec.from_json(kept.to_json()) == whole
        assert "TEMPER_SPEC_SECRETS" not in os.environ


# --- the record of a run ---------------------------------------------------------------------

KILLED = """
import sys
from hostile_steps import count
from pipeline import run
run([count(i, 3600.0 if i == 2 else 0.0) for i in range(3)], sys.argv[1])
"""


def test_the_record_of_a_run_that_was_killed_says_what_it_did(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    driver = start_driver(KILLED, store.root)

    def two_are_recorded() -> bool:
        names = names_of_runs(store)
        made = Catalog(store).history("count")
        return len(made) == 2 and bool(names) and len(store.steps_of_run(names[0])) == 2

    try:
        wait_until(two_are_recorded, "two steps of three are done")
        made = Catalog(store).history("count")
    finally:
        driver.kill()
        driver.wait()
    (name,) = names_of_runs(store)
    found = read_run(store, name)
    assert sorted(entry["state"] for entry in found.steps) == ["done", "done", "run"]
    assert {e["attempt"] for e in found.steps if e["state"] == "done"} == {m.attempt for m in made}
    assert found.seconds > 0
    assert "killed" in temper(store, "runs").output
    make(store, count(0), count(1))
    assert not (Path(store.root) / "runs" / names_of_runs(store)[-1]).is_dir(), "it ended"
