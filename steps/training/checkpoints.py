"""Checkpoints: everything a training run needs to go on as if nothing had happened.

    DIRECTORY/step-000012/state.safetensors   model/<param>, optimizer/<name>/<param>
                          metrics.jsonl       the steps logged so far
                          checkpoint.json     the step, and the size and CRC-32 of each file above

A folder is written under a temporary name, forced to disk and renamed, so a crash leaves either the
whole of it or something that does not verify and is passed over. Nothing is pickled. Data order
and dropout noise are functions of the step, so neither has any state to keep.

A directory belongs to one run: one configuration and one set of examples.
"""

import json
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from steps.training.metrics import StepMetrics, read_metrics, write_metrics

_STATE, _METRICS, _MANIFEST = "state.safetensors", "metrics.jsonl", "checkpoint.json"
_UNFINISHED = "unfinished"
_READ_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training run, of which the newest `keep_last` are kept."""

    directory: Path
    keep_last: int = 1

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, log: list[StepMetrics]
    ) -> None:
        """Makes the state after `step` optimiser steps durable, then removes older ones."""
        unfinished = self.directory / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        save_file(_state(model, optimizer), unfinished / _STATE)
        write_metrics(unfinished / _METRICS, log)
        files = {name: _checksum(unfinished / name) for name in (_STATE, _METRICS)}
        (unfinished / _MANIFEST).write_text(json.dumps({"step": step, "files": files}) + "\n")
        for path in (*unfinished.iterdir(), unfinished):
            _force_to_disk(path)

        final = self.directory / f"step-{step:06d}"
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
        _force_to_disk(self.directory)
        # What is numbered higher did not verify when this run resumed below it.
        earlier = [folder for folder in self._folders() if folder <= final]
        for folder in set(self._folders()) - set(earlier[-self.keep_last :]):
            shutil.rmtree(folder)

    def latest(self) -> Path | None:
        """The newest checkpoint that verifies."""
        return next((folder for folder in reversed(self._folders()) if _verifies(folder)), None)

    def restore(self, model: nn.Module, optimizer: Optimizer) -> list[StepMetrics]:
        """Puts the latest checkpoint into `model` and `optimizer`; returns the steps logged by it.

        The log is empty and nothing is changed when there is no checkpoint. Raises ValueError when
        the checkpoint is of a model with other parameters.
        """
        folder = self.latest()
        if folder is None:
            return []
        _load_state(folder / _STATE, model, optimizer)
        return read_metrics(folder / _METRICS)

    def _folders(self) -> list[Path]:
        return sorted(self.directory.glob("step-[0-9]*"))


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():  # tied parameters appear once
        tensors[f"model/{name}"] = parameter.detach().contiguous()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer/{key}/{name}"] = value.contiguous()
    return tensors


def _load_state(path: Path, model: nn.Module, optimizer: Optimizer) -> None:
    parameters = dict(model.named_parameters())
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        saved = {name.removeprefix("model/") for name in names if name.startswith("model/")}
        if saved != parameters.keys():
            raise ValueError(
                f"checkpoint {path.parent} is of another model (parameters that only one of the "
                f"two has: {sorted(saved ^ parameters.keys())[:3]}); delete it to start afresh"
            )
        for name in names:
            kind, _, rest = name.partition("/")
            if kind == "model":
                parameters[rest].data.copy_(file.get_tensor(name))
            else:
                key, _, parameter_name = rest.partition("/")
                parameter = parameters[parameter_name]
                value = file.get_tensor(name).to(parameter.device, copy=True)
                optimizer.state[parameter][key] = value


def _verifies(folder: Path) -> bool:
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
        return all(
            _checksum(folder / name) == expected for name, expected in manifest["files"].items()
        )
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
