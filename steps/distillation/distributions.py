"""Distributions over a vocabulary of V tokens, read at k of them; the others are one bucket.

For the logits z of a student, q = softmax(z / T), the ids c_1 … c_k of a teacher and the rest R of
the vocabulary, a loss is given log q(c_i) and log q(R). With gradients g_i and g_R of the loss by
these, and G their sum, its gradient by the logits is

    1/T (g_i − G q(v)) for v = c_i,        1/T (g_R q(v) / q(R) − G q(v)) for v in R

One buffer holds the logits, then the exponentials, then this gradient. Rows of a head beyond the V
tokens that teacher and student share are left out: both distributions are over the shared tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.folders import evaluating
from steps.scoring.architectures.images import seen_or_ids
from steps.scoring.architectures.pack_layouts import Layout, layout_of
from steps.scoring.architectures.routing import Routing
from steps.scoring.embedding import Embedded
from steps.scoring.head import output_head
from steps.scoring.logps import by_chunks, predicting_rows, token_logps
from steps.scoring.packing import Pack
from steps.scoring.scorer import Readout
from steps.scoring.unpacked import unpacked_logits

LOWEST = -1e4
"""In place of log 0, and within float16: p log p is 0 there, and a loss stays finite."""
REST_AT = (1.0, 2.0)
"""The temperatures T for which a teacher's log Σ_R p(v)^(1/T) is kept."""
_BUFFERS = 3
"""Tensors of the size of a chunk's logits at a time."""

OfLogits = Callable[..., Tensor]
"""Maps logits [n, V] and what belongs to each row to numbers [n, …]; may overwrite the logits."""


def teacher_readout(top_k: int, vocabulary: int) -> Readout:
    """The `top_of` of each scored token."""

    def read(model: PreTrainedModel, pack: Pack, routing: Routing | None = None) -> Tensor:
        return _without_gradients(partial(top_of, top_k=top_k, vocabulary=vocabulary), model, pack)

    return Readout(read, read, token_logps)


def top_of(logits: Tensor, targets: Tensor, top_k: int, vocabulary: int) -> Tensor:
    """The distributions of `logits` [n, ≥ V], as [n, 1 + 2 top_k + 2]: log p(target), the largest
    log p in falling order, log Σ p^(1/T) over the rest for each T of `REST_AT`, and their ids."""
    logps = logits[:, :vocabulary].log_softmax(dim=-1)
    largest, ids = logps.topk(top_k)
    rest = logps.scatter(1, ids, -torch.inf)
    sums = torch.stack([(rest / t).logsumexp(dim=-1) for t in REST_AT], dim=1)
    kept = torch.cat([largest, sums], dim=1).clamp(min=LOWEST)
    return torch.cat([_at(logps, targets), kept, ids.to(logps.dtype)], dim=1)


def student_values(
    model: PreTrainedModel,
    pack: Pack,
    routing: Routing | None = None,
    *,
    temperature: float,
    vocabulary: int,
) -> Tensor:
    """The `values_at` of each scored token, for its ids in `pack.wanted`. Gradients are recorded if
    autograd is on."""
    read = partial(values_at, temperature=temperature, vocabulary=vocabulary)
    return _of_pack(read, model, pack, routing, _wanted(pack))


def student_scores(
    model: PreTrainedModel, pack: Pack, *, temperature: float, vocabulary: int
) -> Tensor:
    """`student_values` without gradients or dropout; of a pack that wants no ids, the logps."""
    if pack.wanted is None:
        return token_logps(model, pack)
    read = partial(values_at, temperature=temperature, vocabulary=vocabulary)
    return _without_gradients(read, model, pack, _wanted(pack))


def values_at(
    logits: Tensor, ids: Tensor, targets: Tensor, temperature: float, vocabulary: int
) -> Tensor:
    """What a student's logits say of given ids, differentiable by autograd.

    Args:
        logits: [n, ≥ V]; overwritten.
        ids: int64 [n, k], without repetition.
        targets: int64 [n].

    Returns [n, 3 + k + 1]: log q(target) at temperature 1; whether the target has the largest
    logit, and whether the first id has (1 or 0, without gradients); log q(id) at `temperature`; and
    log q of all others there. Without the last one if k is V.
    """
    return _ValuesAt.apply(logits, ids, targets, temperature, vocabulary)


@torch.no_grad()
def _without_gradients(
    read: OfLogits, model: PreTrainedModel, pack: Pack, *beside: Tensor
) -> Tensor:
    with evaluating(model):
        return _of_pack(read, model, pack, None, *beside)


def _of_pack(
    read: OfLogits, model: PreTrainedModel, pack: Pack, routing: Routing | None, *beside: Tensor
) -> Tensor:
    """`read` of the logits of each scored token, of its rows of `beside`, and of the token."""
    if layout_of(model) is Layout.alone:
        sizes = pack.num_scored.tolist()
        parts = zip(*(each.split(sizes) for each in beside), strict=True) if beside else None
        found = [
            read(logits, *(next(parts) if parts else ()), targets)
            for logits, targets in unpacked_logits(model, pack, routing)
        ]
        return torch.cat(found)
    head = output_head(model)
    tokens = Embedded(seen_or_ids(model, pack), pack.input_ids)
    rows = predicting_rows(model, pack, tokens, routing)

    def of_chunk(rows: Tensor, *others: Tensor) -> Tensor:
        return read(head.logits(rows), *others)

    return by_chunks(pack, head, of_chunk, rows, *beside, buffers=_BUFFERS)


def _wanted(pack: Pack) -> Tensor:
    assert pack.wanted is not None
    return pack.wanted


def _at(values: Tensor, targets: Tensor) -> Tensor:
    return values.gather(1, targets[:, None])


class _ValuesAt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, targets: Tensor, temperature: float, vocabulary: int
    ) -> Tensor:
        z = logits.detach()
        z[:, vocabulary:] = -torch.inf
        z.sub_(z.amax(dim=-1, keepdim=True))
        at_target, first = _at(z, targets), z.gather(1, ids[:, :1])
        hard = z.exp().sum(dim=-1, keepdim=True) if temperature != 1 else None
        if temperature != 1:
            z.div_(temperature)
        at_ids = z.gather(1, ids)
        q = z.exp_()
        sums = q.sum(dim=-1, keepdim=True)
        own = q.gather(1, ids)
        q.scatter_(1, ids, 0)
        rest = q.sum(dim=-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).tiny)
        q.scatter_(1, ids, own)
        hard = sums if hard is None else hard
        parts = [at_target - hard.log(), at_target == 0, first == 0, at_ids - sums.log()]
        if ids.shape[1] < vocabulary:
            parts.append(rest.log() - sums.log())
        ctx.temperature, ctx.k = temperature, ids.shape[1]
        ctx.save_for_backward(q, sums, hard, rest, own, ids, targets)
        return torch.cat([part.to(q.dtype) for part in parts], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, sums, hard, rest, own, ids, targets = ctx.saved_tensors
        of_target = gradients[0][:, :1]
        of_ids, of_rest = gradients[0][:, 3:].split([ctx.k, gradients[0].shape[1] - 3 - ctx.k], 1)
        of_rest = of_rest.sum(dim=1, keepdim=True)
        shared = (of_ids.sum(dim=1, keepdim=True) + of_rest) / sums
        at_one = None
        if ctx.temperature == 1:
            shared = shared + of_target / sums
        else:
            at_one = q.pow(ctx.temperature).mul_(-of_target / hard)
        q.mul_(of_rest / rest - shared).scatter_(1, ids, of_ids - shared * own)
        if at_one is not None:
            q.div_(ctx.temperature).add_(at_one)
        return q.scatter_add_(1, targets[:, None], of_target), None, None, None, None
