"""A model that computes logps: its interface for a loop, and its implementation on one device.

A scorer takes batches and returns futures. It executes calls in their order, in a thread of its own
(`call_queue`). So a caller queues work, prepares the next batch while the device computes, and only
then reads the result:

    scored = scorer.logps(batch)
    batch = scorer.prepare(next_groups)    # while the device works
    use(scored.result())

The scorer decides how a batch is cut into forwards and how ranks share them; up to rounding, the
results do not depend on that. Each rank makes the same calls in the same order, with the same
batches, and gets the same results.

After its first error, a scorer refuses all calls.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.call_queue import SerialQueue
from steps.models.ranks import Ranks
from steps.scoring.architectures.pack_layouts import layout_of, plan_forwards
from steps.scoring.architectures.routing import Routing
from steps.scoring.examples import TokenGroup
from steps.scoring.logps import TokenLogps, differentiable_logps, sequence_logps, token_logps
from steps.scoring.packing import Pack, lengths_of, make_pack

Result = TypeVar("Result")


@dataclass(frozen=True)
class Batch:
    """Examples, laid out for a scorer's forwards.

    packs: the examples of each forward.
    members: for each pack, the indices of its `groups`, in the pack's order; int64, on the host.
    noise: the seed of dropout in training on this batch.
    """

    groups: tuple[TokenGroup, ...]
    packs: tuple[Pack, ...]
    members: tuple[Tensor, ...]
    noise: int = 0


@dataclass(frozen=True)
class Logps:
    """Log-probabilities of a batch's responses, in the batch's order, on the host.

    tokens: for each response, what the readout gives for its scored tokens; float32, or float64
        for a float64 model.
    sequences: the sum for each response, float64 [responses] or [responses, 2].
    """

    tokens: tuple[Tensor, ...]
    sequences: Tensor

    def of(self, groups: Sequence[TokenGroup]) -> TokenLogps:
        """The logps as the input of a loss. `groups` are the groups of the batch."""
        return TokenLogps.of_values(torch.cat(self.tokens), lengths_of(groups))


@dataclass(frozen=True)
class Readout:
    """The output of a model that is used, as functions of the model and of a pack on its device.

    read: one number for each scored token, [S], or logps with hits beside them, [S, 2]; without
        gradients or dropout.
    recorded: the same numbers with gradients recorded, and with dropout in training mode; records
        the load of experts in a `Routing`, if given.
    probe: numbers of any shape that packing must not change (see `parity`).
    """

    read: Callable[[PreTrainedModel, Pack], Tensor]
    recorded: Callable[[PreTrainedModel, Pack, Routing | None], Tensor]
    probe: Callable[[PreTrainedModel, Pack], Tensor]


LOGPS = Readout(token_logps, differentiable_logps, token_logps)
"""The readout of a language model: log-probabilities of tokens."""


class Scorer:
    """Scores with a model on one device, whose attention `parity` chose.

    queue: the thread that runs all work on the model.
    dtype: the dtype of the model's computation.

    Args:
        tokens_per_forward: the most tokens of one forward, including padding; a longer example gets
            its own forward.
        readout: which output of the model is the score.
    """

    def __init__(
        self, model: PreTrainedModel, tokens_per_forward: int, readout: Readout = LOGPS
    ) -> None:
        self.model = model
        self.readout = readout
        self.dtype = model.dtype
        self.tokens_per_forward = tokens_per_forward
        self.queue = SerialQueue()

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        """Lay out a batch, on the host in the caller's thread; nothing is queued."""
        plan = plan_forwards(layout_of(self.model), groups, self.tokens_per_forward)
        return Batch(tuple(groups), self._packs(groups, plan), as_tensors(plan), noise)

    def logps(self, batch: Batch) -> Future[Logps]:
        """Queue the scoring of a batch, without gradients or dropout."""
        return self.queue.submit(lambda: self._logps(batch))

    def examine(self, look: Callable[[PreTrainedModel], Result]) -> Result:
        """Call `look` with the model after queued work, without gradients; return its result."""

        def examined() -> Result:
            with torch.no_grad():
                return self._with_model(look)

        return self.queue.submit(examined).result()

    def close(self) -> None:
        """Wait for queued work, then end the thread."""
        self.queue.close()

    def _with_model(self, call: Callable[[PreTrainedModel], Result]) -> Result:
        return call(self.model)

    def _packs(self, groups: Sequence[TokenGroup], plan: Sequence[list[int]]) -> tuple[Pack, ...]:
        most = max((len(group.responses) for group in groups), default=0)
        packs = (make_pack([groups[i] for i in members], most) for members in plan)
        if self.model.device.type == "cuda":
            return tuple(pack.each(Tensor.pin_memory) for pack in packs)
        return tuple(packs)

    def _logps(self, batch: Batch) -> Logps:
        tokens, sequences = [], []
        for pack in batch.packs:
            on_device = pack.to(self.model.device)
            tokens.append(self.readout.read(self.model, on_device))
            sequences.append(sequence_logps(tokens[-1], on_device))
        places = torch.cat(batch.members).tolist()
        return scored_in_batch_order(
            batch.groups, places, torch.cat(tokens).cpu(), torch.cat(sequences).cpu()
        )


def build_scorer(
    model: PreTrainedModel, tokens_per_forward: int, ranks: Ranks, readout: Readout = LOGPS
) -> Scorer:
    """A scorer on this process's device; with several ranks, one that shards the model and shares
    the work with the other ranks."""
    if ranks.count == 1:
        return Scorer(model, tokens_per_forward, readout)
    from steps.scoring.sharded_scorer import ShardedScorer

    return ShardedScorer(model, tokens_per_forward, ranks, readout=readout)


def scored_in_batch_order(
    groups: Sequence[TokenGroup], places: Sequence[int], tokens: Tensor, sequences: Tensor
) -> Logps:
    """Reorder the scores of packs to the order of the batch `groups`. In the packs, the groups with
    the indices `places` follow one another."""
    in_packs = [groups[place] for place in places]
    by_response = tokens.split([r.num_scored for group in in_packs for r in group.responses])
    starts = accumulate((len(group.responses) for group in in_packs), initial=0)
    first = dict(zip(places, starts, strict=False))
    order = [
        first[place] + i for place, group in enumerate(groups) for i in range(len(group.responses))
    ]
    return Logps(tuple(by_response[i] for i in order), sequences[order])


def as_tensors(plan: Sequence[list[int]]) -> tuple[Tensor, ...]:
    """The members of each pack as tensors, for `Batch.members`."""
    return tuple(map(torch.tensor, plan))
