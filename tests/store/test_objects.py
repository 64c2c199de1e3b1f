"""What the store may rely on, on every kind of file system it is offered."""

import contextlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import fresh_processes
import fsspec
import fsspec.config
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from waiting import HANGS_SECONDS

from pipeline.base.errors import TemperError
from pipeline.store import network_timeouts, objects
from pipeline.store.objects import Objects, S3Objects, open_objects


@pytest.fixture
def place(store_url: str) -> tuple[Objects, str]:
    return open_objects(store_url)


# --- one writer wins -----------------------------------------------------------------------------


def _create_all(objects: Objects, root: str, name: str, start, won) -> None:
    start.wait()
    for number in range(4):
        if objects.create(f"{root}/new/{number}", name.encode()):
            won.put((number, name))


def _fork_into_writers(url: str, won: Any) -> None:
    """Processes that have inherited what is open, as those which Luigi starts."""
    start = fresh_processes.FORK.Barrier(16)
    objects, root = open_objects(url)
    arguments = [(objects, root, f"process {i}", start, won) for i in range(16)]
    processes = [fresh_processes.FORK.Process(target=_create_all, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    won.put(None)


@pytest.mark.slow
def test_of_many_processes_that_create_an_object_one_wins(
    place: tuple[Objects, str], store_url: str
) -> None:
    objects, root = place
    won = fresh_processes.CONTEXT.Queue()
    fresh_processes.call(_fork_into_writers, store_url, won)
    *winners, last = [won.get(timeout=HANGS_SECONDS) for _ in range(5)]
    assert last is None
    for number, name in winners:
        assert objects.read(f"{root}/new/{number}") == name.encode()
    assert sorted(number for number, _ in winners) == list(range(4))
    assert set(objects.sizes(root)) == {f"new/{number}" for number in range(4)}  # nothing is left


def test_an_object_is_created_once_and_replaced_whenever_asked(place: tuple[Objects, str]) -> None:
    objects, root = place
    assert objects.read(f"{root}/a") is None
    assert objects.create(f"{root}/a", b"first")
    assert not objects.create(f"{root}/a", b"second")
    assert objects.read(f"{root}/a") == b"first"
    before = objects.list(root)
    objects.replace(f"{root}/a", b"third")
    assert objects.read(f"{root}/a") == b"third"
    assert objects.list(root)[0].version != before[0].version
    objects.remove(f"{root}/a")
    objects.remove(f"{root}/a")
    assert objects.read(f"{root}/a") is None
    assert objects.create(f"{root}/a", b"again")


@contextlib.contextmanager
def _serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Answers(BaseHTTPRequestHandler):
    """An S3 server that says what it was told to say, one answer a request."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[tuple[int, str]]] = []

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, code = self.answers.pop(0)
        message = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(message)))
        self.end_headers()
        self.wfile.write(message)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "created"),
    [
        ([(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")], False),
        ([(409, "ConditionalRequestConflict"), (200, "")], True),
        ([(412, "PreconditionFailed")], False),
    ],
)
def test_s3_is_asked_again_when_writers_met_and_need_not_name_the_condition(
    answers: list[tuple[int, str]], created: bool, s3_bucket: str
) -> None:
    with _serving(_Answers) as url:
        _Answers.answers[:] = answers
        objects = S3Objects(fsspec.filesystem("s3", endpoint_url=url))
        assert objects.create("bucket/a", b"data") is created
        assert _Answers.answers == []


def test_any_other_file_system_that_creates_exclusively_will_do() -> None:
    objects, root = open_objects("memory://objects")
    assert objects.list(root) == []
    assert objects.create(f"{root}/folder/a", b"first")
    assert not objects.create(f"{root}/folder/a", b"second")
    assert objects.read(f"{root}/folder/a") == b"first"
    assert objects.folders(root) == ["folder"]
    before = objects.list(f"{root}/folder")
    objects.replace(f"{root}/folder/a", b"third")
    assert objects.list(f"{root}/folder") != before
    assert objects.sizes(root) == {"folder/a": 5}
    objects.remove(f"{root}/folder/a")
    objects.remove(f"{root}/folder/a")
    objects.remove_tree(root)
    objects.remove_tree(root)
    assert objects.sizes(root) == {}


# --- listings ------------------------------------------------------------------------------------


def test_a_listing_tells_objects_from_folders(place: tuple[Objects, str]) -> None:
    objects, root = place
    for path in ("b", "a", ".hidden", "folder/c", "folder/deep/d", ".secret/e"):
        objects.create(f"{root}/{path}", path.encode())
    assert [(entry.name, entry.size) for entry in objects.list(root)] == [("a", 1), ("b", 1)]
    assert objects.folders(root) == ["folder"]
    assert objects.sizes(f"{root}/folder") == {"c": 8, "deep/d": 13}
    assert set(objects.sizes(root)) >= {".hidden", ".secret/e", "folder/deep/d"}


def test_what_is_not_there_is_listed_empty_and_removed_in_peace(place: tuple[Objects, str]) -> None:
    objects, root = place
    objects.create(f"{root}/here-too/a", b"")
    nowhere = f"{root}/here"  # the beginning of another name
    assert objects.list(nowhere) == []
    assert objects.folders(nowhere) == []
    assert objects.sizes(nowhere) == {}
    objects.remove_tree(nowhere)
    assert objects.sizes(root) == {"here-too/a": 0}


def _change(url: str) -> None:
    objects, root = open_objects(url)
    objects.create(f"{root}/new/object", b"12")
    objects.replace(f"{root}/kept", b"123")
    objects.remove(f"{root}/gone")


def test_a_listing_shows_what_another_process_just_did(
    place: tuple[Objects, str], store_url: str
) -> None:
    objects, root = place
    objects.create(f"{root}/gone", b"")
    objects.create(f"{root}/kept", b"")
    assert objects.sizes(root) == {"gone": 0, "kept": 0}
    assert [entry.name for entry in objects.list(root)] == ["gone", "kept"]
    assert objects.folders(root) == []
    fresh_processes.call(_change, store_url)
    assert objects.sizes(root) == {"kept": 3, "new/object": 2}
    assert [entry.name for entry in objects.list(root)] == ["kept"]
    assert objects.folders(root) == ["new"]


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_a_listing_is_one_request_also_of_a_folder_that_is_not_there(
    kind: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for logger in map(logging.getLogger, ("gcsfs", "s3fs")):  # whoever has silenced them before
        for name, value in {"disabled": False, "propagate": True, "level": logging.NOTSET}.items():
            monkeypatch.setattr(logger, name, value)
    objects, root = open_objects(f"{request.getfixturevalue(f'{kind}_bucket')}/requests")
    objects.create(f"{root}/there/a", b"")
    for folder in ("there", "not-there"):
        for listing in (objects.list, objects.folders, objects.sizes):
            caplog.clear()
            with caplog.at_level(logging.DEBUG):
                listing(f"{root}/{folder}")
            messages = [record.getMessage() for record in caplog.records]
            sent = [text for text in messages if text.startswith(("GET: ", "CALL: "))]
            assert len(sent) == 1, sent


def test_a_listing_longer_than_a_page_is_complete(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, root = open_objects(f"{s3_bucket}/pages")
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    names = [f"{number}" for number in range(8)]
    for name in names:
        objects.create(f"{root}/{name}/object", b"")
        objects.create(f"{root}/{name}", b"")
    assert objects.folders(root) == names
    assert [entry.name for entry in objects.list(root)] == names
    assert len(objects.sizes(root)) == 16


# --- whole folders -------------------------------------------------------------------------------


def test_a_folder_comes_back_as_it_went(place: tuple[Objects, str], tmp_path: Path) -> None:
    objects, root = place
    files = {"a.txt": b"a", "deep/er/b.bin": b"\0" * 1000, ".hidden": b"", "deep/empty": b""}
    for name, data in files.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(data)
    for _ in range(2):  # over what is there already too
        objects.upload(tmp_path / "there", f"{root}/copy")
        objects.download(f"{root}/copy", tmp_path / "back")
    assert objects.sizes(f"{root}/copy") == {name: len(data) for name, data in files.items()}
    back = {
        str(path.relative_to(tmp_path / "back")): path.read_bytes()
        for path in (tmp_path / "back").rglob("*")
        if path.is_file()
    }
    assert back == files
    objects.remove_tree(f"{root}/copy")
    assert objects.sizes(root) == {}


class LossyFileSystem(MemoryFileSystem):
    """Says that it has taken all of a file, and drops the last byte."""

    protocol = "lossy"
    store: dict = {}  # noqa: RUF012

    def put_file(self, lpath, rpath, *_, **options) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes()[:-1])


def test_an_upload_that_came_short_is_an_error(tmp_path: Path) -> None:
    fsspec.register_implementation("lossy", LossyFileSystem, clobber=True)
    (tmp_path / "model.bin").write_bytes(b"1234")
    objects, root = open_objects("lossy://store")
    with pytest.raises(OSError, match=r"1 of 1 files came short in .*, as model.bin"):
        objects.upload(tmp_path, f"{root}/copy")


def _remove_as_a_common_user() -> None:
    if os.geteuid() == 0:
        os.setuid(65534)  # the superuser is asked for no permission
    root = Path(tempfile.mkdtemp())
    (root / "content" / "deep").mkdir(parents=True)
    for folder in (root / "content" / "deep", root / "content"):
        (folder / "file").write_text("kept from harm")
        (folder / "file").chmod(0o400)
        folder.chmod(0o500)
    objects, _ = open_objects(str(root))
    objects.remove_tree(str(root / "content"))
    assert list(root.iterdir()) == []
    root.rmdir()


def test_what_was_made_read_only_can_be_removed() -> None:
    fresh_processes.call(_remove_as_a_common_user)


# --- what goes wrong -----------------------------------------------------------------------------


def test_an_address_where_nothing_answers_is_told_before_a_client_repeats_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"endpoint_url": url})
    monkeypatch.setattr(network_timeouts, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(fsspec, "url_to_fs", lambda *_, **__: pytest.fail("it was opened"))
    told = r"cannot open gs://bucket/a: 127\.0\.0\.1 does not answer \(.*refused\); check that"
    with pytest.raises(TemperError, match=told):
        open_objects("gs://bucket/a")


def test_a_network_that_fails_for_a_moment_or_is_slow_is_no_wrong_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [OSError("no route"), ConnectionRefusedError(), TimeoutError("slow")]

    def connect(*_: Any) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(network_timeouts, "PATIENCE_SECONDS", HANGS_SECONDS)
    monkeypatch.setattr(network_timeouts, "_PAUSE_SECONDS", 0.0)
    network_timeouts.require_answer("https://a-host.example/storage/v1/")
    assert not errors


@pytest.mark.parametrize("write", ["create", "replace"])
def test_a_write_bears_with_a_folder_that_is_removed_as_empty_just_before_it(
    write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``temper gc`` removes folders that it has emptied."""
    made: list[Path] = []
    local, place = open_objects(str(tmp_path))
    path = Path(place, "progress/step/key.json")
    make_folder = objects.make_folder

    def removed_twice(folder: Path) -> None:
        make_folder(folder)
        made.append(folder)
        if len(made) < 3:
            folder.rmdir()

    monkeypatch.setattr(objects, "make_folder", removed_twice)
    getattr(local, write)(str(path), b"1")
    assert path.read_bytes() == b"1"
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("url", ["nonsense://store", ""])
def test_a_url_of_no_file_system_is_refused_with_advice(url: str) -> None:
    with pytest.raises(TemperError, match=r"store"):
        open_objects(url)


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "local:", "local://"])
def test_a_local_folder_is_also_a_url(prefix: str, tmp_path: Path) -> None:
    objects, root = open_objects(f"{prefix}{tmp_path}/store")
    assert (objects.is_local, root) == (True, f"{tmp_path}/store")


@pytest.mark.parametrize("url", ["gs:/bucket/store", "s3:/bucket", "memory:/store"])
def test_a_url_that_lacks_a_slash_is_no_folder(url: str) -> None:
    with pytest.raises(TemperError, match="an address has two slashes"):
        open_objects(url)
