"""The scores of responses: the output of a reward model's head at a response's last token.

A pack of whole responses (`examples.WholeResponse`) holds each prompt once, and all tokens of every
response. The head reads one row for each response and computes in float64, whatever the model's
dtype.

On a CPU, a response's score does not depend, in any bit, on the other groups and responses in the
pack, nor on their order.
"""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.folders import evaluating
from steps.models.positions import forget_lengths
from steps.models.value_head import scaled, scores_of
from steps.scoring.architectures.images import require_no_placeholders
from steps.scoring.architectures.pack_layouts import Layout, layout_of
from steps.scoring.architectures.routing import Routing
from steps.scoring.embedding import Embedded, add_to_embeddings, embed
from steps.scoring.logps import GroupLoss, Scored, TokenLogps, backward, predicting_rows
from steps.scoring.packing import Pack, ResponseSpan
from steps.scoring.scorer import Readout


@torch.no_grad()
def values(model: PreTrainedModel, pack: Pack) -> Tensor:
    """The scores of the pack's responses, float64 [N], without dropout."""
    with evaluating(model):
        return recorded_values(model, pack)


def recorded_values(model: PreTrainedModel, pack: Pack, routing: Routing | None = None) -> Tensor:
    """`values` with gradients recorded, and with dropout in training mode."""
    return scores_of(model, _last_rows(model, pack, routing))


@torch.no_grad()
def last_states(model: PreTrainedModel, pack: Pack) -> Tensor:
    """The hidden states [N, H] that the head reads, each scaled to a mean square of 1. Checks of
    packing compare these, because the scores of an untrained head are all 0."""
    with evaluating(model):
        return scaled(_last_rows(model, pack))


VALUES = Readout(values, recorded_values, last_states)
"""The readout of a reward model: scores of whole responses."""


def backward_values(
    model: PreTrainedModel, pack: Pack, loss: GroupLoss, routing: Routing | None = None
) -> Scored:
    """Add the gradient of the summed losses of a pack's groups to the `.grad` of the model's
    parameters. It is the counterpart of `logps.forward_backward` for scores."""

    def through(scores: Tensor) -> Scored:
        return backward(TokenLogps(scores.double(), pack.lengths), pack, loss, routing)

    if layout_of(model) is Layout.alone:
        return through(recorded_values(model, pack, routing))
    embedded = embed(model, pack)
    scored = through(scores_of(model, predicting_rows(model, pack, embedded, routing)))
    add_to_embeddings(embedded)
    return scored


def _last_rows(model: PreTrainedModel, pack: Pack, routing: Routing | None = None) -> Tensor:
    """The hidden state [N, H] of each response's last token."""
    if layout_of(model) is not Layout.alone:
        tokens = Embedded({"input_ids": pack.input_ids[None]}, pack.input_ids)
        return predicting_rows(model, pack, tokens, routing)
    return torch.stack([_last_row_alone(model, pack, span, routing) for span in pack.responses])


def _last_row_alone(
    model: PreTrainedModel, pack: Pack, span: ResponseSpan, routing: Routing | None
) -> Tensor:
    """The hidden state [H] of a response's last token, from the model's own forward of its prompt
    and itself."""
    parts = slice(span.prompt_start, span.prompt_stop), slice(span.start, span.stop)
    ids = torch.cat([pack.input_ids[part] for part in parts])
    base = cast(Any, model.base_model)
    asked = {} if routing is None else {"output_router_logits": True}
    require_no_placeholders(model, ids)
    forget_lengths(model)
    outputs = base(input_ids=ids[None], use_cache=False, **asked)
    if routing is not None:
        routing.see(outputs, ids.new_ones(len(ids)))
    return outputs.last_hidden_state[0, -1]
