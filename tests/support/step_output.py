"""Step functions called directly, without a store."""

from pathlib import Path
from typing import Any


class Folder:
    """A step function's `out`: files go into `path`; `told` has what it said of its progress."""

    stopping = False

    def __init__(self, path: Path, scratch: Path | None = None):
        self.path = path
        self.scratch = scratch or path.with_name(f"{path.name}-scratch")
        for folder in (self.path, self.scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self.told: list[tuple[float, float | None]] = []

    def progress(self, done: float, total: float | None, metrics: Any = None) -> None:
        self.told.append((done, total))
