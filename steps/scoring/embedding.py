"""Token embeddings of a pack, whose gradient is kept per token and not per vocabulary entry."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from steps.scoring.architectures.images import seen_or_ids, with_features
from steps.scoring.gradients import add_rows, is_plain
from steps.scoring.packing import Pack


@dataclass(frozen=True)
class Embedded:
    """The input of a base model: embeddings if they are a plain table look-up, else token ids.

    inputs: keyword arguments of the base model's forward.
    leaf: the tensor whose `.grad` collects the gradient of the embeddings.
    """

    inputs: dict[str, Tensor]
    ids: Tensor
    table: nn.Embedding | None = None
    leaf: Tensor | None = None


def embed(model: PreTrainedModel, pack: Pack) -> Embedded:
    """The pack's tokens as input of the base model, with a leaf if autograd records gradients."""
    table: Any = model.get_input_embeddings()
    if not is_plain(table, nn.Embedding) or table.max_norm is not None or table.scale_grad_by_freq:
        return Embedded(seen_or_ids(model, pack), pack.input_ids)
    with torch.no_grad():
        embeddings = table(pack.input_ids[None])
    if not (torch.is_grad_enabled() and table.weight.requires_grad):
        return Embedded({"inputs_embeds": with_features(model, pack, embeddings)}, pack.input_ids)
    leaf = embeddings.requires_grad_()
    # Of a leaf no model may write into its input, as CTRL does.
    seen = with_features(model, pack, leaf.clone())
    return Embedded({"inputs_embeds": seen}, pack.input_ids, table, leaf)


def add_to_embeddings(embedded: Embedded) -> None:
    """Add the collected gradient to the rows of the embedding table; call it after the backward."""
    if embedded.table is None or embedded.leaf is None:
        return
    weight = embedded.table.weight
    assert isinstance(weight, nn.Parameter)
    assert embedded.leaf.grad is not None
    gradient = embedded.leaf.grad[0]
    if embedded.table.padding_idx is not None:  # this row gets no gradient, as in torch
        gradient = gradient * (embedded.ids != embedded.table.padding_idx)[:, None]
    add_rows(weight, embedded.ids, gradient)
