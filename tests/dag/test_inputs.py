"""Files, folders, objects and Hub repositories: a change is always seen, and little is read."""

import gzip
import json
import mmap
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import blake3
import fsspec
import pytest
from huggingface_hub import constants as hub_constants
from users import not_as_root
from waiting import HANGS_SECONDS

from pipeline import File, HubDataset, HubModel, TemperError
from pipeline.dag import digests
from pipeline.dag.canonical import Json, hash_json, identity, portable, restore
from pipeline.dag.input_folders import InputFolders
from pipeline.dag.inputs import forget_sources, source_identity

LARGE = digests.KEPT_BYTES
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MOVED = "f" * 40


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, and has seen nothing yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TEMPER_CACHE", str(folder))
    forget_sources()
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long a file must be left alone, in seconds: shorter, and longer than a clock tick. The
    tests' folders may lie in memory."""
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 0.02)
    monkeypatch.setattr(digests, "_IN_MEMORY", ())
    return 0.02


def look(url: object) -> Json:
    """What a new process would see at ``url``."""
    forget_sources()
    return source_identity(str(url))


def bytes_read(work: Callable[[], object]) -> int:
    """How many bytes this process reads from files meanwhile, as the kernel counts them."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        pytest.skip("the system does not count what a process reads")

    def count() -> int:
        return int(counters.read_text().split()[1])

    before = count()
    work()
    return count() - before


def kept(cache_folder: Path) -> set[str]:
    """The names of the files whose digest is in the cache."""
    file = cache_folder / "digests.sqlite3"
    if not file.exists():
        return set()
    with closing(sqlite3.connect(file)) as database:
        return {Path(os.fsdecode(row[0])).name for row in database.execute("SELECT * FROM checked")}


# Local files and folders


def test_identities_of_local_files_are_those_of_earlier_versions(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("abc")
    (tmp_path / "sub" / "b.jsonl.gz").write_text("xyz")
    assert File(str(tmp_path / "sub" / "b.jsonl.gz")).identity() == {
        "content": "f006b5ee4890b66656cf6c23998e25196a163644665dc9d4b47da1fca3037023",
        "suffix": ".jsonl.gz",
    }
    expected = {"content": "2b415ff6c769bc8526b181876346e12a", "suffix": None}
    assert File(str(tmp_path)).identity() == expected


def test_what_says_how_a_file_is_read_counts_in_any_case(tmp_path: Path) -> None:
    for name in ("a.jsonl.GZ", "a.csv.GZ"):
        (tmp_path / name).write_text("xyz")
    assert (
        File(str(tmp_path / "a.jsonl.GZ")).identity() != File(str(tmp_path / "a.csv.GZ")).identity()
    )


def test_a_file_is_known_by_all_of_its_bytes(tmp_path: Path) -> None:
    data = os.urandom(9 * 2**20 + 1)
    (tmp_path / "data").write_bytes(data)
    assert look(tmp_path / "data") == blake3.blake3(data).hexdigest()


def test_a_process_sees_one_version_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = look(tmp_path / "a")
    (tmp_path / "a").write_text("2")
    assert source_identity(str(tmp_path / "a")) == first != look(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a").rename(folder / "c"),
        lambda folder: (folder / "a").rename(folder / "sub" / "a"),
        lambda folder: (folder / "new").write_text(""),
        lambda folder: (folder / "sub" / "b").unlink(),
        lambda folder: (folder / "sub" / "b").write_text("B"),
    ],
    ids=["rename", "move", "add", "remove", "edit"],
)
def test_any_change_in_a_folder_changes_it(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_text("a")
    (tmp_path / "sub" / "b").write_text("b")
    before = look(tmp_path)
    change(tmp_path)
    assert look(tmp_path) != before


def test_a_folder_is_the_same_wherever_it_lies_and_in_whatever_order_it_was_made(
    tmp_path: Path,
) -> None:
    names = [f"{number}.txt" for number in range(40)]
    for folder, order in (("one", names), ("other", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_text(name)
    assert look(tmp_path / "one") == look(tmp_path / "other") == look(f"file://{tmp_path}/one/")


def test_what_cannot_be_read_is_refused_naming_it(tmp_path: Path) -> None:
    with pytest.raises(TemperError, match=r"input .*nowhere does not exist; check the path"):
        look(tmp_path / "nowhere")
    with pytest.raises(TemperError, match="cannot read input : it has no name"):
        look("")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TemperError, match="pipe is not a regular file"):
        look(tmp_path)


@pytest.mark.parametrize("change", ["append", "truncate"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "growing"
    path.touch()
    os.truncate(path, size := 2**28)
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.002):
            if change == "append":
                with open(path, "ab") as file:
                    file.write(b"x")
            else:
                os.truncate(path, size // 2)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(TemperError, match="growing changed while it was read; try again"):
            look(path)
    finally:
        done.set()
        writer.join()


# The cache


def test_a_large_file_left_alone_is_read_once(
    tmp_path: Path, cache_folder: Path, settled: float
) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(8 * 2**20))
    time.sleep(2 * settled)
    first = look(path)
    assert kept(cache_folder) == {"large"}
    assert bytes_read(lambda: look(path)) < 2**20
    assert look(path) == first
    os.utime(path)
    time.sleep(2 * settled)
    assert bytes_read(lambda: look(path)) >= 8 * 2**20
    assert look(path) == first


def test_a_file_that_was_just_written_is_read_every_time(
    tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_SECONDS", HANGS_SECONDS)
    (tmp_path / "young").write_bytes(bytes(LARGE))
    os.utime(tmp_path / "young", (0, 0))  # it looks old; that it was changed just now shows
    assert bytes_read(lambda: look(tmp_path)) >= LARGE
    assert bytes_read(lambda: look(tmp_path)) >= LARGE
    assert kept(cache_folder) == set()


def test_an_edit_that_keeps_size_and_times_is_seen(tmp_path: Path, settled: float) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(LARGE))
    time.sleep(2 * settled)
    before, times = look(path), path.stat()
    path.write_bytes(b"1" * LARGE)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert look(path) != before


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no file system in memory")
def test_a_write_through_a_memory_map_is_seen_where_it_changes_no_time(
    cache_folder: Path, settled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_IN_MEMORY", (b"tmpfs",))
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(LARGE))
        file.flush()
        time.sleep(2 * settled)
        before = look(file.name)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1
        assert look(file.name) != before
    assert kept(cache_folder) == set()


def test_an_edit_right_after_a_file_was_read_is_seen(
    tmp_path: Path, cache_folder: Path, settled: float
) -> None:
    path = tmp_path / "data"
    ever_kept = set()
    for number in range(50):
        content = number.to_bytes(2, "big") * (LARGE // 2)
        path.write_bytes(content)
        if number % 10 == 0:
            time.sleep(2 * settled)
        assert look(path) == blake3.blake3(content).hexdigest()
        ever_kept |= kept(cache_folder)
    assert ever_kept == {"data"}


def test_another_file_under_the_same_name_is_seen(tmp_path: Path, settled: float) -> None:
    for name, byte in (("one", b"1"), ("other", b"2")):
        (tmp_path / name).write_bytes(byte * LARGE)
        os.utime(tmp_path / name, (0, 0))
    link = tmp_path / "link"
    link.symlink_to("one")
    time.sleep(2 * settled)
    first = look(link)
    link.unlink()
    link.symlink_to("other")
    assert look(link) == look(tmp_path / "other") != first


@pytest.mark.parametrize(
    "trouble", ["garbage", "zeros", "foreign", "flipped", "locked", "no folder"]
)
def test_a_cache_that_cannot_be_used_does_not_matter(
    tmp_path: Path, cache_folder: Path, settled: float, trouble: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(digests, "_LOCK_SECONDS", 0.05)
    (tmp_path / "data").write_bytes(bytes(LARGE))
    time.sleep(2 * settled)
    expected = blake3.blake3(bytes(LARGE)).hexdigest()
    assert look(tmp_path / "data") == expected
    file = cache_folder / "digests.sqlite3"
    match trouble:
        case "garbage":
            file.write_bytes(os.urandom(file.stat().st_size))
        case "zeros":  # the header is whole: it is opened, and fails when read
            file.write_bytes(file.read_bytes()[:100].ljust(file.stat().st_size, b"\0"))
        case "foreign":
            file.unlink()
            with closing(sqlite3.connect(file)) as database:
                database.execute("CREATE TABLE digests (something TEXT)")
        case "flipped":
            with closing(sqlite3.connect(file)) as database, database:
                database.execute("UPDATE checked SET digest = '?' || substr(digest, 2)")
        case "no folder":
            monkeypatch.setenv("TEMPER_CACHE", str(file / "below a file"))
    with closing(sqlite3.connect(file)) as other:
        if trouble == "locked":
            other.execute("BEGIN EXCLUSIVE")
        assert look(tmp_path / "data") == expected
    (tmp_path / "data").write_bytes(b"1" * LARGE)
    assert look(tmp_path / "data") != expected


HASH_FOLDER = """
import sys
from pipeline.dag import digests
from pipeline.dag.inputs import source_identity
digests.SETTLED_SECONDS, digests._IN_MEMORY = 0.02, ()
print(source_identity(sys.argv[1]))
"""


def start(code: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_the_cache(tmp_path: Path, cache_folder: Path, settled: float) -> None:
    for number in range(30):
        (tmp_path / str(number)).write_bytes(os.urandom(LARGE))
    time.sleep(2 * settled)
    together = [start(HASH_FOLDER, str(tmp_path)) for _ in range(2)]
    outputs = {process.communicate() for process in together}
    assert outputs == {(f"{look(tmp_path)}\n", "")}
    assert kept(cache_folder) == {str(number) for number in range(30)}
    assert bytes_read(lambda: look(tmp_path)) < 30 * LARGE / 2


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("closed", ["rows.jsonl", "folder", "."])
def test_what_this_user_may_not_read_is_told_from_what_does_not_exist(
    shared_folder: Path, closed: str
) -> None:
    data = shared_folder / ("rows.jsonl" if closed == "rows.jsonl" else "folder/rows.jsonl")
    data.parent.mkdir(exist_ok=True)
    data.write_text("{}")
    (shared_folder / closed).chmod(0)
    with (
        not_as_root(),
        pytest.raises(TemperError, match=r"cannot read input .*Permission denied") as caught,
    ):
        look(data)
    assert "Errno" not in str(caught.value)
    (shared_folder / closed).chmod(0o700)


def test_a_run_that_is_stopped_stops_reading_and_keeps_no_half_digest(
    tmp_path: Path, cache_folder: Path, settled: float
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 2**42)  # all holes: takes no room, and minutes to read
    time.sleep(2 * settled)
    reading = start(f"print('reading', flush=True)\n{HASH_FOLDER}", str(tmp_path))
    try:
        assert reading.stdout
        reading.stdout.readline()
        time.sleep(1)
        reading.send_signal(signal.SIGINT)
        _, error = reading.communicate(timeout=HANGS_SECONDS)
    finally:
        reading.kill()
    assert error == "stopped; run the same command again to go on\n"
    assert kept(cache_folder) == set()


# Objects


@pytest.fixture
def bucket(gcs_bucket: str) -> str:
    """The URL of an empty folder of objects."""
    return f"{gcs_bucket}/{secrets.token_hex(4)}"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that gcsfs makes."""
    import gcsfs

    made: list[str] = []
    send = gcsfs.GCSFileSystem._request

    async def noting(self: Any, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        made.append(f"{method} {path}")
        return await send(self, method, path, *args, **kwargs)

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_request", noting)
    return made


def write(url: str, content: bytes) -> None:
    fs, path = fsspec.url_to_fs(url)
    fs.pipe_file(path, content)


def test_an_object_is_known_by_its_md5_and_not_downloaded(bucket: str, requests: list[str]) -> None:
    write(f"{bucket}/rows.jsonl", b"abc")
    requests.clear()
    assert File(f"{bucket}/rows.jsonl").identity() == {
        "content": {"md5": "kAFQmDzST7DWlj99KOF/cg=="},
        "suffix": ".jsonl",
    }
    assert not any("alt=media" in request or "download" in request for request in requests)
    first = look(f"{bucket}/rows.jsonl")
    write(f"{bucket}/rows.jsonl", b"abd")
    assert source_identity(f"{bucket}/rows.jsonl") == first != look(f"{bucket}/rows.jsonl")
    with pytest.raises(TemperError, match=f"{bucket}/nothing does not exist"):
        look(f"{bucket}/nothing")


def test_a_folder_of_objects_is_known_from_its_listing(bucket: str, requests: list[str]) -> None:
    for folder in ("one", "other"):
        for number in range(20):
            write(f"{bucket}/{folder}/sub{number % 2}/{number}", str(number).encode())
    requests.clear()
    first = look(f"{bucket}/one")
    assert len(requests) <= 4
    assert first == look(f"{bucket}/one/") == look(f"{bucket}/other")
    write(f"{bucket}/one/sub0/0", b"x")
    assert look(f"{bucket}/one") != first


def test_a_change_from_elsewhere_is_seen_although_listings_are_cached(bucket: str) -> None:
    import gcsfs

    elsewhere = gcsfs.GCSFileSystem(token="anon", skip_instance_cache=True)
    write(f"{bucket}/shared/rows.jsonl", b"abc")
    fsspec.url_to_fs(bucket)[0].ls(f"{bucket}/shared", detail=True)
    file, folder = look(f"{bucket}/shared/rows.jsonl"), look(f"{bucket}/shared")
    fsspec.url_to_fs(bucket)[0].ls(f"{bucket}/shared", detail=True)
    elsewhere.pipe_file(f"{bucket}/shared/rows.jsonl", b"abd")
    assert look(f"{bucket}/shared/rows.jsonl") != file
    assert look(f"{bucket}/shared") != folder


def test_a_composite_object_is_known_by_its_generation(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gcsfs

    describe = gcsfs.GCSFileSystem._process_object

    def without_md5(self: Any, bucket: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """As Google describes a composite object; the emulator gives it an MD5."""
        return describe(self, bucket, {k: v for k, v in metadata.items() if k != "md5Hash"})

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_process_object", without_md5)
    for part in ("a", "b"):
        write(f"{bucket}/{part}", part.encode())
    fs, whole = fsspec.url_to_fs(f"{bucket}/whole")
    fs.merge(whole, [fs._strip_protocol(f"{bucket}/{part}") for part in ("a", "b")])
    first = look(f"{bucket}/whole")
    assert isinstance(first, dict)
    assert set(first) == {"crc32c", "size", "generation", "url"}
    assert first["url"] == f"{bucket}/whole"
    assert look(f"{bucket}/whole") == first
    write(f"{bucket}/whole", b"ab")  # merged again, the emulator may keep the number
    assert look(f"{bucket}/whole") != first


def test_the_encoding_of_an_object_counts_since_it_is_decompressed_by_it(bucket: str) -> None:
    url = f"{bucket}/rows.jsonl"
    write(url, gzip.compress(b"{}"))
    before = look(url), look(bucket)
    fs, path = fsspec.url_to_fs(url)
    fs.setxattrs(path, content_encoding="gzip")
    assert fs.cat_file(path) == b"{}"
    assert look(url) != before[0]
    assert look(bucket) != before[1]


def test_an_object_on_s3_is_known_by_its_etag(s3_bucket: str) -> None:
    folder = f"{s3_bucket}/{secrets.token_hex(4)}"
    write(f"{folder}/a.jsonl", b"abc")
    write(f"{folder}/b.jsonl", b"xyz")
    first = look(f"{folder}/a.jsonl")
    assert first == {"etag": "900150983cd24fb0d6963f7d28e17f72", "size": 3}
    rows = look(folder)
    fsspec.filesystem("s3").pipe_file(f"{folder}/sub/", b"")  # an empty folder's marker
    assert look(folder) == rows
    write(f"{folder}/a.jsonl", b"abd")
    assert look(f"{folder}/a.jsonl") != first
    assert look(folder) != rows


def test_elsewhere_the_bytes_are_read() -> None:
    for name, content in (("a", b"abc"), ("sub/b", b"xyz")):
        write(f"memory://elsewhere/{name}", content)
    digest = blake3.blake3(b"abc").hexdigest()
    assert look("memory://elsewhere/a") == digest
    expected = {"a": digest, "sub/b": blake3.blake3(b"xyz").hexdigest()}
    assert look("memory://elsewhere") == hash_json({**expected})


def test_an_edit_is_seen_through_a_cache_of_its_file_system() -> None:
    write("memory://elsewhere/a", b"abc")
    before = look("simplecache::memory://elsewhere/a")
    write("memory://elsewhere/a", b"abd")
    assert look("simplecache::memory://elsewhere/a") != before


# The Hub


class Hub:
    """A server that answers as the Hub does when asked for a repository at a revision."""

    def __init__(self) -> None:
        self.commits = {
            "/api/models/owner/model/revision/main": COMMIT,
            "/api/models/owner/model/revision/v1.0": MOVED,
            "/api/datasets/owner/data/revision/main": COMMIT,
        }
        self.refusal: tuple[int, str] = (404, "RevisionNotFound")
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if "/revision/" in path:  # the library has questions of its own besides
                    hub.asked.append(path)
                    hub.tokens.add(self.headers.get("Authorization"))
                commit = hub.commits.get(path)
                status, code = (200, "") if commit else hub.refusal
                self.send_response(status)
                if not commit:
                    self.send_header("X-Error-Code", code)
                    self.send_header("X-Error-Message", "Invalid rev id")
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps({"id": "owner/x", "sha": commit}).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub()
    monkeypatch.setattr(hub_constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,))
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


def test_a_commit_is_taken_as_it_is(hub: Hub) -> None:
    model = HubModel("owner/model", COMMIT)
    assert model.requested is None
    assert identity(model, "model") == {
        "$type": "HubModel",
        "fields": {"repo": "owner/model", "revision": COMMIT},
    }
    assert identity(HubDataset("owner/data", COMMIT, "train"), "data") == {
        "$type": "HubDataset",
        "fields": {"repo": "owner/data", "revision": COMMIT, "split": "train"},
    }
    assert hub.asked == []


@pytest.mark.parametrize(
    "chosen", [{"name": "main"}, {"data_dir": "a"}, {"data_files": {"train": ["a/*.parquet"]}}]
)
def test_what_is_read_of_a_data_set_is_in_its_identity(chosen: dict[str, Any], hub: Hub) -> None:
    data = HubDataset("owner/data", COMMIT, "train", **chosen)
    assert identity(data, "data") == {
        "$type": "HubDataset",
        "fields": {"repo": "owner/data", "revision": COMMIT, "split": "train", **chosen},
    }
    passed = json.loads(json.dumps(portable(data, "data")))
    assert restore(passed, lambda _: None) == data
    assert hub.asked == []


def test_a_branch_or_tag_is_pinned_to_its_commit(hub: Hub) -> None:
    model, tagged = HubModel("owner/model"), HubModel("owner/model", "v1.0")
    data = HubDataset("owner/data", "", "train")
    assert (model.revision, model.requested) == (COMMIT, "main")
    assert (tagged.revision, tagged.requested) == (MOVED, "v1.0")
    assert (data.revision, data.requested) == (COMMIT, "main")
    assert identity(model, "model") == identity(HubModel("owner/model", COMMIT), "model")
    HubModel("owner/model")
    assert len(hub.asked) == 3


def test_a_branch_that_moved_is_another_input(hub: Hub) -> None:
    first = HubModel("owner/model")
    hub.commits["/api/models/owner/model/revision/main"] = MOVED
    assert HubModel("owner/model") == first
    forget_sources()
    assert identity(HubModel("owner/model"), "model") != identity(first, "model")


def test_a_worker_takes_the_commit_of_the_plan_without_asking(hub: Hub) -> None:
    data = HubDataset("owner/data", "main", "train")
    passed = json.loads(json.dumps(portable(data, "data")))
    hub.commits.clear()
    forget_sources()
    assert restore(passed, lambda _: None) == data
    assert len(hub.asked) == 1


def test_the_users_token_is_used_and_goes_nowhere_else(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    model = HubModel("owner/model")
    assert hub.tokens == {"Bearer hf_secret"}
    assert "secret" not in f"{model} {portable(model, 'model')} {identity(model, 'model')}"


def test_a_revision_that_cannot_be_pinned_is_refused_in_one_line(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = "give the full 40-digit commit"
    with pytest.raises(
        TemperError, match=r"model owner/model has at revision 'v9'.*name a branch, a tag or"
    ) as no:
        HubModel("owner/model", "v9")
    assert "\n" not in str(no.value)
    hub.commits["/api/models/owner/model/revision/odd"] = "not a commit"
    with pytest.raises(TemperError, match=f"answered with the commit 'not a commit'.*{advice}"):
        HubModel("owner/model", "odd")
    monkeypatch.setattr(hub_constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TemperError, match=f"dataset owner/data has at .*refused.*{advice}"):
        HubDataset("owner/data", "main", "train")
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TemperError, match=f"offline mode is enabled.*{advice}"):
        HubModel("owner/other")


# --- files beside inputs ---------------------------------------------------------------------


def beside(*inputs: object) -> InputFolders:
    """The folders of the inputs of a step."""
    return InputFolders.of({"data": portable([*inputs, 5, {"url": "no input"}], "data")})


def test_a_file_beside_an_input_has_a_name_that_moves_with_the_input(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place / "rows").mkdir(parents=True)
    (tmp_path / "link").symlink_to("here")
    here, there = f"{tmp_path}/here", f"{tmp_path}/there"
    remote = File("gs://bucket/rows/c.jsonl")
    found = beside(remote, File(f"{here}/rows/a.jsonl"), Path(f"{here}/b.jsonl"))
    (name,) = found.names(f"{here}/images/1.png", here)
    assert InputFolders.has(name)
    assert found.path(name) == f"{here}/images/1.png"
    assert [*found.names(f"{here}/rows/../images/1.png", f"{here}/")] == [name]
    assert [*found.names(f"{tmp_path}/1.png", str(tmp_path))] == [], "no input lies there"
    moved = beside(remote, File(f"file://{there}/rows/a.jsonl"), File(f"{there}/b.jsonl"))
    assert moved.path(name) == f"{there}/images/1.png"
    together = beside(remote, File(f"{there}/a.jsonl"), File(f"{there}/b.jsonl"))
    assert together.path(name) is None, "they lie in one folder now"
    assert found.path(name.replace("<1:", "<2:")) is None
    linked = beside(File(f"{tmp_path}/link/a.jsonl"))
    for folder in (here, f"{tmp_path}/link"):
        (through,) = linked.names(f"{folder}/1.png", folder)
        assert linked.path(through) == f"{tmp_path}/link/1.png"
