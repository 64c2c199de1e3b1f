"""The client: a model that is trained in this process, on torch or JAX."""

import json
import math
import re
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from steps.primitives.pending import Pending, after
from steps.training.trainer import Engine, StepResult

_STEP = re.compile(r"step_[0-9]{4,}")
_METADATA = "metadata.json"


class Local:
    """A model, its optimiser and a loss behind calls that return at once.

    Calls run in their order, in one thread. After the first that raises, all later ones raise
    `PoisonedError`, which names the first error: make a new client then, and load a checkpoint.

    weight_version: rises by 1 with each checkpoint that is saved, and comes back with the one that
        is loaded.

    Args:
        model: on torch a module that returns logits, or an output with `.logits`, for the batch's
            entries as keyword arguments. On JAX a function of weights and these arguments. It stays
            on the devices where the user has put it.
        optimizer: an `OptimizerConfig` (by name), or one of the user's own: a `torch.optim`
            optimiser, what makes one of a list of parameters, or a torchopt transformation; on JAX
            an optax transformation.
        loss: maps (logits, labels, loss_mask) to a scalar. A batch gives labels and loss_mask as it
            has them; nothing is shifted.
        backend: "torch", "functional", "jax"; or an `Engine`, such as a trainer of Temper or one of
            the user's own. An engine has model and optimiser already, and says what a batch and a
            loss are: of a `Trainer`, a batch is what `prepare` makes of groups, and its loss a
            `BatchLoss`, which gets the logps of tokens.
        directory: where checkpoints are.
        settings: of the backend: `dtype` (of products: mixed precision), `max_grad_norm`; on torch
            `master_weights`; on JAX `weights`, which it needs.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        backend: str | Engine = "torch",
        directory: Path | str = "checkpoints",
        **settings: Any,
    ) -> None:
        given = (model, optimizer)
        self.backend = backend if isinstance(backend, Engine) else _open(backend, given, settings)
        self._loss, self._step, self.weight_version = loss, 0, 0
        self._directory = Path(directory)

    def forward_backward(self, batch: Any, loss: Any = None) -> Pending[dict[str, float]]:
        """Add the gradient of a batch to that since the last `optim_step`: several calls before one
        step accumulate.

        Args:
            batch: of tensors or arrays by name, such as input_ids, labels and loss_mask, each
                [sequences, tokens]; or what the backend takes.
            loss: for this batch, in the place of the client's.

        Returns `loss`, `grad_norm` (of the gradient so far), and metrics if the loss has any.
        Raises FloatingPointError if the loss is not finite.
        """
        chosen = self._loss if loss is None else loss
        calls = [self.backend.forward_backward(batch, chosen), self.backend.gradient_norm()]
        return after(calls, _reported)

    def optim_step(self, learning_rate: float | None = None) -> Pending[dict[str, float]]:
        """Update the weights, and clear the gradient.

        Returns `lr`, `step` (from 1) and `grad_norm`, before clipping. Raises FloatingPointError if
        that is not finite; then no weight has changed.

        Args:
            learning_rate: of this step; by default the optimiser's own.
        """
        self._step += 1
        step, engine = self._step, self.backend

        def reported(norm: float) -> dict[str, float]:
            return {"lr": engine.learning_rate, "step": step, **_known(norm)}

        return after([engine.optim_step(learning_rate)], reported)

    def get_weights(self) -> Pending[dict[str, Tensor]]:
        """Copies on the host of all weights by name, also of buffers and frozen ones."""
        return Pending(self.backend.whole_weights())

    def load_weights(self, weights: Mapping[str, Tensor]) -> Pending[None]:
        """Replace all weights; the optimiser's state stays.

        Raises ValueError if names or shapes differ from those of `get_weights`.
        """
        return Pending(self.backend.load_whole_weights(weights))

    def save_checkpoint(
        self, step: int, metrics: Mapping[str, Any] | None = None, pickled: bool = False
    ) -> Pending[Path]:
        """Write the folder step_0100 (of step 100) with the state at this call: all weights as
        model.safetensors, the optimiser's state, and metadata.json with `step`, `weight_version`,
        `timestamp` and `metrics`. A folder is there whole or not at all.

        Args:
            pickled: write pytorch_model.bin and optimizer.bin instead.
        """
        self.weight_version += 1
        metadata = {
            "step": step,
            "updates": self._step,
            "weight_version": self.weight_version,
            "timestamp": datetime.now(UTC).isoformat(),
            "metrics": dict(metrics or {}),
        }
        folder = self._directory / f"step_{step:04d}"

        def write(weights: dict[str, Tensor], state: dict[str, Tensor]) -> Path:
            kept = {n: t for n, t in state.items() if not _is_in(weights, n, t)}
            unfinished = folder.with_name(f"{folder.name}-unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            for tensors, name in zip((weights, kept), _names(pickled), strict=True):
                if pickled:
                    torch.save(tensors, unfinished / name)
                else:
                    save_file(tensors, unfinished / name)
            (unfinished / _METADATA).write_text(json.dumps(metadata, indent=1) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
            return folder

        return after([self.backend.whole_weights(), self.backend.state()], write)

    def load_checkpoint(self, path: Path | str | None = None) -> Pending[dict[str, Any]]:
        """Restore weights, optimiser, step and version; returns the metadata.

        Args:
            path: a folder that `save_checkpoint` wrote; by default the latest of the directory.

        Raises FileNotFoundError if there is none, and ValueError if it belongs to another model.
        """
        folder = self._latest() if path is None else Path(path)
        metadata = json.loads((folder / _METADATA).read_text())
        names = _names((folder / _names(True)[0]).exists())
        weights, kept = (_read(folder / name) for name in names)
        state = {f"model/{name}": tensor for name, tensor in weights.items()} | kept
        self._step, self.weight_version = metadata["updates"], metadata["weight_version"]
        return after(self.backend.restore(weights, state), lambda *_: metadata)

    def close(self) -> None:
        """Wait for queued calls, then end the threads."""
        self.backend.close()

    def _latest(self) -> Path:
        found = [path for path in self._directory.glob("step_*") if _STEP.fullmatch(path.name)]
        if not found:
            raise FileNotFoundError(f"{self._directory} has no checkpoint, such as step_0100")
        return max(found, key=lambda path: int(path.name.partition("_")[2]))


def _open(name: str, given: tuple[Any, Any], settings: dict[str, Any]) -> Engine:
    if name == "jax":
        from steps.primitives.own_functions import FunctionEngine

        return FunctionEngine(*given, **settings)
    from steps.primitives.own_modules import FunctionalModuleEngine, ModuleEngine

    engines = {"torch": ModuleEngine, "functional": FunctionalModuleEngine}
    if name not in engines:
        raise ValueError(f"backend must be torch, functional, jax or an Engine, got {name!r}")
    return engines[name](*given, **settings)


def _reported(result: StepResult, norm: float) -> dict[str, float]:
    sums = {name: values.sum().item() for name, values in result.metrics.items()}
    return {"loss": result.losses.sum().item(), **_known(norm), **sums}


def _known(norm: float) -> dict[str, float]:
    return {} if math.isnan(norm) else {"grad_norm": norm}


def _is_in(weights: Mapping[str, Tensor], name: str, tensor: Tensor) -> bool:
    """Whether a tensor of the state is among the weights: it is no finer master."""
    weight = weights.get(name.removeprefix("model/"))
    return name.startswith("model/") and weight is not None and weight.dtype == tensor.dtype


def _names(pickled: bool) -> tuple[str, str]:
    if pickled:
        return "pytorch_model.bin", "optimizer.bin"
    return "model.safetensors", "optimizer.safetensors"


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".bin":
        return torch.load(path, weights_only=True, map_location="cpu")
    return load_file(path)
