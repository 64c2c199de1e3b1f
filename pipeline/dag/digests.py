"""Digests of local files: BLAKE3 of their bytes, computed in parallel and cached for large files.

Reading 100 GB to plan a cached run takes minutes. So the digest of a file is cached with the state
that the file system reports: device, inode, size, and the times of the last change of the content
(``mtime``) and of the inode (``ctime``). If all five are unchanged, so are the bytes, provided that
the file had not been modified for a while when it was read. Otherwise an edit could follow within
one tick of the clock and leave no trace. (Git calls such an entry "racily clean": its
documentation, technical/racy-git.) So a recently modified file is read every time, and so is a
file in memory (``/dev/shm``), whose times a write through a memory map does not change.

The cache may be deleted, or fail in any way; then files are read. Each entry has a checksum, and a
damaged one is ignored. It is ``digests.sqlite3`` in ``$TEMPER_CACHE``, or else in ``temper`` in the
user's cache folder.
"""

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from io import FileIO
from typing import NamedTuple, TypeVar

import blake3

from pipeline.base.errors import TemperError
from pipeline.base.user_cache import cache_folder
from pipeline.dag.files import describe_stream

SETTLED_SECONDS = 60.0
"""How long a file must be unmodified before its digest is cached. The clock of a file system ticks
every 2 s at worst (FAT). But a write through a shared memory map changes ``mtime`` once, and then
not again until the kernel has written the page out (Linux: after 30 to 35 s)."""
KEPT_BYTES = 64 * 2**10
"""Smaller files are read every time, which is as fast as a look into the cache."""

_MOUNTS = "/proc/self/mountinfo"
_IN_MEMORY = (b"tmpfs", b"ramfs", b"hugetlbfs")
_SAVE_SECONDS = 2.0
_LOCK_SECONDS = 2.0

_T = TypeVar("_T")


def file_digests(paths: Iterable[str]) -> list[str]:
    """BLAKE3 of the bytes of each file, as 64 hexadecimal digits.

    Raises:
        OSError: a file does not exist or cannot be read.
        ValueError: a path names no regular file.
        TemperError: a file changed while it was read.
    """
    stop = threading.Event()
    with closing(_KeptDigests()) as kept, ThreadPoolExecutor() as pool:
        try:
            return list(pool.map(lambda path: _settled_digest(path, kept, stop), paths))
        except BaseException:
            stop.set()  # otherwise Ctrl-C would wait for the files that are being read
            raise


def _settled_digest(path: str, kept: "_KeptDigests", stop: threading.Event) -> str:
    if not stat.S_ISREG(os.stat(path).st_mode):  # before opening, since opening a pipe would block
        raise ValueError(f"{path} is not a regular file")
    began = time.time()
    with open(path, "rb", buffering=0) as file:
        state = _FileState.of(file)
        if state.size >= KEPT_BYTES and (known := kept.recall(path, state)):
            return known
        digest = _hash(file, state.size, stop)
        if _FileState.of(file) != state:
            raise TemperError(f"{path} changed while it was read; try again when it is complete")
    if state.size >= KEPT_BYTES and state.last_change < began - SETTLED_SECONDS:
        kept.keep(path, state, digest)
    return digest


def _hash(file: FileIO, size: int, stop: threading.Event) -> str:
    def go_on(_: int) -> None:
        if stop.is_set():
            raise InterruptedError(f"stopped while reading {file.name}")

    return describe_stream(file, size, go_on).blake3


class _FileState(NamedTuple):
    """The state of a file that the file system reports; while it is unchanged, so are the bytes."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: FileIO) -> "_FileState":
        # use the open file: on a network file system, a path's state may be seconds out of date
        now = os.fstat(file.fileno())
        return cls(now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)

    @property
    def last_change(self) -> float:
        return max(self.mtime_ns, self.ctime_ns) / 1e9


class _KeptDigests:
    """The cache, shared by several threads. It disables itself after the first error of any kind: a
    full disk, missing permission, a damaged file, or a lock that another process holds too long."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._in_memory = _devices_in_memory()
        self._usable = True
        self._unsaved: list[tuple[bytes, str, str]] = []
        self._saved_at = time.monotonic()

    def recall(self, path: str, state: _FileState) -> str | None:
        """The digest of the file at ``path``, if it was cached for exactly this state."""
        if state.device in self._in_memory:  # an older version of Temper kept these too
            return None
        select = "SELECT digest FROM checked WHERE path = ? AND state = ?"
        key = _row_key(path, state)
        (entry,) = self._try(lambda db: db.execute(select, key).fetchone()) or ("",)
        digest = str(entry).partition(" ")[0]
        return digest if entry == _with_checksum(key, digest) else None

    def keep(self, path: str, state: _FileState, digest: str) -> None:
        """Cache a digest. Digests are saved every few seconds, so an interrupted run loses few."""
        if state.device in self._in_memory:
            return
        key = _row_key(path, state)
        self._unsaved.append((*key, _with_checksum(key, digest)))
        if time.monotonic() - self._saved_at > _SAVE_SECONDS:
            self._try(self._save)

    def close(self) -> None:
        if self._unsaved:
            self._try(self._save)
        if self._database is not None:
            self._database.close()

    def _save(self, database: sqlite3.Connection) -> None:
        rows, self._unsaved = self._unsaved, []
        with database:
            database.executemany("INSERT OR REPLACE INTO checked VALUES (?, ?, ?)", rows)
        self._saved_at = time.monotonic()

    def _try(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        with self._lock:
            if not self._usable:
                return None
            try:
                if self._database is None:
                    self._database = _open_database()
                return work(self._database)
            except (sqlite3.Error, OSError, RuntimeError):
                self._usable = False
                return None


def _devices_in_memory() -> set[int]:
    """The devices of Linux's file systems that have no disk."""
    found = set()
    with contextlib.suppress(OSError), open(_MOUNTS, "rb") as mounts:
        for mount in mounts:
            fields, _, kind = mount.partition(b" - ")
            if kind.startswith(_IN_MEMORY):
                major, _, minor = fields.split()[2].partition(b":")
                found.add(os.makedev(int(major), int(minor)))
    return found


def _row_key(path: str, state: _FileState) -> tuple[bytes, str]:
    # bytes and text: a file's name may be invalid Unicode, and its inode exceed SQLite's 63 bits
    return os.fsencode(os.path.abspath(path)), " ".join(map(str, state))


def _with_checksum(key: tuple[bytes, str], digest: str) -> str:
    path, state = key
    data = b"\0".join([path, state.encode(), digest.encode()])
    return f"{digest} {blake3.blake3(data).hexdigest(16)}"


def _open_database() -> sqlite3.Connection:
    # SQLite's write-ahead log would be faster, but does not work on network file systems, where
    # home folders often lie. Synchronous writes are off, since a loss would do no harm.
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "digests.sqlite3"
    database = sqlite3.connect(file, timeout=_LOCK_SECONDS, check_same_thread=False)
    database.execute("PRAGMA synchronous = OFF")
    database.execute(
        "CREATE TABLE IF NOT EXISTS checked"  # older versions have a table without checksums
        " (path BLOB PRIMARY KEY, state TEXT NOT NULL, digest TEXT NOT NULL) WITHOUT ROWID"
    )
    return database
