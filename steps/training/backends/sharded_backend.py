"""Stock `transformers` models over several devices, their parameters sharded (FSDP2).

Every rank is given the same batches and the same losses, and plans the same packs; of those it runs
its share. Losses come with the counts of the whole batch applied, so gradients are summed over the
ranks and never averaged, and a batch has one gradient on any number of them. Where packs do not
divide evenly, a rank runs one more with a loss of zero, since all must meet in each layer.

Losses, metrics and logps come out whole, and the same on every rank. Weights and the optimiser's
state stay where they are; each rank writes its own.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.training.attention import attends_packed
from steps.training.backends.protocol import Batch, BatchLoss, Logps, StepResult
from steps.training.backends.torch_backend import (
    TorchBackend,
    as_tensors,
    scored_in_batch_order,
    step_result,
    values_by_group,
)
from steps.training.backends.usage import Usage
from steps.training.config import OptimizerConfig
from steps.training.examples import TokenGroup
from steps.training.models import evaluating
from steps.training.packing import Pack, plan_packs
from steps.training.pieces import Pieces, on_host, pieces_of, whole
from steps.training.ranks import Ranks
from steps.training.scoring import Scored, differentiable_logps, sequence_logps

Result = TypeVar("Result")


@dataclass(frozen=True)
class ShardedBatch(Batch):
    """A batch as one rank runs it: its own packs, and perhaps one of another's that counts nothing.

    plan: the members of all packs of all ranks; own: which of them are this rank's.
    """

    plan: tuple[Tensor, ...] = ()
    own: Sequence[int] = ()


class ShardedBackend(TorchBackend):
    """A `TorchBackend` on every rank of several.

    The model may be on the host: it goes to the devices layer by layer, and none ever holds more
    than its share and the layers at work. Packs go through autograd from end to end, as the head is
    in pieces too. With `master_weights` the trained parameters of a bfloat16 model are held,
    updated and their gradients summed in float32, and computed with in bfloat16.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens_per_forward: int,
        ranks: Ranks,
        optimizer: OptimizerConfig | None = None,
        master_weights: bool = True,
        dropout: bool = False,
    ) -> None:
        assert ranks.mesh is not None
        self._ranks = ranks
        self._mesh = ranks.mesh
        self._dtype = model.dtype
        self._gathered = _shard(model, ranks, master_weights and optimizer is not None)
        super().__init__(model, tokens_per_forward, optimizer, master_weights, dropout)
        self._usage = Usage(model, tokens_per_forward, self._dtype)

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        # Read alone, a group takes as many forwards as it has responses: as many on every rank.
        budget = self._tokens_per_forward if attends_packed(self._model) else 1
        plan = plan_packs([group.packed_tokens for group in groups], budget)
        own = range(self._ranks.index, len(plan), self._ranks.count)
        rounds = -(-len(plan) // self._ranks.count)
        run = [plan[i] for i in (*own, *[0] * (rounds - len(own)))]
        return ShardedBatch(
            tuple(groups), self._packs(groups, run), as_tensors(run), noise, as_tensors(plan), own
        )

    def save_weights(self, path: Path) -> Future[None]:
        def weights() -> Mapping[str, Tensor]:
            return {name: t.to(self._dtype) for name, t in self._trained.weights().items()}

        return self._save(path, weights)

    def usage(self, batch: Batch, seconds: float) -> dict[str, float]:
        """Tokens are those of all ranks; FLOPs, memory and the share of the peak are this one's."""
        tokens = sum(group.packed_tokens for group in batch.groups)
        return {**super().usage(batch, seconds), "tokens_per_second": tokens / seconds}

    def _with_model(self, call: Callable[[PreTrainedModel], Result]) -> Result:
        return self._gathered(call)

    def _forward_backward(self, batch: Batch, loss: BatchLoss) -> StepResult:
        assert isinstance(batch, ShardedBatch)
        # Other examples, so other noise.
        torch.manual_seed(batch.noise ^ self._ranks.index)
        device = self._model.device
        loss = loss.to(device)
        parts = [
            self._gradient(pack.to(device), members.to(device), loss, number < len(batch.own))
            for number, (pack, members) in enumerate(zip(batch.packs, batch.members, strict=True))
        ]
        names = list(parts[0].metrics)
        rows = 1 + parts[0].logps.shape[1] + len(names)
        values = torch.zeros(rows, len(batch.groups), dtype=torch.float64)
        if batch.own:
            mine = torch.cat(batch.members[: len(batch.own)])
            values[:, mine] = values_by_group(parts[: len(batch.own)])
        return step_result(names, self._sum(values), batch.groups)

    def _gradient(self, pack: Pack, members: Tensor, loss: BatchLoss, counts: bool) -> Scored:
        logps = sequence_logps(self._score(pack), pack).view(-1, pack.responses_per_group)
        losses, metrics = loss(logps, members)
        (losses.sum() * counts).backward()
        return Scored(losses.detach(), logps.detach(), metrics)

    def _score(self, pack: Pack) -> Tensor:
        return self._with_model(lambda model: differentiable_logps(model, pack))

    def _logps(self, batch: Batch) -> Logps:
        assert isinstance(batch, ShardedBatch)
        tokens, sequences = [], []
        with torch.no_grad(), evaluating(self._model):
            for pack in batch.packs:
                on_device = pack.to(self._model.device)
                tokens.append(self._score(on_device))
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
        every = torch.zeros(sum(lengths), dtype=values[0].dtype)
        parts = every.split(list(lengths))
        for number, pack in enumerate(own):
            parts[pack].copy_(values[number])
        return self._sum(every)

    def _sum(self, values: Tensor) -> Tensor:
        """The sum over ranks of `values`; exact, as each of them is other than zero on one."""
        on_device = values.to(self._model.device)
        dist.all_reduce(on_device, group=self._mesh.get_group())
        return on_device.cpu()

    def _weights(self) -> dict[str, Tensor]:
        weights = {}
        for name, tensor in self._trained.weights().items():
            gathered = whole(tensor)
            if self._ranks.is_first:
                weights[name] = on_host(gathered.to(self._dtype))
        return weights

    def _pieces(self, tensors: Mapping[str, Tensor]) -> Pieces:
        return pieces_of(tensors, self._ranks.is_first)


class _Gathered(nn.Module):
    """A model as the root of its shards: a call of this gathers what no layer does, the head and
    the embeddings, for whatever is to be done with the model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[[PreTrainedModel], Any]) -> Any:
        return call(self.model)


def _shard(model: PreTrainedModel, ranks: Ranks, masters: bool) -> nn.Module:
    """Shards `model` in place, layer by layer, gradients summed over the ranks."""
    policy = MixedPrecisionPolicy()
    if model.dtype is torch.bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    root = _Gathered(model)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, root):
        if masters:
            _hold_in_float32(module)
        # After every forward, the root's too: else scoring would leave stale weights behind.
        fully_shard(module, mesh=ranks.mesh, reshard_after_forward=True, mp_policy=policy)
    for module in (*layers, root):
        sharded = cast(FSDPModule, module)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    return root


def _hold_in_float32(module: nn.Module) -> None:
    """What is trained of `module` and is coarser."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.dtype is torch.bfloat16:
            parameter.data = parameter.data.float()
