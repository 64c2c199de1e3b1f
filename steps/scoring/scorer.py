"""A model that scores: what a loop asks of it, and how one device does it.

A scorer is handed batches and gives futures. Calls take effect in the order in which they are made,
in a thread of their own (`queue.SerialQueue`), so a caller queues work, prepares the next batch
while the device is at it, and only then looks at what came out:

    scored = scorer.logps(batch)
    batch = scorer.prepare(next_groups)    # while the device works
    use(scored.result())

How a batch is cut into forwards, and over how many ranks the model is spread, is the scorer's
affair and changes no result. Each rank makes the same calls in the same order, with the same
batches, and gets the same results.

The first error poisons a scorer: whatever is asked of it afterwards is refused.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.queue import SerialQueue
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

    packs: what goes through the model at once.
    members: for each pack, which of `groups` it holds, in its order; int64, on the host.
    noise: seeds the dropout of this batch where it is trained on.
    """

    groups: tuple[TokenGroup, ...]
    packs: tuple[Pack, ...]
    members: tuple[Tensor, ...]
    noise: int = 0


@dataclass(frozen=True)
class Logps:
    """Log-probabilities of a batch's responses, in its order, response after response of a group.

    tokens: of each response, those of its scored tokens; float32, or float64 for a float64 model.
    sequences: their sums, float64 [responses].
    All on the host.
    """

    tokens: tuple[Tensor, ...]
    sequences: Tensor

    def of(self, groups: Sequence[TokenGroup]) -> TokenLogps:
        """The same as a loss takes them, where they are those of `groups`."""
        return TokenLogps(torch.cat(self.tokens).double(), lengths_of(groups))


@dataclass(frozen=True)
class Readout:
    """What is read off a model: functions from the model and a pack on its device to numbers.

    read: one number [S] for each scored place, without gradients or dropout.
    recorded: the same with a graph behind them, and with dropout in training mode; tells a
        `Routing`, if it is given one, how tokens use the experts.
    probe: numbers of any shape that packing must not change (see `parity`).
    """

    read: Callable[[PreTrainedModel, Pack], Tensor]
    recorded: Callable[[PreTrainedModel, Pack, Routing | None], Tensor]
    probe: Callable[[PreTrainedModel, Pack], Tensor]


LOGPS = Readout(token_logps, differentiable_logps, token_logps)
"""Log-probabilities of tokens, of a language model."""


class Scorer:
    """Scores with a model that is on its device, its attention chosen by `parity`.

    queue: where all work on the model is done.
    dtype: what the model computes in.

    Args:
        tokens_per_forward: the most tokens of one forward, padding counted; a longer example has
            its own.
        readout: what a score is.
    """

    def __init__(
        self, model: PreTrainedModel, tokens_per_forward: int, readout: Readout = LOGPS
    ) -> None:
        self.model = model
        self.readout = readout
        self.dtype = model.dtype
        self.tokens_per_forward = tokens_per_forward
        self.queue = SerialQueue("engine")

    def prepare(self, groups: Sequence[TokenGroup], noise: int = 0) -> Batch:
        """Lays out a batch. Work of the host alone; nothing is queued."""
        plan = plan_forwards(layout_of(self.model), groups, self.tokens_per_forward)
        return Batch(tuple(groups), self._packs(groups, plan), as_tensors(plan), noise)

    def logps(self, batch: Batch) -> Future[Logps]:
        """Scores the batch without gradients or dropout."""
        return self.queue.submit(lambda: self._logps(batch))

    def examine(self, look: Callable[[PreTrainedModel], Result]) -> Result:
        """What `look` finds when it is called with the model, without gradients, in its turn."""

        def examined() -> Result:
            with torch.no_grad():
                return self._with_model(look)

        return self.queue.submit(examined).result()

    def close(self) -> None:
        """Waits for what is queued and ends the thread."""
        self.queue.close()

    def _with_model(self, call: Callable[[PreTrainedModel], Result]) -> Result:
        return call(self.model)

    def _packs(self, groups: Sequence[TokenGroup], plan: Sequence[list[int]]) -> tuple[Pack, ...]:
        most = max((len(group.responses) for group in groups), default=0)
        packs = (make_pack([groups[i] for i in members], most) for members in plan)
        return tuple(map(_pinned, packs) if self.model.device.type == "cuda" else packs)

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
    """A scorer on this process's device, or on several ranks one that shares the model and the work
    with the others."""
    if ranks.count == 1:
        return Scorer(model, tokens_per_forward, readout)
    from steps.scoring.sharded_scorer import ShardedScorer

    return ShardedScorer(model, tokens_per_forward, ranks, readout=readout)


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
