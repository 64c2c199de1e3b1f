"""Stock `transformers` models over several devices, their parameters sharded (FSDP2).

Every rank is given the same batches and the same losses, and plans the same packs; of those it runs
its share. Losses come with the counts of the whole batch applied, so gradients are summed over the
ranks and never averaged, and a batch has one gradient on any number of them. Where packs do not
divide evenly, a rank runs one more with a loss of zero, since all must meet in each layer.

What comes out (losses, logps, weights, the state) is whole, and the same on every rank.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.training.backends.protocol import Batch, BatchLoss, Logps, StepResult
from steps.training.backends.torch_backend import (
    TorchBackend,
    scored_in_batch_order,
    step_result,
    values_by_group,
)
from steps.training.config import OptimizerConfig
from steps.training.examples import TokenGroup
from steps.training.models import evaluating
from steps.training.optimization import Updater
from steps.training.packing import Pack
from steps.training.scoring import Scored, differentiable_logps, sequence_logps


@dataclass(frozen=True)
class ShardedBatch(Batch):
    """A batch as one rank runs it: its own packs, and perhaps one of another's that counts nothing.

    plan: the members of all packs of all ranks; own: which of them are this rank's.
    """

    plan: tuple[Tensor, ...] = ()
    own: Sequence[int] = ()


class ShardedBackend(TorchBackend):
    """A `TorchBackend` on every rank of a mesh of one dimension.

    A bfloat16 model is held, updated and its gradients summed in float32; it computes in bfloat16.
    Packs go through autograd from end to end, as the head is in pieces too. Only rank 0 writes
    checkpoints, and all read them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens_per_forward: int,
        mesh: DeviceMesh,
        optimizer: OptimizerConfig | None = None,
        dropout: bool = False,
    ) -> None:
        self._mesh = mesh
        self._dtype = model.dtype
        self._scorer = _shard(model, mesh)
        super().__init__(model, tokens_per_forward, dropout=dropout)
        if optimizer is not None:
            self._updater = ShardedUpdater(model, optimizer, self._dtype)

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        whole = super().prepare(groups, noise)
        own = range(self._mesh.get_local_rank(), len(whole.packs), self._mesh.size())
        rounds = -(-len(whole.packs) // self._mesh.size())
        run = [*own, *[0] * (rounds - len(own))]
        return ShardedBatch(
            whole.groups,
            tuple(whole.packs[i] for i in run),
            tuple(whole.members[i] for i in run),
            noise,
            whole.members,
            own,
        )

    def save_checkpoint(self, path: Path) -> Future[None]:
        if self._mesh.get_local_rank() == 0:
            return super().save_checkpoint(path)

        def take_part() -> None:
            self._snapshot()

        return self._queue.submit(take_part)

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        assert isinstance(batch, ShardedBatch)
        # Other examples, so other noise.
        torch.manual_seed(batch.noise ^ self._mesh.get_local_rank())
        device = self._model.device
        loss = loss.to(device)
        parts = [
            self._gradient(pack.to(device), members.to(device), loss, number < len(batch.own))
            for number, (pack, members) in enumerate(zip(batch.packs, batch.members, strict=True))
        ]
        names = list(parts[0].metrics)
        values = torch.zeros(1 + len(names), len(batch.groups), dtype=torch.float64)
        if batch.own:
            mine = torch.cat(batch.members[: len(batch.own)])
            values[:, mine] = values_by_group(parts[: len(batch.own)])
        return step_result(names, self._sum(values), batch.groups)

    def _gradient(self, pack: Pack, members: Tensor, loss: BatchLoss, counts: bool) -> Scored:
        logps = sequence_logps(self._scorer(pack), pack).view(-1, pack.responses_per_group)
        losses, metrics = loss(logps, members)
        (losses.sum() * counts).backward()
        return Scored(losses.detach(), logps.detach(), metrics)

    def _logps(self, batch: Batch) -> Logps:
        assert isinstance(batch, ShardedBatch)
        tokens, sequences = [], []
        with torch.no_grad(), evaluating(self._model):
            for pack in batch.packs:
                on_device = pack.to(self._model.device)
                tokens.append(self._scorer(on_device))
                sequences.append(sequence_logps(tokens[-1], on_device))
        scored = [[r.num_scored for i in m for r in batch.groups[i].responses] for m in batch.plan]
        return scored_in_batch_order(
            batch.groups,
            torch.cat(batch.plan).tolist(),
            self._of_all_packs(batch.own, tokens, [sum(counts) for counts in scored]),
            self._of_all_packs(batch.own, sequences, [len(counts) for counts in scored]),
        )

    def _of_all_packs(
        self, own: Sequence[int], values: Sequence[Tensor], lengths: Sequence[int]
    ) -> Tensor:
        """The values of every rank's packs, one pack after the other."""
        whole = torch.zeros(sum(lengths), dtype=values[0].dtype)
        parts = whole.split(list(lengths))
        for number, pack in enumerate(own):
            parts[pack].copy_(values[number])
        return self._sum(whole)

    def _sum(self, values: Tensor) -> Tensor:
        """The sum over ranks of `values`; exact, as each of them is other than zero on one."""
        on_device = values.to(self._model.device)
        dist.all_reduce(on_device, group=self._mesh.get_group())
        return on_device.cpu()


class ShardedUpdater(Updater):
    """An `Updater` of pieces, whose state and weights are whole where they are seen."""

    def __init__(self, model: nn.Module, config: OptimizerConfig, dtype: torch.dtype) -> None:
        super().__init__(model, config)
        self._dtype = dtype

    def state(self) -> dict[str, Tensor]:
        return {name: _whole(tensor) for name, tensor in super().state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        super().load_state({name: self._piece(name, t) for name, t in tensors.items()})

    def weights(self) -> dict[str, Tensor]:
        return {name: _whole(t).to(self._dtype) for name, t in super().weights().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights({name: self._piece(name, t) for name, t in weights.items()})

    def _piece(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's piece of what belongs to a parameter; a scalar is whole everywhere."""
        like = self._updated.get(name.removeprefix("model/"))
        if like is None and name.startswith("optimizer/"):
            like = self._updated.get(name.split("/", 2)[2])
        if not isinstance(like, DTensor) or tensor.ndim == 0:
            return tensor
        return distribute_tensor(tensor.to(like.dtype), like.device_mesh, like.placements)


class _Scorer(nn.Module):
    """The model with its head, as one module whose forward FSDP can gather parameters for."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, pack: Pack) -> Tensor:
        return differentiable_logps(self.model, pack)


def _shard(model: PreTrainedModel, mesh: DeviceMesh) -> nn.Module:
    """Shards `model` in place, layer by layer, gradients summed over the ranks."""
    policy = MixedPrecisionPolicy()
    if model.dtype is torch.bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model.float()
    scorer = _Scorer(model)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, scorer):
        # After every forward, the root's too: else scoring would leave stale weights behind.
        fully_shard(module, mesh=mesh, reshard_after_forward=True, mp_policy=policy)
    for module in (*layers, scorer):
        sharded = cast(FSDPModule, module)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    return scorer


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
