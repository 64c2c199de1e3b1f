"""Scoring on several devices, with the model's parameters sharded (FSDP2).

Every rank gets the same batches, plans the same packs and runs its share of them. All ranks must
take part in every layer's communication. So if the packs do not divide evenly, some ranks run one
more pack, whose result is discarded. Every rank gets the scores of all packs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.models.folders import evaluating
from steps.models.ranks import Ranks
from steps.scoring.architectures.pack_layouts import layout_of, plan_forwards
from steps.scoring.architectures.routing import Balancing, Load, Routing
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import router_load, sequence_logps
from steps.scoring.packing import Pack
from steps.scoring.scorer import (
    LOGPS,
    Batch,
    Logps,
    Readout,
    Scorer,
    as_tensors,
    scored_in_batch_order,
)

Result = TypeVar("Result")
BeforeSharding = Callable[[nn.Module], None]


@dataclass(frozen=True)
class ShardedBatch(Batch):
    """A batch as one rank runs it: its own packs, and possibly one more that is discarded.

    plan: the members of all packs of all ranks.
    own: the indices of this rank's packs in `plan`.
    """

    plan: tuple[Tensor, ...] = ()
    own: Sequence[int] = ()


class ShardedScorer(Scorer):
    """A `Scorer` on one of several ranks.

    The model may be on the host: it moves to the devices layer by layer, so a device never holds
    more than its shards and the layers in use. Gradients use autograd throughout, as the head is
    sharded too. `before_sharding` is called with each layer, and last with the rest of the model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokens_per_forward: int,
        ranks: Ranks,
        before_sharding: BeforeSharding | None = None,
        readout: Readout = LOGPS,
    ) -> None:
        assert ranks.mesh is not None
        super().__init__(model, tokens_per_forward, readout)
        self._ranks = ranks
        self._mesh = ranks.mesh
        self._gathered = _shard(model, ranks, before_sharding)

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        plan = plan_forwards(layout_of(self.model), groups, self.tokens_per_forward)
        own = range(self._ranks.index, len(plan), self._ranks.count)
        rounds = -(-len(plan) // self._ranks.count)
        run = [plan[i] for i in (*own, *[0] * (rounds - len(own)))]
        return ShardedBatch(
            tuple(groups), self._packs(groups, run), as_tensors(run), noise, as_tensors(plan), own
        )

    def score(self, pack: Pack, routing: Routing | None = None) -> Tensor:
        """The recorded readout of a pack on the device; all ranks must call this together."""
        return self._with_model(lambda model: self.readout.recorded(model, pack, routing))

    def load(self, pack: Pack, balancing: Balancing) -> Load:
        """`logps.router_load` of a pack on the device; all ranks must call this together."""
        return self._with_model(lambda model: router_load(model, pack, balancing))

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over ranks; exact if each value is nonzero on one rank at most."""
        on_device = values.to(self.model.device)
        dist.all_reduce(on_device, group=self._mesh.get_group())
        return on_device.cpu()

    def _with_model(self, call: Callable[[PreTrainedModel], Result]) -> Result:
        return self._gathered(call)

    def _logps(self, batch: Batch) -> Logps:
        assert isinstance(batch, ShardedBatch)
        tokens, sequences = [], []
        with torch.no_grad(), evaluating(self.model):
            for pack in batch.packs:
                on_device = pack.to(self.model.device)
                tokens.append(self.score(on_device))
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
        """The values of all ranks' packs, in the order of the packs."""
        every = torch.zeros(sum(lengths), *values[0].shape[1:], dtype=values[0].dtype)
        parts = every.split(list(lengths))
        for number, pack in enumerate(own):
            parts[pack].copy_(values[number])
        return self.sum(every)


class _Gathered(nn.Module):
    """The root module of a sharded model. Its forward gathers the parameters outside the layers
    (head and embeddings) and then calls any function of the model."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, call: Callable[[PreTrainedModel], Any]) -> Any:
        return call(self.model)


def _shard(model: PreTrainedModel, ranks: Ranks, before: BeforeSharding | None) -> nn.Module:
    """Shard `model` in place, layer by layer; gradients are summed over the ranks."""
    policy = MixedPrecisionPolicy()
    if model.dtype is torch.bfloat16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    root = _Gathered(model)
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in (*layers, root):
        if before is not None:
            before(module)
        # Reshard after every forward, also the root; otherwise scoring would leave stale weights.
        fully_shard(module, mesh=ranks.mesh, reshard_after_forward=True, mp_policy=policy)
    for module in (*layers, root):
        sharded = cast(FSDPModule, module)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    return root
