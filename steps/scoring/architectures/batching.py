"""Padded batches: each row is a prompt with one response; shorter rows are padded on the right.

This is the model's own forward over several rows, for models whose attention cannot be replaced, or
that have other kinds of layers (recurrences, convolutions). In a causal model, padding on the right
has no effect on the tokens before it. So the model gets no mask, and derives positions, biases and
states as for a single row. The padding repeats the row's last token, so it needs no special token
id.

`parity` verifies this: it compares a batch with the forward of each response alone.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.scoring.architectures.routing import Routing
from steps.scoring.packing import Pack, without_waiting

_LENGTH_MULTIPLE = 8  # as for packs: kernels process the last few rows of other counts differently


def batched_rows(
    model: PreTrainedModel,
    pack: Pack,
    inputs: dict[str, Tensor],
    routing: Routing | None = None,
) -> Tensor:
    """The hidden states [S, H] that predict the pack's scored tokens.

    `inputs`: the pack's ids [1, T] or embeddings [1, T, H], by keyword.
    """
    index = rows_of(pack)
    batch = {
        name: values[0].index_select(0, index.flatten()).unflatten(0, index.shape)
        for name, values in inputs.items()
    }
    asked = {} if routing is None else {"output_router_logits": True}
    outputs = backbone(model)(**batch, **asked, use_cache=False)
    if routing is not None:
        routing.see(outputs, _is_read(pack, index.shape[1]).flatten())
    hidden = outputs.last_hidden_state.flatten(0, 1)
    return hidden.index_select(0, _predictors(pack, index.shape[1]))


def backbone(model: PreTrainedModel) -> Any:
    """The model without its head."""
    if model.base_model is not model:
        return model.base_model
    return getattr(model, "model", model)  # Llama 4's text model sets no base_model


def rows_of(pack: Pack) -> Tensor:
    """For each response, the pack's rows of its prompt and itself, padded to one common length;
    int64 [responses, length], on the pack's device."""
    rows = [
        [*range(span.prompt_start, span.prompt_stop), *range(span.start, span.stop)]
        for span in pack.responses
    ]
    longest = -(-max(map(len, rows)) // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
    padded = torch.tensor([row + row[-1:] * (longest - len(row)) for row in rows])
    return without_waiting(padded, pack.input_ids.device)


def _is_read(pack: Pack, length: int) -> Tensor:
    """Which tokens of a batch with rows of this `length` are not padding, bool [rows, length]."""
    read = torch.tensor([s.prompt_stop - s.prompt_start + s.stop - s.start for s in pack.responses])
    read = torch.arange(length) < read[:, None]
    return without_waiting(read, pack.input_ids.device)


def _predictors(pack: Pack, length: int) -> Tensor:
    """The flat index, in a batch with rows of `length`, that predicts each scored token, [S]."""
    prompts = [span.prompt_stop - span.prompt_start for span in pack.responses]
    first = [length * number + prompt for number, prompt in enumerate(prompts)]
    starts = [span.start for span in pack.responses]
    device = pack.predictors.device
    scored = len(pack.predictors)
    first, starts = (
        without_waiting(torch.tensor(values), device).repeat_interleave(
            pack.num_scored, output_size=scored
        )
        for values in (first, starts)
    )
    # In a batch, the last token of the prompt always directly precedes the response.
    return (pack.predictors - starts).clamp(min=-1) + first
