"""Writes metrics as TensorBoard event files: ``sinks/tensorboard/EXPERIMENT/STEP-KEY`` in the
store.

After a kill, a step's files are written again from its first training step.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.show.sinks import Watched


class TensorboardSink:
    def __init__(self) -> None:
        self.folder = Path(".")

    def open(self, watched: Watched) -> "TensorboardView":
        self.folder = watched.folder / "tensorboard"
        name = re.sub(r"[^\w.=-]+", "_", watched.name)[:80] + f"-{watched.key[:8]}"
        group = re.sub(r"[^\w.-]+", "_", watched.group)
        shutil.rmtree(self.folder / group / name, ignore_errors=True)
        return TensorboardView(self.folder / group / name)

    def notice(self) -> str:
        return f"tensorboard --logdir {self.folder}"


class TensorboardView:
    def __init__(self, folder: Path):
        from tensorboard.summary import Writer

        self.writer = Writer(str(folder))

    def log(self, at: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, at)
        self.writer.flush()

    def end(self, summary: Mapping[str, Any] | None) -> None:
        for name, value in (summary or {}).items():
            self.writer.add_scalar(f"final/{name}", value, 0)
        self.writer.close()
