"""Checkpoints: everything a training run needs to go on as if nothing had happened.

    DIRECTORY/step-000012/state.safetensors    what the trainer saved: weights, optimiser, version
                          metrics.jsonl        the steps logged so far
                          reference.safetensors  where the reference follows the policy: its logps
                          checkpoint.json      the step, and size and CRC-32 of each file above
              best-000008/weights.safetensors  what `keep_best` has chosen until now
                          checkpoint.json

A folder is written under a temporary name, forced to disk and renamed, so a crash leaves either the
whole of it or something that does not verify and is passed over. Nothing is pickled. Data order and
dropout noise are functions of the step, and what is best so far one of the log, so none of them has
any state to keep.

Several ranks each write a file of their own (``state-00000-of-00002.safetensors``, see `pieces`),
and the folder gets its name when all have said that theirs is on disk. `checkpoint.json` lists the
files of all of them. On nodes that share no disk every disk has a folder with the files of its
ranks, which verifies when the others' have been brought there (as scratch in a bucket is). Ranks go
on from a checkpoint that all of them find whole; it may be of any number of ranks.

Writing goes on beside training, one folder at a time and in the order of the calls: what a
checkpoint relies on is on disk before it.

A directory belongs to one run: one configuration and one set of examples.
"""

import json
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from steps.models.pieces import Stored
from steps.models.ranks import ALONE, Ranks
from steps.shared.execution_detail import kept
from steps.training.metrics import StepMetrics, read_metrics, write_metrics
from steps.training.trainer import Trainer

_STATE, _WEIGHTS, _REFERENCE = "state", "weights", "reference"
_METRICS, _MANIFEST = "metrics.jsonl", "checkpoint.json"
_STEP, _BEST = "step", "best"
_UNFINISHED = "unfinished"
_READ_BYTES = 8 * 2**20

Sizes = dict[str, list[int]]
"""Of files, by name, what `_checksum` gives."""


class Checkpoints:
    """The checkpoints of one training run, of which the newest `keep_last` are kept.

    Used as a context: leaving it waits until what was saved is on disk. All ranks make the same
    calls.

    reference: logps by a reference that follows the policy, by step, of the checkpoint that was
        restored.
    """

    def __init__(self, directory: Path, keep_last: int = 1, ranks: Ranks = ALONE) -> None:
        self.directory = directory
        self.keep_last = keep_last
        self.reference: Mapping[str, Tensor] = {}
        self._ranks = ranks
        self._beside = ranks.beside()
        self._on_this_disk = _on_one_disk(directory, ranks)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None
        if self._leads:
            shutil.rmtree(directory / _UNFINISHED, ignore_errors=True)
        ranks.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, fault: type[BaseException] | None, *_: object) -> None:
        self._writer.shutdown()
        if fault is None:
            self.wait()

    def save(
        self,
        step: int,
        trainer: Trainer,
        log: list[StepMetrics],
        best: int | None = None,
        reference: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Saves the state after `step` steps beside what follows; older ones are then removed.

        Waits for the folder before this one, so that one copy of the state is held at most, and
        raises what went wrong with it. `best` is the step whose weights the run would end with,
        `reference` what the property of that name brings back.
        """
        self.wait()
        file = self._file(_STATE)
        state = trainer.save_checkpoint(file)
        so_far = list(log)

        def write_files() -> list[Path]:
            state.result()
            if not self._leads:
                return [file]
            write_metrics(file.with_name(_METRICS), so_far)
            written = [file, file.with_name(_METRICS)]
            if reference:
                written.append(file.with_name(f"{_REFERENCE}.safetensors"))
                save_file(dict(reference), written[-1])
            return written

        def write() -> None:
            self._commit(write_files, self._folder(_STEP, step), {"step": step, "best": best})
            if self._leads:
                self._remove_superseded(step)

        self._writing = self._writer.submit(write)

    def save_best(self, step: int, trainer: Trainer) -> None:
        """Saves the weights after `step` steps as the best so far, as `save` does."""
        self.wait()
        file = self._file(_WEIGHTS)
        weights = trainer.save_weights(file)

        def write_files() -> list[Path]:
            weights.result()
            return [file]

        self._writing = self._writer.submit(
            lambda: self._commit(write_files, self._folder(_BEST, step), {"step": step})
        )

    def best_weights(self, step: int) -> Stored:
        """What `save_best` saved after `step` steps.

        Raises ValueError if it is no longer whole.
        """
        self.wait()
        folder = self._folder(_BEST, step)
        if not self._verifies(folder):
            raise ValueError(f"{folder} is damaged; delete {self.directory} to train afresh")
        return Stored(_files(folder, _WEIGHTS))

    def latest(self) -> Path | None:
        """The newest checkpoint that verifies, wherever ranks are."""
        here = [_number(folder) for folder in self._folders(_STEP)]
        steps = {step for numbers in self._ranks.gather(here) for step in numbers}
        folders = (self._folder(_STEP, step) for step in sorted(steps, reverse=True))
        return next(filter(self._verifies, folders), None)

    def restore(self, trainer: Trainer) -> list[StepMetrics]:
        """Puts the latest checkpoint into `trainer`; returns the steps logged by it.

        The log is empty and nothing is changed when there is no checkpoint. Raises ValueError when
        the checkpoint is of a model with other parameters.
        """
        folder = self.latest()
        if folder is None:
            return []
        try:
            trainer.load_checkpoint(_files(folder, _STATE)).result()
        except ValueError as error:
            raise ValueError(
                f"checkpoint {folder} is of another model ({error}); delete it to start afresh"
            ) from error
        for file in _files(folder, _REFERENCE):
            self.reference = load_file(file)
        return read_metrics(folder / _METRICS)

    def wait(self) -> None:
        """Returns when what was saved is on disk; raises what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    @property
    def _leads(self) -> bool:
        """Whether this rank names and removes the folders of its disk."""
        return self._ranks.index == self._on_this_disk[0]

    def _file(self, kind: str) -> Path:
        """Where this rank writes, for now."""
        unfinished = self.directory / _UNFINISHED
        unfinished.mkdir(parents=True, exist_ok=True)
        index, count = self._ranks.index, self._ranks.count
        part = f"-{index:05d}-of-{count:05d}" if count > 1 else ""
        return unfinished / f"{kind}{part}.safetensors"

    def _commit(
        self, write_files: Callable[[], list[Path]], final: Path, description: Mapping[str, Any]
    ) -> None:
        """Gives the folder with every rank's files its final name, once all of them are on disk."""
        fault, sizes = None, Sizes()
        try:
            for file in write_files():
                _force_to_disk(file)
                sizes[file.name] = _checksum(file)
        except Exception as error:  # which the others must hear of too
            fault = kept(error)
        told = self._beside.gather({"sizes": sizes, "fault": fault and f"{fault}"})
        if fault is not None:
            raise fault
        for rank, one in enumerate(told):
            if one["fault"] is not None:
                raise OSError(f"rank {rank} could not write its part of {final}: {one['fault']}")
        if self._leads:
            files = {name: size for one in told for name, size in one["sizes"].items()}
            _name(self.directory / _UNFINISHED, final, {**description, "files": files})
        self._beside.wait()

    def _verifies(self, folder: Path) -> bool:
        """Whether every rank finds all files as they were. Each reads some of those on its disk."""
        place, readers = self._on_this_disk.index(self._ranks.index), len(self._on_this_disk)
        try:
            files = sorted(_manifest(folder)["files"].items())[place::readers]
            mine = all(_checksum(folder / name) == expected for name, expected in files)
        except (OSError, ValueError, KeyError):
            mine = False
        return not self._ranks.any(not mine)[0]

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


def _on_one_disk(directory: Path, ranks: Ranks) -> list[int]:
    """The ranks that see what this one writes into `directory`."""
    if ranks.count == 1:
        return [ranks.index]
    directory.mkdir(parents=True, exist_ok=True)
    name = f".disk-{ranks.gather(secrets.token_hex(8))[0]}"
    mine = directory / f"{name}-{ranks.index}"
    mine.touch()
    ranks.wait()
    found = [rank for rank in range(ranks.count) if (directory / f"{name}-{rank}").exists()]
    ranks.wait()
    mine.unlink()
    return found


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[2])


def _name(unfinished: Path, final: Path, description: Mapping[str, Any]) -> None:
    """Describes the files in `unfinished`, makes that durable and gives them their final name."""
    (unfinished / _MANIFEST).write_text(json.dumps(description) + "\n")
    for path in (unfinished / _MANIFEST, unfinished):
        _force_to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    _force_to_disk(final.parent)


def _files(folder: Path, kind: str) -> list[Path]:
    """Those of a kind that ranks have written."""
    return [folder / name for name in sorted(_manifest(folder)["files"]) if name.startswith(kind)]


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / _MANIFEST).read_text())


def _best_of(folder: Path) -> int | None:
    try:
        return _manifest(folder)["best"]
    except (OSError, ValueError, KeyError):
        return None


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
