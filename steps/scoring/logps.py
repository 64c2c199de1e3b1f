"""Log-probabilities of responses, and the gradients of a loss on them: one code path for
reference, policy and evaluation.

A model with packed attention (see `attention`) reads a pack in one forward. Its head is applied
only to the rows that predict a scored token, a few groups at a time. A loss is a sum over groups,
so the gradients of a group's logits are computed as soon as its logps are known; the logits of a
whole pack never exist at once. A model that cannot read packs reads padded batches, with the same
head. A model that cannot read batches either reads each sequence alone, with its own forward and
its own head.

On a CPU, a packed group gets the same bits whatever it is packed with, with and without gradients.
So a policy that still equals its reference has rewards of exactly zero.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from steps.models.folders import evaluating
from steps.scoring.architectures.batching import backbone, batched_rows
from steps.scoring.architectures.images import seen_or_ids
from steps.scoring.architectures.pack_layouts import Layout, layout_of
from steps.scoring.architectures.routing import Balancing, Load, Routing
from steps.scoring.embedding import Embedded, add_to_embeddings, embed
from steps.scoring.head import Head, Softmax, output_head, softmax_backward
from steps.scoring.packing import Pack
from steps.scoring.unpacked import unpacked_logps
from steps.shared.padded_rows import padded_rows

_LOGITS_BYTES = {"cpu": 2**28, "cuda": 2**30}


@dataclass(frozen=True)
class TokenLogps:
    """Log-probabilities of the S scored tokens of n groups with at most k responses each.

    tokens: float64 [S], response by response and group by group.
    lengths: int64 [n, k]; the number of scored tokens of each response. 0 means that the group has
        no such response, as groups may have fewer than k.
    hits: 1 for each token that has the largest logit, else 0, float64 [S]; if the readout tells.
    others: what else the readout gives for each token, float64 [S, m], with gradients.
    """

    tokens: Tensor
    lengths: Tensor
    hits: Tensor | None = field(default=None, kw_only=True)
    others: Tensor | None = field(default=None, kw_only=True)

    @classmethod
    def of_values(cls, values: Tensor, lengths: Tensor) -> "TokenLogps":
        """From what a readout gives: logps [S], or with hits and others beside them [S, 2 + m]."""
        values = values.double()
        if values.ndim == 1:
            return cls(values, lengths)
        others = values[:, 2:] if values.shape[1] > 2 else None
        return cls(values[:, 0], lengths, hits=values[:, 1].detach(), others=others)

    def sums(self) -> Tensor:
        """The log-probability of each response, float64 [n, k]; 0 where there is no response."""
        return _sums(self.tokens, self.lengths.flatten()).view_as(self.lengths)

    def of(self, members: Tensor, count: int | None = None) -> "TokenLogps":
        """The logps of the groups `members`, int64 [m]. If `count`, the number of their tokens, is
        given, the call does not synchronise with the device."""
        per_group = self.lengths.sum(dim=1)
        starts, ends = per_group.cumsum(0) - per_group, per_group[members].cumsum(0)
        shifts = starts[members] - ends + per_group[members]
        shifts = shifts.repeat_interleave(per_group[members], output_size=count)
        places = shifts + torch.arange(len(shifts), device=shifts.device)
        return TokenLogps(self.tokens[places], self.lengths[members])


GroupLoss = Callable[[TokenLogps, slice], tuple[Tensor, dict[str, Tensor]]]
"""Maps the logps of a slice of the pack's groups to their losses [n] and logged metrics, each [n].
Each loss is already weighted and divided by the denominator of the batch's mean."""


@dataclass(frozen=True)
class Scored:
    """The detached results of `forward_backward`: losses [n], logps [n, k], and metrics [n]."""

    losses: Tensor
    logps: Tensor
    metrics: dict[str, Tensor]


@torch.no_grad()
def detached(losses: Tensor, logps: TokenLogps, metrics: Mapping[str, Tensor]) -> Scored:
    """The results of some groups, without the graph behind them."""
    return Scored(losses.detach(), logps.sums(), {n: v.detach() for n, v in metrics.items()})


@torch.no_grad()
def token_logps(model: PreTrainedModel, pack: Pack, hits: bool = False) -> Tensor:
    """log p(token | all tokens before it) of the pack's scored tokens, [S], without dropout; with
    `hits` beside them, [S, 2] (see `head.with_hits`).

    In float32, or in float64 for a float64 model.
    """
    with evaluating(model):
        if layout_of(model) is Layout.alone:
            return unpacked_logps(model, pack, hits=hits)
        return _of_chunks(model, pack, _value(hits))


@torch.no_grad()
def aligned_logps(model: PreTrainedModel, pack: Pack) -> Tensor:
    """`token_logps` minus log Σ_v p(v)², over the vocabulary, for each token; [S]. It is near 0 on
    average for tokens that the model itself has sampled (Zhou et al. 2024)."""
    with evaluating(model):
        if layout_of(model) is Layout.alone:
            return unpacked_logps(model, pack, aligned=True)
        return _of_chunks(model, pack, Softmax.aligned)


def _of_chunks(model: PreTrainedModel, pack: Pack, value: Callable[[Softmax], Tensor]) -> Tensor:
    """A value of each scored token, [S], from the head's softmax over chunks of rows."""
    head, rows = output_head(model), predicting_rows(model, pack, embed(model, pack))
    parts = [
        value(head.softmax(_padded(rows, cut), _padded(pack.targets, cut)))[: _length(cut)]
        for _, cuts in _parts(pack, head, rows)
        for cut in cuts
    ]
    return torch.cat(parts)


def _value(hits: bool) -> Callable[[Softmax], Tensor]:
    return Softmax.logps_and_hits if hits else lambda softmax: softmax.logps


def sequence_logps(per_token: Tensor, pack: Pack) -> Tensor:
    """The sums over each response's scored tokens, float64 [N]."""
    return _sums(per_token, pack.num_scored)


def forward_backward(
    model: PreTrainedModel,
    pack: Pack,
    loss: GroupLoss,
    routing: Routing | None = None,
    hits: bool = False,
    normalised: bool = False,
) -> Scored:
    """Add the gradient of the summed losses to the `.grad` of the model's parameters. With
    `routing`, also add the gradient of the pack's share of the load-balancing loss. With `hits`,
    the loss is given them, too; with `normalised` also what `head.with_normalisers` gives.

    Dropout is on if the model is in training mode. The call does not synchronise with the device.
    """
    if normalised or layout_of(model) is Layout.alone or not output_head(model).is_plain:
        values = differentiable_logps(model, pack, routing, hits, normalised)
        return backward(TokenLogps.of_values(values, pack.lengths), pack, loss, routing)
    head, embedded = output_head(model), embed(model, pack)
    rows = predicting_rows(model, pack, embedded, routing)
    gradient = torch.empty_like(rows)
    scored = [
        _fused(head, rows.detach(), pack, loss, groups, cuts, gradient, _value(hits))
        for groups, cuts in _parts(pack, head, rows)
    ]
    balance = routing.loss() if routing is not None else None
    if balance is not None and balance.requires_grad:
        torch.autograd.backward([rows, balance], [gradient, None])
    else:
        rows.backward(gradient)
    add_to_embeddings(embedded)
    return _joined(scored)


def differentiable_logps(
    model: PreTrainedModel,
    pack: Pack,
    routing: Routing | None = None,
    hits: bool = False,
    normalised: bool = False,
) -> Tensor:
    """`token_logps` with gradients recorded, and with dropout in training mode; `normalised`: what
    `head.with_normalisers` gives, [S, 3]."""
    if layout_of(model) is Layout.alone:
        return unpacked_logps(model, pack, routing, hits=hits, normalised=normalised)
    tokens = Embedded(seen_or_ids(model, pack), pack.input_ids)
    head, rows = output_head(model), predicting_rows(model, pack, tokens, routing)
    if normalised:
        return by_chunks(pack, head, head.normalised, rows, buffers=3)
    return by_chunks(pack, head, head.logps_and_hits if hits else head.logps, rows)


@torch.no_grad()
def router_load(model: PreTrainedModel, pack: Pack, balancing: Balancing) -> Load:
    """How the pack's tokens use the experts; with dropout in training mode."""
    routing = Routing(balancing)
    if layout_of(model) is Layout.alone:
        unpacked_logps(model, pack, routing)
    else:
        predicting_rows(model, pack, embed(model, pack), routing)
    assert routing.load is not None
    return routing.load


def predicting_rows(
    model: PreTrainedModel, pack: Pack, embedded: Embedded, routing: Routing | None = None
) -> Tensor:
    """The hidden states [S, H] that predict the pack's scored tokens."""
    if layout_of(model) is Layout.batched:
        return batched_rows(model, pack, embedded.inputs, routing)
    asked = {} if routing is None else {"output_router_logits": True}
    outputs = backbone(model)(
        **embedded.inputs,
        **asked,
        position_ids=pack.position_ids[None],
        use_cache=False,
        pack=pack,
    )
    if routing is not None:
        routing.see_pack(outputs, pack)
    return outputs.last_hidden_state[0].index_select(0, pack.predictors)


def _fused(
    head: Head,
    rows: Tensor,
    pack: Pack,
    loss: GroupLoss,
    groups: slice,
    cuts: Sequence[slice],
    gradient: Tensor,
    value: Callable[[Softmax], Tensor],
) -> Scored:
    """Compute logits, loss and gradients of some groups; fill their part of the rows' `gradient`.

    If a group is cut, the logits of each cut are computed twice, so that only one cut's logits
    exist at a time.
    """
    inputs = [(_padded(rows, cut), _padded(pack.targets, cut)) for cut in cuts]
    with torch.no_grad():
        softmax = None
        values = []
        for cut, (padded, targets) in zip(cuts, inputs, strict=True):
            softmax = head.softmax(padded, targets)
            values.append(value(softmax)[: _length(cut)])
    scored, of_values = loss_gradients(torch.cat(values), pack, loss, groups)
    of_logps = of_values.view(len(of_values), -1)[:, 0]  # hits have no gradient
    with torch.no_grad():
        for cut, (padded, targets) in zip(cuts, inputs, strict=True):
            if softmax is None or len(cuts) > 1:
                softmax = None  # free it first
                softmax = head.softmax(padded, targets)
            start = cut.start - cuts[0].start
            own = of_logps[start : start + _length(cut)]
            filled = functional.pad(own, (0, len(padded) - len(own)))
            gradient[cut] = softmax_backward(softmax, filled)[: len(own)]
    return scored


def loss_gradients(
    values: Tensor, pack: Pack, loss: GroupLoss, groups: slice
) -> tuple[Scored, Tensor]:
    """The loss of some groups, and its gradient by what a readout gives of them, [S] or [S, 2]."""
    values = values.double().requires_grad_()
    with torch.enable_grad():
        logps = TokenLogps.of_values(values, pack.lengths[groups])
        losses, metrics = loss(logps, groups)
        (gradient,) = torch.autograd.grad(losses.sum(), values)
    return detached(losses, logps, metrics), gradient


def backward(
    logps: TokenLogps, pack: Pack, loss: GroupLoss, routing: Routing | None = None
) -> Scored:
    """Add the gradient of the losses of a pack's groups to `.grad`, through the graph of `logps`;
    with `routing`, also that of the pack's share of the load-balancing loss."""
    losses, metrics = loss(logps, slice(0, len(pack.groups)))
    total = losses.sum() if routing is None else losses.sum() + routing.loss()
    total.backward()
    return detached(losses, logps, metrics)


def by_chunks(
    pack: Pack, head: Head, value: Callable[..., Tensor], *rows: Tensor, buffers: int = 1
) -> Tensor:
    """Differentiable values of the scored tokens, [S] or [S, …]. Checkpointing keeps the logits of
    only one chunk at a time.

    Args:
        value: computes them from a chunk of each of `rows` [S, H], and from its targets.
        buffers: how many tensors of the size of the chunk's logits that takes at once.
    """
    parts = []
    for _, cuts in _parts(pack, head, rows[0], buffers):
        for cut in cuts:
            *chunks, targets = (_padded(each, cut) for each in (*rows, pack.targets))
            found = checkpoint(value, *chunks, targets, use_reentrant=False)
            assert isinstance(found, Tensor)
            parts.append(found[: _length(cut)])
    return torch.cat(parts)


def _parts(
    pack: Pack, head: Head, rows: Tensor, buffers: int = 1
) -> Iterator[tuple[slice, list[slice]]]:
    """Split the groups into runs whose logits fit the memory budget. Each run comes with the slice
    of its scored rows. A group that exceeds the budget by itself gets several equal slices."""
    budget = _LOGITS_BYTES.get(rows.device.type, 2**30) // buffers
    limit = max(padded_rows(1), head.rows_within(budget))
    first = 0
    for number, group in enumerate(pack.groups):
        start = pack.groups[first].scored_start
        following = number + 1 < len(pack.groups)
        if following and pack.groups[number + 1].scored_stop - start <= limit:
            continue
        yield slice(first, number + 1), _cuts(start, group.scored_stop, limit)
        first = number + 1


def _cuts(start: int, stop: int, limit: int) -> list[slice]:
    count = -(-(stop - start) // limit)
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def _padded(values: Tensor, cut: slice) -> Tensor:
    """A cut of rows [S, H] or of targets [S], padded with zeros to `padded_rows`."""
    missing = padded_rows(_length(cut)) - _length(cut)
    return functional.pad(values[cut], (*(0, 0) * (values.ndim - 1), 0, missing))


def _length(cut: slice) -> int:
    return cut.stop - cut.start


def _sums(per_token: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(per_token.double(), "sum", lengths=lengths, unsafe=True)


def _joined(parts: Sequence[Scored]) -> Scored:
    return Scored(
        torch.cat([part.losses for part in parts]),
        torch.cat([part.logps for part in parts]),
        {name: torch.cat([part.metrics[name] for part in parts]) for name in parts[0].metrics},
    )
