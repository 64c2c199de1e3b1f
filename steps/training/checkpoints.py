"""Checkpoints: everything a training run needs to go on as if nothing had happened.

    DIRECTORY/step-000012/state.safetensors    what the backend saved: weights, optimiser, version
                          metrics.jsonl        the steps logged so far
                          checkpoint.json      the step, and size and CRC-32 of each file above
              best-000008/weights.safetensors  what `keep_best` has chosen until now
                          checkpoint.json

A folder is written under a temporary name, forced to disk and renamed, so a crash leaves either the
whole of it or something that does not verify and is passed over. Nothing is pickled. Data order and
dropout noise are functions of the step, and what is best so far one of the log, so none of them has
any state to keep.

Writing goes on beside training, one folder at a time and in the order of the calls: what a
checkpoint relies on is on disk before it.

A directory belongs to one run: one configuration and one set of examples.
"""

import json
import os
import shutil
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from steps.training.backends.protocol import Backend
from steps.training.metrics import StepMetrics, read_metrics, write_metrics

_STATE, _METRICS, _MANIFEST = "state.safetensors", "metrics.jsonl", "checkpoint.json"
_WEIGHTS = "weights.safetensors"
_STEP, _BEST = "step", "best"
_UNFINISHED = "unfinished"
_READ_BYTES = 8 * 2**20


class Checkpoints:
    """The checkpoints of one training run, of which the newest `keep_last` are kept.

    Used as a context: leaving it waits until what was saved is on disk.
    """

    def __init__(self, directory: Path, keep_last: int = 1) -> None:
        self.directory = directory
        self.keep_last = keep_last
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if fault is None:
            self.wait()

    def save(
        self, step: int, backend: Backend, log: list[StepMetrics], best: int | None = None
    ) -> None:
        """Saves the state after `step` steps beside what follows; older ones are then removed.

        Waits for the folder before this one, so that one copy of the state is held at most, and
        raises what went wrong with it. `best` is the step whose weights the run would end with.
        """
        self.wait()
        unfinished = self._start(_UNFINISHED)
        state = backend.save_checkpoint(unfinished / _STATE)
        so_far = list(log)

        def write() -> None:
            state.result()
            write_metrics(unfinished / _METRICS, so_far)
            _commit(unfinished, self._folder(_STEP, step), {"step": step, "best": best})
            self._remove_superseded(step)

        self._writing = self._writer.submit(write)

    def save_best(self, step: int, backend: Backend) -> None:
        """Saves the weights after `step` steps as the best so far, as `save` does."""
        self.wait()
        unfinished = self._start(_UNFINISHED)
        weights = backend.get_weights()

        def write() -> None:
            save_file(weights.result(), unfinished / _WEIGHTS)
            _commit(unfinished, self._folder(_BEST, step), {"step": step})

        self._writing = self._writer.submit(write)

    def best_weights(self, step: int) -> dict[str, Tensor]:
        """What `save_best` saved after `step` steps.

        Raises ValueError if it is no longer whole.
        """
        self.wait()
        folder = self._folder(_BEST, step)
        if not _verifies(folder):
            raise ValueError(f"{folder} is damaged; delete {self.directory} to train afresh")
        return load_file(folder / _WEIGHTS)

    def latest(self) -> Path | None:
        """The newest checkpoint that verifies."""
        return next((f for f in reversed(self._folders(_STEP)) if _verifies(f)), None)

    def restore(self, backend: Backend) -> list[StepMetrics]:
        """Puts the latest checkpoint into `backend`; returns the steps logged by it.

        The log is empty and nothing is changed when there is no checkpoint. Raises ValueError when
        the checkpoint is of a model with other parameters.
        """
        folder = self.latest()
        if folder is None:
            return []
        try:
            backend.load_checkpoint(folder / _STATE).result()
        except ValueError as error:
            raise ValueError(
                f"checkpoint {folder} is of another model ({error}); delete it to start afresh"
            ) from error
        return read_metrics(folder / _METRICS)

    def wait(self) -> None:
        """Returns when what was saved is on disk; raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _start(self, name: str) -> Path:
        folder = self.directory / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _remove_superseded(self, saved: int) -> None:
        # What is numbered higher did not verify when this run resumed below it.
        folders = self._folders(_STEP)
        kept = [folder for folder in folders if _number(folder) <= saved][-self.keep_last :]
        for folder in set(folders) - set(kept):
            shutil.rmtree(folder)
        needed = min((best for folder in kept if (best := _best_of(folder))), default=0)
        for folder in self._folders(_BEST):
            if _number(folder) < needed:
                shutil.rmtree(folder)

    def _folder(self, kind: str, step: int) -> Path:
        return self.directory / f"{kind}-{step:06d}"

    def _folders(self, kind: str) -> list[Path]:
        return sorted(self.directory.glob(f"{kind}-[0-9]*"), key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


def _commit(unfinished: Path, final: Path, description: dict[str, Any]) -> None:
    """Describes the files in `unfinished`, makes them durable and gives them their final name."""
    files = {file.name: _checksum(file) for file in sorted(unfinished.iterdir())}
    (unfinished / _MANIFEST).write_text(json.dumps({**description, "files": files}) + "\n")
    for path in (*unfinished.iterdir(), unfinished):
        _force_to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    _force_to_disk(final.parent)


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _MANIFEST).read_text())


def _best_of(folder: Path) -> int | None:
    try:
        return _manifest(folder)["best"]
    except (OSError, ValueError, KeyError):
        return None


def _verifies(folder: Path) -> bool:
    try:
        files = _manifest(folder)["files"].items()
        return all(_checksum(folder / name) == expected for name, expected in files)
    except (OSError, ValueError, KeyError):
        return False


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32: what tells a torn or flipped file, at the speed of reading it."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            crc = zlib.crc32(block, crc)
    return [path.stat().st_size, crc]


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
