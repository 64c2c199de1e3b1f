"""Stock `transformers` models on one device.

All work on the model happens in one thread, in the order of the calls (`queue.SerialQueue`), so the
caller's thread is free. Within a step nothing is read back from the device until the last forward:
what the loss says of each group stays there and comes to the host in one transfer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.training.backends.protocol import Batch, BatchLoss, Logps, StepResult
from steps.training.backends.queue import SerialQueue
from steps.training.backends.usage import Usage
from steps.training.config import OptimizerConfig
from steps.training.examples import TokenGroup
from steps.training.lora import keep_adapter_dropout
from steps.training.optimization import Updater
from steps.training.packing import Pack, make_pack, plan_packs
from steps.training.pieces import Pieces, Stored, Whole, on_host, pieces_of
from steps.training.scoring import Scored, forward_backward, sequence_logps, token_logps

Result = TypeVar("Result")

_VERSION = "weight_version"


class TorchBackend:
    """A `Backend` over a model that is on its device, its attention chosen by `parity`.

    Args:
        tokens_per_forward: the most tokens of one forward; a longer example has its own.
        optimizer: None for a model that is only scored.
        dropout: the model's own dropout, if it has any, acts in `forward_backward`. A preference
            loss wants none, as its reference was computed without. That of adapters always acts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens_per_forward: int,
        optimizer: OptimizerConfig | None = None,
        master_weights: bool = True,
        dropout: bool = False,
    ) -> None:
        self._model = model
        self._tokens_per_forward = tokens_per_forward
        self._updater: Updater | None = None
        if optimizer is not None:
            self._updater = Updater(model, optimizer, master_weights)
        self._usage = Usage(model, tokens_per_forward)
        self._queue = SerialQueue("backend")
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="backend-writer")
        self._weight_version = 0
        model.train(dropout)
        keep_adapter_dropout(model)

    @property
    def weight_version(self) -> int:
        return self._weight_version

    def examine(self, look: Callable[[PreTrainedModel], Result]) -> Result:
        """What `look` finds when it is called with the model, without gradients, in its turn."""

        def examined() -> Result:
            with torch.no_grad():
                return self._with_model(look)

        return self._queue.submit(examined).result()

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        plan = plan_packs([group.packed_tokens for group in groups], self._tokens_per_forward)
        return Batch(tuple(groups), self._packs(groups, plan), as_tensors(plan), noise)

    def forward_backward(self, batch: Batch, loss: BatchLoss) -> Future[StepResult]:
        return self._queue.submit(lambda: self._forward_backward(batch, loss))

    def optim_step(self, learning_rate: float) -> Future[float]:
        return self._queue.submit(lambda: self._optim_step(learning_rate))

    def logps(self, batch: Batch) -> Future[Logps]:
        return self._queue.submit(lambda: self._logps(batch))

    def get_weights(self) -> Future[dict[str, Tensor]]:
        return self._queue.submit(self._weights)

    def load_weights(self, weights: Mapping[str, Whole]) -> Future[None]:
        def load() -> None:
            self._trained.load_weights(weights)
            self._weight_version += 1

        return self._queue.submit(load)

    def save_weights(self, path: Path) -> Future[None]:
        return self._save(path, lambda: self._trained.weights())

    def save_checkpoint(self, path: Path) -> Future[None]:
        return self._save(path, lambda: self._trained.state())

    def load_checkpoint(self, files: Sequence[Path]) -> Future[None]:
        return self._queue.submit(lambda: self._load_checkpoint(files))

    def usage(self, batch: Batch, seconds: float) -> dict[str, float]:
        return self._usage.report(batch, seconds)

    def close(self) -> None:
        self._queue.close()
        self._writer.shutdown()

    @property
    def _trained(self) -> Updater:
        if self._updater is None:
            raise ValueError("this backend was built without an optimizer: it scores, no more")
        return self._updater

    def _with_model(self, call: Callable[[PreTrainedModel], Result]) -> Result:
        return call(self._model)

    def _packs(self, groups: Sequence[TokenGroup], plan: Sequence[list[int]]) -> tuple[Pack, ...]:
        packs = (make_pack([groups[i] for i in members]) for members in plan)
        return tuple(map(_pinned, packs) if self._model.device.type == "cuda" else packs)

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        torch.manual_seed(batch.noise)
        device = self._model.device
        loss = loss.to(device)
        parts = [
            self._pack_forward_backward(pack.to(device), _to(members, device), loss)
            for pack, members in zip(batch.packs, batch.members, strict=True)
        ]
        names = list(parts[0].metrics)
        values = values_by_group(parts)[:, torch.cat(batch.members).argsort()]
        return step_result(names, values, batch.groups)

    def _pack_forward_backward(self, pack: Pack, members: Tensor, loss: BatchLoss) -> Scored:
        return forward_backward(
            self._model, pack, lambda logps, groups: loss(logps, members[groups])
        )

    def _optim_step(self, learning_rate: float) -> float:
        norm = self._trained.step(learning_rate)
        self._weight_version += 1
        return norm

    def _logps(self, batch: Batch) -> Logps:
        tokens, sequences = [], []
        for pack in batch.packs:
            on_device = pack.to(self._model.device)
            tokens.append(token_logps(self._model, on_device))
            sequences.append(sequence_logps(tokens[-1], on_device))
        places = torch.cat(batch.members).tolist()
        return scored_in_batch_order(
            batch.groups, places, torch.cat(tokens).cpu(), torch.cat(sequences).cpu()
        )

    def _weights(self) -> dict[str, Tensor]:
        return {name: on_host(tensor) for name, tensor in self._trained.weights().items()}

    def _save(self, path: Path, tensors: Callable[[], Mapping[str, Tensor]]) -> Future[None]:
        copied = self._queue.submit(lambda: (self._pieces(tensors()), self._weight_version))

        def write() -> None:
            pieces, version = copied.result()
            pieces.write(path, {_VERSION: str(version)})

        return self._writer.submit(write)

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Pieces:
        return pieces_of(tensors)

    def _load_checkpoint(self, files: Sequence[Path]) -> None:
        stored = Stored(files)
        self._trained.load_state(stored)
        self._weight_version = int(stored.metadata[_VERSION])


def values_by_group(parts: Sequence[Scored]) -> Tensor:
    """Losses, logps and metrics of the packs' groups, in one transfer: float64
    [1 + responses of a group + metrics, n]."""
    rows = [torch.cat([part.losses for part in parts]).double()]
    rows += torch.cat([part.logps for part in parts]).double().unbind(dim=1)
    for name in parts[0].metrics:
        rows.append(torch.cat([part.metrics[name] for part in parts]).double())
    return torch.stack(rows).cpu()


def step_result(names: Sequence[str], values: Tensor, groups: Sequence[TokenGroup]) -> StepResult:
    """The result of a batch from `values_by_group` of it, in its order.

    Raises FloatingPointError naming the rows whose loss is not finite.
    """
    finite = torch.isfinite(values[0]).tolist()
    rows = [group.row for group, is_finite in zip(groups, finite, strict=True) if not is_finite]
    if rows:
        raise FloatingPointError(f"the loss of {rows[:8]} is not finite")
    losses, logps, metrics = values.split([1, len(values) - 1 - len(names), len(names)])
    return StepResult(losses[0], logps.T, dict(zip(names, metrics, strict=True)))


def scored_in_batch_order(
    groups: Sequence[TokenGroup], places: Sequence[int], tokens: Tensor, sequences: Tensor
) -> Logps:
    """What was scored pack by pack, that is the groups `places` one after the other, as the batch
    `groups` has them."""
    in_packs = [groups[place] for place in places]
    by_response = tokens.split([r.num_scored for group in in_packs for r in group.responses])
    starts = accumulate((len(group.responses) for group in in_packs), initial=0)
    first = dict(zip(places, starts, strict=False))
    order = [
        first[place] + i for place, group in enumerate(groups) for i in range(len(group.responses))
    ]
    return Logps(tuple(by_response[i] for i in order), sequences[order])


def as_tensors(plan: Sequence[list[int]]) -> tuple[Tensor, ...]:
    """The members of each pack, as `Batch` has them."""
    return tuple(map(torch.tensor, plan))


def _pinned(pack: Pack) -> Pack:
    values = {field.name: getattr(pack, field.name) for field in fields(pack)}
    return replace(
        pack, **{name: v.pin_memory() for name, v in values.items() if isinstance(v, Tensor)}
    )


def _to(indices: Tensor, device: torch.device) -> Tensor:
    return indices.to(device, non_blocking=True)
