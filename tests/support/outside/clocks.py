"""Clocks that tests set."""

import os
import time
from pathlib import Path


class SharedClock:
    """Takes the place of `time` in a module: seconds pass when a test says so, and then in every
    process that has a clock with the same file. A pause takes real time."""

    sleep = staticmethod(time.sleep)

    def __init__(self, file: Path):
        self.file = file
        if not file.exists():
            self._set(1000.0)

    def monotonic(self) -> float:
        return float(self.file.read_text())

    def advance(self, seconds: float) -> None:
        self._set(self.monotonic() + seconds)

    def _set(self, now: float) -> None:
        temporary = self.file.with_suffix(".new")
        temporary.write_text(f"{now}")
        os.replace(temporary, self.file)
