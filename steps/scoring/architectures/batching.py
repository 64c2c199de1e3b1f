"""Responses in padded batches: a row for each, its prompt before it, the shorter ones padded.

For models whose attention cannot be replaced, or that have layers of another kind (recurrences,
convolutions): the model's own forward, of several rows. What follows a token bears on nothing
before it in a causal model, so rows are padded on the right, and no mask is needed to hide that:
whatever a model makes of a mask (positions, biases, states) it makes as for a row alone. The
padding of a row repeats its last token, so no token id is taken to be one that means nothing.

All of this is tried: `parity` compares a batch with each of its responses read alone.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.scoring.architectures.routing import Routing
from steps.scoring.packing import Pack

_LENGTH_MULTIPLE = 8  # as rows of a pack: kernels treat the last few of an odd count otherwise


def batched_rows(
    model: PreTrainedModel,
    pack: Pack,
    inputs: dict[str, Tensor],
    routing: Routing | None = None,
) -> Tensor:
    """The hidden states [S, H] that predict the pack's scored tokens.

    `inputs`: what a pack is given as, ids [1, T] or embeddings [1, T, H], by keyword.
    """
    rows = _rows(pack)
    index = torch.tensor(rows).to(pack.input_ids.device, non_blocking=True)
    batch = {
        name: values[0].index_select(0, index.flatten()).unflatten(0, index.shape)
        for name, values in inputs.items()
    }
    asked = {} if routing is None else {"output_router_logits": True}
    outputs = backbone(model)(**batch, **asked, use_cache=False)
    if routing is not None:
        routing.see(outputs, _is_read(pack, len(rows[0])).flatten())
    hidden = outputs.last_hidden_state.flatten(0, 1)
    return hidden.index_select(0, _predictors(pack, len(rows[0])))


def backbone(model: PreTrainedModel) -> Any:
    """The model without its head."""
    if model.base_model is not model:
        return model.base_model
    return getattr(model, "model", model)  # Llama 4's text model has another name for it


def _rows(pack: Pack) -> list[list[int]]:
    """For each response, the rows of the pack that it is made of, up to one length for all."""
    rows = [
        [*range(span.prompt_start, span.prompt_stop), *range(span.start, span.stop)]
        for span in pack.responses
    ]
    longest = -(-max(map(len, rows)) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    return [row + row[-1:] * (longest - len(row)) for row in rows]


def _is_read(pack: Pack, length: int) -> Tensor:
    """Which tokens of a batch of rows of this `length` are no padding, bool [rows, length]."""
    read = torch.tensor([s.prompt_stop - s.prompt_start + s.stop - s.start for s in pack.responses])
    read = torch.arange(length) < read[:, None]
    return read.to(pack.input_ids.device, non_blocking=True)


def _predictors(pack: Pack, length: int) -> Tensor:
    """Where in a batch of rows of this `length` each scored token is predicted, [S]."""
    prompts = [span.prompt_stop - span.prompt_start for span in pack.responses]
    first = [length * number + prompt for number, prompt in enumerate(prompts)]
    starts = [span.start for span in pack.responses]
    device = pack.predictors.device
    scored = len(pack.predictors)
    first, starts = (
        torch.tensor(values)
        .to(device, non_blocking=True)
        .repeat_interleave(pack.num_scored, output_size=scored)
        for values in (first, starts)
    )
    # The last token of a prompt, wherever it is in a pack, is here the one before the response.
    return (pack.predictors - starts).clamp(min=-1) + first
