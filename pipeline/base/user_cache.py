"""Caches on the disk of this machine what is known of files, by the content of the file.

The cache belongs to the user of the machine, not to a store: whoever can write to it can run code
anyway. An entry that is damaged is ignored. One that nothing has read for a month is deleted.
"""

import json
import os
import re
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import blake3

FOLDER = "TEMPER_CACHE"
"""The environment variable that names another folder for this user's caches."""

_DAY = 24 * 60 * 60.0
_KEPT = 30 * _DAY
"""How many seconds an entry is kept behind the day of its last use."""
_SWEPT = "swept"
"""An empty file; its time is that of the last `forget_unused`."""
_OURS = re.compile(r"([0-9a-f]{38}|half-\w+)\.json")
"""The names of entries, and of what was half written when its process died."""


def load(path: Path) -> Any:
    """Read a value that `save` wrote.

    Raises:
        OSError: there is no such file.
        ValueError: the file is damaged.
    """
    digest, _, data = path.read_bytes().partition(b"\n")
    if digest != _checksum(data):
        raise ValueError(f"{path} is damaged")
    if _age(path) > _DAY:
        with suppress(OSError):  # others' entries can be read, say, and not touched
            os.utime(path)
    return json.loads(data)


def save(path: Path, value: Any) -> None:
    """Write a JSON value and its digest atomically; do nothing if that fails."""
    with suppress(OSError, RecursionError, UnicodeError):
        data = json.dumps(value, separators=(",", ":")).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(".json", "half-", path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_checksum(data) + b"\n" + data)
            os.replace(temporary, path)
        except OSError:  # the disk is full, say
            os.unlink(temporary)
            raise


def forget_unused() -> None:
    """Delete the entries that nothing has read for a month; do nothing if this was done today."""
    folder = _folder()
    swept = folder / _SWEPT
    with suppress(OSError):
        if swept.is_file() and _age(swept) <= _DAY:
            return
        swept.touch()
        for file in folder.glob("*/??/*.json"):
            with suppress(OSError):  # another process may do the same
                if _OURS.fullmatch(file.name) and _age(file) > _KEPT:
                    file.unlink()


def _age(file: Path) -> float:
    """The seconds since a file was written or marked as used."""
    return time.time() - file.stat().st_mtime


def place(kind: str, about: bytes) -> Path:
    """The path of a cache entry of a kind; `about` holds everything that it depends on."""
    digest = blake3.blake3(about).hexdigest()[:40]
    return _folder() / kind / digest[:2] / f"{digest[2:]}.json"


def _checksum(data: bytes) -> bytes:
    return blake3.blake3(data).hexdigest().encode()


def cache_folder() -> Path:
    """The folder of this user's caches. Where a user has no home, as in some containers, nothing
    can be written to it."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.path.expanduser(os.environ.get(FOLDER) or f"{home}/temper")
    return Path(os.devnull if folder.startswith("~") else folder)


_folder = cache(cache_folder)


def version_of(*patterns: str, folder: Path) -> str:
    """A digest of the modules of a package whose paths match, so that results of another version of
    them are ignored. Call it at import time: later, the files may have changed."""
    hasher = blake3.blake3()
    for file in sorted(file for pattern in patterns for file in folder.glob(pattern)):
        with suppress(OSError):
            hasher.update(file.read_bytes())
    return hasher.hexdigest()[:16]
