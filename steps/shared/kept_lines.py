"""What was paid for, kept as it comes, by the content of what was asked.

    FILE    {"content": digest, …}, a line each

A line that cannot be read, as its writer was killed, is as good as none.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class KeptLines:
    """The values in a file, which may not be there yet. Threads may share it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._found: dict[str, Mapping[str, Any]] = {}
        if file.is_file():
            for line in file.read_text("utf-8", errors="replace").splitlines():
                self._read(line)

    def get(self, content: str) -> Mapping[str, Any] | None:
        """What was kept of this content, if anything."""
        return self._found.get(content)

    def put(self, content: str, value: Mapping[str, Any]) -> None:
        """Keeps a value of JSON, on disk at once."""
        line = json.dumps({"content": content, **value})
        with self._lock:
            self._found[content] = value
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")  # also after half a line

    def _read(self, line: str) -> None:
        try:
            value = json.loads(line)
            self._found[str(value.pop("content"))] = value
        except (ValueError, TypeError, KeyError, AttributeError):
            return


def content_digest(asked: Any) -> str:
    """A digest of what is asked, as JSON."""
    seen = json.dumps(asked, sort_keys=True, default=repr)
    return hashlib.blake2b(seen.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
