"""Checkpoints: the complete state of a training run, so that a resumed run continues identically.

    DIRECTORY/step-000012/state.safetensors    the trainer's state: weights and optimiser
                          metrics.jsonl        the steps logged so far
                          reference.safetensors  where the reference follows the policy: its logps
                          checkpoint.json      the step, and size and CRC-32 of each file above
              best-000008/weights.safetensors  the best weights so far, by `keep_best`
                          checkpoint.json
              snapshot-000010/…           weights that the run writes as a model at its end

A folder is written under a temporary name, forced to disk and renamed. So a crash leaves either a
complete folder, or one that does not verify and is ignored. Nothing is pickled. The order of data
and the dropout noise are functions of the step, and the best step so far is a function of the log,
so the checkpoint need not store them.

Each rank writes its own file (``state-00000-of-00002.safetensors``, see `sharded_tensors`), and the
folder gets its final name when all ranks have reported that their file is on disk.
`checkpoint.json` lists the files of all ranks. On nodes without a shared disk, each disk has a
folder with the files of its ranks; such a folder verifies once the other files have been copied to
it (as happens with scratch in a bucket). Ranks resume from a checkpoint that all of them find
complete. Any number of ranks may have written it.

Checkpoints are written while training continues, one folder at a time and in the order of the
calls. So the best weights to which a checkpoint refers are on disk before it.

A directory belongs to one run: one configuration and one set of examples.
"""

import json
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import Tensor

from steps.data.rows.jsonl import read_json_lines, write_json_lines
from steps.models.ranks import ALONE, Ranks
from steps.models.sharded_tensors import Stored
from steps.shared.execution_detail import kept
from steps.training.metrics import StepMetrics
from steps.training.trainer import Trainer

_STATE, _WEIGHTS, _REFERENCE = "state", "weights", "reference"
_METRICS, _MANIFEST = "metrics.jsonl", "checkpoint.json"
_STEP, _BEST, _SNAPSHOT = "step", "best", "snapshot"
_UNFINISHED = "unfinished"
_READ_BYTES = 8 * 2**20

Sizes = dict[str, list[int]]
"""The result of `_checksum` for each file, by name."""


class Checkpoints:
    """The checkpoints of one training run, of which the newest `keep_last` are kept.

    Used as a context: leaving it waits until what was saved is on disk. All ranks make the same
    calls.

    reference: logps by a reference that follows the policy, by step, and values of rows, of the
        checkpoint that was restored.
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
        """Save the state after `step` steps in the background, then remove older checkpoints.

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
            write_json_lines(file.with_name(_METRICS), so_far)
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
        """Save the weights after `step` steps as the best so far, in the background like `save`."""
        self._save_weights(_BEST, step, trainer)

    def save_snapshot(self, step: int, trainer: Trainer) -> None:
        """Save the weights after `step` steps, in the background like `save`; they stay."""
        self._save_weights(_SNAPSHOT, step, trainer)

    def _save_weights(self, kind: str, step: int, trainer: Trainer) -> None:
        self.wait()
        file = self._file(_WEIGHTS)
        weights = trainer.save_weights(file)

        def write_files() -> list[Path]:
            weights.result()
            return [file]

        self._writing = self._writer.submit(
            lambda: self._commit(write_files, self._folder(kind, step), {"step": step})
        )

    def best_weights(self, step: int) -> Stored:
        """The weights that `save_best` saved after `step` steps.

        Raises ValueError if a file is damaged.
        """
        return self._weights(_BEST, step)

    def snapshot(self, step: int) -> Stored:
        """The weights that `save_snapshot` saved; raises as `best_weights` does."""
        return self._weights(_SNAPSHOT, step)

    def _weights(self, kind: str, step: int) -> Stored:
        self.wait()
        folder = self._folder(kind, step)
        if not self._verifies(folder):
            raise ValueError(f"{folder} is damaged; delete {self.directory} to train afresh")
        return Stored(_files(folder, _WEIGHTS))

    def latest(self) -> Path | None:
        """The newest checkpoint that verifies on all ranks, with the best weights it relies on."""
        here = [_number(folder) for folder in self._folders(_STEP)]
        steps = {step for numbers in self._ranks.gather(here) for step in numbers}
        folders = (self._folder(_STEP, step) for step in sorted(steps, reverse=True))
        return next(filter(self._is_whole, folders), None)

    def restore(self, trainer: Trainer) -> list[StepMetrics]:
        """Load the latest checkpoint into `trainer`, and return its log.

        Without a checkpoint, the log is empty and the trainer stays unchanged. Raises ValueError if
        the checkpoint belongs to a model with other parameters.
        """
        folder = self.latest()
        if folder is None:
            return []
        try:
            trainer.load_checkpoint(_files(folder, _STATE)).result()
        except ValueError as error:
            raise ValueError(
                f"checkpoint {folder} belongs to another model ({error}); delete it to start afresh"
            ) from error
        for file in _files(folder, _REFERENCE):
            self.reference = load_file(file)
        return read_json_lines(folder / _METRICS)

    def wait(self) -> None:
        """Wait until the last saved folder is on disk; raise its error if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    @property
    def _leads(self) -> bool:
        """Whether this rank names and removes the folders of its disk."""
        return self._ranks.index == self._on_this_disk[0]

    def _file(self, kind: str) -> Path:
        """The temporary path of this rank's file."""
        unfinished = self.directory / _UNFINISHED
        unfinished.mkdir(parents=True, exist_ok=True)
        index, count = self._ranks.index, self._ranks.count
        part = f"-{index:05d}-of-{count:05d}" if count > 1 else ""
        return unfinished / f"{kind}{part}.safetensors"

    def _commit(
        self, write_files: Callable[[], list[Path]], final: Path, description: Mapping[str, Any]
    ) -> None:
        """Give the folder its final name, once the files of all ranks are on disk."""
        fault, sizes = None, Sizes()
        try:
            for file in write_files():
                _force_to_disk(file)
                sizes[file.name] = _checksum(file)
        except Exception as error:  # the other ranks must learn of it too
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

    def _is_whole(self, folder: Path) -> bool:
        if not self._verifies(folder):
            return False
        best = _best_of(folder)
        return not best or self._verifies(self._folder(_BEST, best))

    def _verifies(self, folder: Path) -> bool:
        """Whether all files are undamaged. The ranks with a common disk share the reading."""
        place, readers = self._on_this_disk.index(self._ranks.index), len(self._on_this_disk)
        try:
            files = sorted(_manifest(folder)["files"].items())[place::readers]
            mine = all(_checksum(folder / name) == expected for name, expected in files)
        except (OSError, ValueError, KeyError):
            mine = False
        return not self._ranks.any(not mine)[0]

    def _remove_superseded(self, saved: int) -> None:
        # Folders with higher numbers did not verify when this run resumed.
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
        named = re.compile(rf"{kind}-[0-9]{{6,}}")  # a user's copy of a folder has another name
        found = (path for path in self.directory.glob(f"{kind}-*") if named.fullmatch(path.name))
        return sorted(found, key=_number)


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
    """Write the description of the folder `unfinished`, force it to disk, and rename the folder."""
    text = json.dumps({**description, "checksum": _checksum_of(description)})
    (unfinished / _MANIFEST).write_text(f"{text}\n")
    for path in (unfinished / _MANIFEST, unfinished):
        _force_to_disk(path)
    shutil.rmtree(final, ignore_errors=True)
    unfinished.rename(final)
    _force_to_disk(final.parent)


def _files(folder: Path, kind: str) -> list[Path]:
    """The files of one kind from all ranks."""
    return [folder / name for name in sorted(_manifest(folder)["files"]) if name.startswith(kind)]


def _manifest(folder: Path) -> dict[str, Any]:
    """Raises ValueError if it is damaged."""
    found = json.loads((folder / _MANIFEST).read_text())
    if not isinstance(found, dict):
        raise ValueError(f"{folder / _MANIFEST} is damaged")
    checksum = found.pop("checksum", None)  # older checkpoints have none
    if checksum not in (None, _checksum_of(found)):
        raise ValueError(f"{folder / _MANIFEST} is damaged")
    return found


def _checksum_of(description: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(description).encode())


def _best_of(folder: Path) -> int | None:
    try:
        return _manifest(folder)["best"]
    except (OSError, ValueError, KeyError):
        return None


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32, which detect truncated or corrupted files at the speed of reading them."""
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
