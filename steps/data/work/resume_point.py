"""The progress of a step in its scratch folder, from which a killed step resumes.

The work is divided into chunks. The numbered files of a chunk are written first. Then one SQLite
transaction records where the next chunk begins and which keys this chunk has seen. If the step is
killed before that, it makes the chunk again, from the same place and with the same known keys, and
the files come out the same. Keys are on disk, not in memory.

The transaction also records the digests of the state and of the files. If one of them does not
match, or SQLite finds its own file damaged, the work begins anew. (A changed bit in a key is not
found.)
"""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CACHE_KIB = 32 * 1024
_TRANSIENT = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
}  # fmt: skip
"""Errors that say nothing about what the file holds."""


class ResumePoint:
    """The state of a step's work and the keys it has seen; a context manager.

    Attributes:
        state: the state of the last `commit`, or `None` at the beginning.
        files: the digests of all files that were committed, by name relative to the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.state: Any = None
        self.files: dict[str, str] = {}
        try:
            self._open()
        except (sqlite3.DatabaseError, ValueError, FileNotFoundError) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT:
                raise
            self._database.close()
            shutil.rmtree(folder)
            self._open()

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(self._folder / "shards.sqlite3")
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        with self._database:
            for table in (
                "state (json TEXT NOT NULL, sha256 TEXT NOT NULL)",
                "files (name TEXT PRIMARY KEY, sha256 TEXT NOT NULL) WITHOUT ROWID",
                "seen (kind TEXT, key BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID",
                "noted (kind TEXT, key BLOB, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID",
            ):
                self._database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        found = self._database.execute("SELECT json, sha256 FROM state").fetchone()
        if found is None:
            return
        if self._database.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
            raise ValueError("the database is damaged")
        if _sha256(found[0].encode()) != found[1]:
            raise ValueError("the state is damaged")
        files = dict(self._database.execute("SELECT name, sha256 FROM files"))
        for name, digest in files.items():
            if _sha256((self._folder / name).read_bytes()) != digest:
                raise ValueError(f"{name} is damaged")
        self.state, self.files = json.loads(found[0]), files

    def is_new(self, kind: str, key: bytes) -> bool:
        """Record `key`; return whether it is new among the keys of its kind."""
        insert = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
        return self._database.execute(insert, (kind, key)).rowcount == 1

    def has(self, kind: str, key: bytes) -> bool:
        """Whether `is_new` has recorded `key` before."""
        found = "SELECT 1 FROM seen WHERE kind = ? AND key = ?"
        return self._database.execute(found, (kind, key)).fetchone() is not None

    def note(self, kind: str, key: bytes, value: bytes = b"") -> None:
        """Keep a value under a key of its kind."""
        self._database.execute("INSERT OR REPLACE INTO noted VALUES (?, ?, ?)", (kind, key, value))

    def note_first(self, kind: str, key: bytes, value: bytes) -> bool:
        """Keep a value under a key of its kind if nothing is kept there; return whether it is."""
        insert = "INSERT OR IGNORE INTO noted VALUES (?, ?, ?)"
        return self._database.execute(insert, (kind, key, value)).rowcount == 1

    def noted(self, kind: str, key: bytes) -> bytes | None:
        """What was kept under a key; None where nothing was."""
        found = "SELECT value FROM noted WHERE kind = ? AND key = ?"
        value = self._database.execute(found, (kind, key)).fetchone()
        return value and value[0]

    def noted_after(self, kind: str, prefix: bytes) -> list[bytes]:
        """Of the keys that are `prefix` and 8 bytes, these bytes, in order."""
        found = "SELECT key FROM noted WHERE kind = ? AND key BETWEEN ? AND ? ORDER BY key"
        keys = self._database.execute(found, (kind, prefix + b"\0" * 8, prefix + b"\xff" * 8))
        return [key[len(prefix) :] for (key,) in keys]

    def commit(self, state: Any, files: Iterable[Path] = ()) -> None:
        """Keep `state`, a JSON value, and what was seen and noted since the last commit. `files`
        of the folder were written since then."""
        for file in files:
            written = str(file.relative_to(self._folder)), _sha256(file.read_bytes())
            self.files |= [written]
            self._database.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", written)
        text = json.dumps(state)
        self._database.execute("DELETE FROM state")
        kept = (text, _sha256(text.encode()))
        self._database.execute("INSERT INTO state VALUES (?, ?)", kept)
        self._database.commit()
        self.state = state

    def __enter__(self) -> "ResumePoint":
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()  # this discards uncommitted keys


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
