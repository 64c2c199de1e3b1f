"""Training on several devices; parameters, gradients and the optimiser's state are sharded.

Each rank runs its share of a batch's packs (`sharded_scorer`). Losses are already divided by counts
of the whole batch, so gradients are summed over ranks and not averaged: a batch has the same
gradient on any number of ranks. Every rank gets the losses and metrics of the whole batch. Weights
and the optimiser's state stay sharded; each rank writes its own shard.

A step with several packs on a rank need not communicate for each of them. With `gather_once`, a
rank keeps the weights of all layers after it has gathered them for the first pack, and adds up
whole gradients, which are reduced over the ranks in the backward of the last pack.
"""

import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from steps.models.ranks import Ranks
from steps.models.sharded_tensors import Pieces, on_disk, pieces_of, rows_of_all
from steps.scoring.architectures.routing import Balancing, Load, Routing
from steps.scoring.logps import Scored, TokenLogps, detached
from steps.scoring.scorer import Batch
from steps.scoring.sharded_scorer import ShardedBatch, ShardedScorer
from steps.training.config import OptimizerConfig
from steps.training.trainer import (
    TRAINED_LOGPS,
    BatchLoss,
    TrainedReadout,
    Trainer,
    values_by_group,
)


class ShardedTrainer(Trainer):
    """A `Trainer` on one of several ranks.

    With `master_weights`, the trained parameters of a bfloat16 model are stored and updated in
    float32, and their gradients are summed in float32. Forward and backward use bfloat16.

    gather_once: whether weights and gradients stay whole between the packs of a step.

    Args:
        gather_once: the same; null: if they take at most a quarter of the memory of a rank.
    """

    scorer: ShardedScorer

    def __init__(
        self,
        model: PreTrainedModel,
        tokens_per_forward: int,
        ranks: Ranks,
        optimizer: OptimizerConfig,
        master_weights: bool = True,
        dropout: bool = False,
        readout: TrainedReadout = TRAINED_LOGPS,
        gather_once: bool | None = None,
    ) -> None:
        if gather_once is None:
            (too_large,) = ranks.any(4 * _whole_bytes(model) > _memory(ranks))
            gather_once = not too_large
        self.gather_once = gather_once
        parts: list[nn.Module] = []

        def before_sharding(module: nn.Module) -> None:
            parts.append(module)
            if master_weights:
                _hold_in_float32(module)

        scorer = ShardedScorer(model, tokens_per_forward, ranks, before_sharding, readout)
        super().__init__(scorer, optimizer, master_weights, dropout, readout)
        self._ranks = ranks
        self._root = cast(FSDPModule, parts[-1])

    def save_weights(self, path: Path) -> Future[None]:
        def weights() -> Mapping[str, Tensor]:
            return {name: t.to(self.scorer.dtype) for name, t in self._updater.weights().items()}

        return self._save(path, weights)

    def usage(self, batch: Batch, seconds: float) -> dict[str, float]:
        """Tokens per second of all ranks; FLOPs, memory and the share of the peak of this rank."""
        tokens = sum(group.packed_tokens for group in batch.groups)
        return {**super().usage(batch, seconds), "tokens_per_second": tokens / seconds}

    def _seed(self, batch: Batch) -> int:
        # Each rank has other examples, and the model's own dropout needs other noise.
        return batch.noise ^ self._ranks.index

    def _values(self, batch: Batch, parts: Sequence[Scored]) -> Tensor:
        assert isinstance(batch, ShardedBatch)
        self._root.set_reshard_after_forward(True)  # scoring must gather the updated weights
        rows = 1 + parts[0].logps.shape[1] + len(parts[0].metrics)
        values = torch.zeros(rows, len(batch.groups), dtype=torch.float64)
        if batch.own:
            mine = torch.cat(batch.members[: len(batch.own)])
            values[:, mine] = values_by_group(parts[: len(batch.own)])
        return self.scorer.sum(values)

    def _communicate(self, is_last: bool) -> None:
        """Set what the next pack's forward and backward leave whole on this rank."""
        if self.gather_once:
            self._root.set_reshard_after_forward(False)
            self._root.set_reshard_after_backward(is_last)
            self._root.set_requires_gradient_sync(is_last)

    def _gradient(
        self, batch: Batch, number: int, loss: BatchLoss, routing: Routing | None
    ) -> Scored:
        assert isinstance(batch, ShardedBatch)
        self._communicate(is_last=number + 1 == len(batch.packs))
        pack, members = self._begin_forward(batch, number)
        logps = TokenLogps.of_values(self.scorer.score(pack, routing), pack.lengths)
        losses, metrics = loss(logps, members)
        total = losses.sum() if routing is None else losses.sum() + routing.loss()
        counts = number < len(batch.own)  # else a rank repeats a pack, so that all make equal calls
        (total * counts).backward()
        return detached(losses, logps, metrics)

    def _needs_load(self, batch: Batch) -> bool:
        return True  # other ranks have other packs

    def _load(self, batch: Batch, balancing: Balancing) -> Load:
        assert isinstance(batch, ShardedBatch)
        device = self._model.device
        packs = (self._begin_forward(batch, number)[0] for number in range(len(batch.packs)))
        loads = [self.scorer.load(pack, balancing) for pack in packs]
        parts = [torch.cat([x.chosen, x.probability, x.tokens[None]]) for x in loads]
        own = torch.stack(parts)[: len(batch.own)].sum(dim=0)
        chosen, probability, tokens = (
            self.scorer.sum(own)
            .to(device)
            .split_with_sizes([len(loads[0].chosen), len(loads[0].chosen), 1])
        )
        return Load(chosen, probability, tokens[0])

    def save_state(self, path: Path) -> Future[None]:
        def state() -> dict[str, Tensor]:
            return self._whole(self._updater.state(), None, False)

        if self._ranks.is_first:
            return self._save(path, state)
        return self._queue.submit(lambda: state().clear())

    def _weights(self, everywhere: bool) -> dict[str, Tensor]:
        return self._whole(self._updater.weights(), self.scorer.dtype, everywhere)

    def _whole(
        self, tensors: Mapping[str, Tensor], dtype: torch.dtype | None, everywhere: bool
    ) -> dict[str, Tensor]:
        """Copies with all rows, in `dtype`, which are `on_disk` as a host may not have the memory;
        empty on other ranks than the first, unless `everywhere`."""
        copies = {}
        for name, tensor in tensors.items():
            parts = (rows.to(dtype or rows.dtype) for rows in rows_of_all(tensor))
            if self._ranks.is_first or everywhere:
                copies[name] = on_disk(parts, tensor.shape)
            else:
                deque(parts, maxlen=0)
        return copies

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Pieces:
        return pieces_of(tensors, self._ranks.is_first)


def _whole_bytes(model: PreTrainedModel) -> int:
    """The bytes of all weights, and of the gradients of those that are trained."""
    weights = sum(p.numel() * p.itemsize for p in model.parameters())
    return weights + sum(
        p.numel() * max(p.itemsize, 4) for p in model.parameters() if p.requires_grad
    )


def _memory(ranks: Ranks) -> int:
    """The bytes of memory of this rank: of its GPU, or its share of this machine's."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // here


def _hold_in_float32(module: nn.Module) -> None:
    """Convert the trained bfloat16 parameters of `module` to float32."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype is torch.bfloat16:
            parameter.data = parameter.data.float()
