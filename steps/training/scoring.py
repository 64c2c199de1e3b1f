"""Log-probabilities of responses, and the gradients of a loss on them: the one code path of
reference, policy and evaluation.

A model with packed attention (see `attention`) reads a pack in one forward, and its head sees only
the rows that predict a scored token, a few groups at a time. As a loss is a sum over groups, the
gradients of a group's logits are formed as soon as its logps are known: the logits of a whole pack
never exist. A model that cannot be packed reads each sequence alone, in its own forward and with
its own head.

On a CPU a group gets the same bits whatever it is packed with, with and without gradients. So a
policy that still equals its reference has rewards of exactly zero.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from steps.training.attention import attends_packed
from steps.training.embedding import Embedded, embed
from steps.training.head import Head, output_head
from steps.training.models import evaluating
from steps.training.packing import Pack, padded_rows
from steps.training.unpacked import unpacked_logps

GroupLoss = Callable[[Tensor, slice], tuple[Tensor, dict[str, Tensor]]]
"""From float64 logps [n, k] of the groups in a slice of the pack: their losses [n], each already
weighted and divided by what it is a mean over, and what is logged of each, [n]."""

_LOGITS_BYTES = {"cpu": 128 * 2**20, "cuda": 2**30}


@dataclass(frozen=True)
class Scored:
    """What `forward_backward` saw, detached: losses [n], logps [n, k], and the loss's metrics."""

    losses: Tensor
    logps: Tensor
    metrics: dict[str, Tensor]


@torch.no_grad()
def token_logps(model: PreTrainedModel, pack: Pack) -> Tensor:
    """log p(token | everything before it) of the pack's scored tokens, [S], without dropout.

    In float32, or in float64 for a float64 model.
    """
    with evaluating(model):
        if not attends_packed(model):
            return unpacked_logps(model, pack)
        head, rows = output_head(model), _predicting_rows(model, pack, embed(model, pack))
        parts = [
            head.softmax(*_padded(rows, pack.targets, cut)).logps[: _length(cut)]
            for _, cuts in _parts(pack, head, rows)
            for cut in cuts
        ]
        return torch.cat(parts)


def sequence_logps(per_token: Tensor, pack: Pack) -> Tensor:
    """The sums over each response's scored tokens, float64 [N]."""
    return _sums(per_token, pack.num_scored)


def forward_backward(model: PreTrainedModel, pack: Pack, loss: GroupLoss) -> Scored:
    """Adds the gradient of the summed losses to the `.grad` of the model's parameters.

    Dropout is on if the model is in training mode. Nothing waits for the device.
    """
    if not attends_packed(model):
        return _backward(unpacked_logps(model, pack), pack, loss)
    head = output_head(model)
    if not head.is_plain:
        return _backward(differentiable_logps(model, pack), pack, loss)
    embedded = embed(model, pack)
    rows = _predicting_rows(model, pack, embedded)
    gradient = torch.empty_like(rows)
    scored = [
        _fused(head, rows.detach(), pack, loss, groups, cuts, gradient)
        for groups, cuts in _parts(pack, head, rows)
    ]
    rows.backward(gradient)
    embedded.backward()
    return _joined(scored)


def differentiable_logps(model: PreTrainedModel, pack: Pack) -> Tensor:
    """`token_logps` with a graph behind it, and with dropout in training mode."""
    if not attends_packed(model):
        return unpacked_logps(model, pack)
    tokens = Embedded({"input_ids": pack.input_ids[None]}, pack.input_ids)
    return _head_logps(output_head(model), _predicting_rows(model, pack, tokens), pack)


def _predicting_rows(model: PreTrainedModel, pack: Pack, embedded: Embedded) -> Tensor:
    """The hidden states [S, H] that the head is applied to."""
    base: Any = model.base_model
    hidden = base(
        **embedded.inputs,
        position_ids=pack.position_ids[None],
        use_cache=False,
        pack=pack,
    ).last_hidden_state
    return hidden[0].index_select(0, pack.predictors)


def _fused(
    head: Head,
    rows: Tensor,
    pack: Pack,
    loss: GroupLoss,
    groups: slice,
    cuts: Sequence[slice],
    gradient: Tensor,
) -> Scored:
    """Logits, loss and gradients of some groups; fills their part of the rows' `gradient`.

    The logits of a group that is cut are computed twice, as no two cuts' exist at one time.
    """
    inputs = [_padded(rows, pack.targets, cut) for cut in cuts]
    with torch.no_grad():
        softmax = None
        logps = []
        for cut, (padded, targets) in zip(cuts, inputs, strict=True):
            softmax = head.softmax(padded, targets)
            logps.append(softmax.logps[: _length(cut)])
    scored, of_logps = _gradients(torch.cat(logps), pack, loss, groups)
    with torch.no_grad():
        for cut, (padded, targets) in zip(cuts, inputs, strict=True):
            if softmax is None or len(cuts) > 1:
                softmax = None  # free it first
                softmax = head.softmax(padded, targets)
            start = cut.start - cuts[0].start
            own = of_logps[start : start + _length(cut)]
            filled = functional.pad(own, (0, len(padded) - len(own)))
            gradient[cut] = softmax.backward(filled)[: len(own)]
    return scored


def _gradients(
    per_token: Tensor, pack: Pack, loss: GroupLoss, groups: slice
) -> tuple[Scored, Tensor]:
    """The loss of some groups, and its gradient for each of their logps [S]."""
    first, last = pack.groups[groups][0], pack.groups[groups][-1]
    sequences = slice(first.sequence_start, last.sequence_stop)
    with torch.enable_grad():
        sums = _sums(per_token, pack.num_scored[sequences]).requires_grad_()
        logps = sums.view(-1, pack.responses_per_group)
        losses, metrics = loss(logps, groups)
        (of_sums,) = torch.autograd.grad(losses.sum(), sums)
    number = pack.sequence[first.scored_start : last.scored_stop] - first.sequence_start
    return _detached(losses, logps, metrics), of_sums.index_select(0, number)


def _backward(per_token: Tensor, pack: Pack, loss: GroupLoss) -> Scored:
    logps = sequence_logps(per_token, pack).view(-1, pack.responses_per_group)
    losses, metrics = loss(logps, slice(0, len(pack.groups)))
    losses.sum().backward()
    return _detached(losses, logps, metrics)


def _head_logps(head: Head, rows: Tensor, pack: Pack) -> Tensor:
    """Logps [S] through autograd, which has the logits of one chunk at a time."""

    def chunk(padded: Tensor, targets: Tensor) -> Tensor:
        return head.logps(padded, targets)

    parts = []
    for _, cuts in _parts(pack, head, rows):
        for cut in cuts:
            inputs = _padded(rows, pack.targets, cut)
            logps = checkpoint(chunk, *inputs, use_reentrant=False)
            assert isinstance(logps, Tensor)
            parts.append(logps[: _length(cut)])
    return torch.cat(parts)


def _parts(pack: Pack, head: Head, rows: Tensor) -> Iterator[tuple[slice, list[slice]]]:
    """Groups whose logits fit the budget together, and the scored rows they have: one slice of
    them; of a group that does not fit alone, as many slices of equal length as it takes."""
    limit = max(padded_rows(1), head.rows_within(_LOGITS_BYTES.get(rows.device.type, 2**30)))
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


def _padded(rows: Tensor, targets: Tensor, cut: slice) -> tuple[Tensor, Tensor]:
    """The rows and targets of a cut, with rows of zeros up to a count that products like."""
    missing = padded_rows(_length(cut)) - _length(cut)
    return functional.pad(rows[cut], (0, 0, 0, missing)), functional.pad(targets[cut], (0, missing))


def _length(cut: slice) -> int:
    return cut.stop - cut.start


def _sums(per_token: Tensor, lengths: Tensor) -> Tensor:
    return torch.segment_reduce(per_token.double(), "sum", lengths=lengths, unsafe=True)


def _detached(losses: Tensor, logps: Tensor, metrics: dict[str, Tensor]) -> Scored:
    return Scored(losses.detach(), logps.detach(), {n: v.detach() for n, v in metrics.items()})


def _joined(parts: Sequence[Scored]) -> Scored:
    return Scored(
        torch.cat([part.losses for part in parts]),
        torch.cat([part.logps for part in parts]),
        {name: torch.cat([part.metrics[name] for part in parts]) for name in parts[0].metrics},
    )
