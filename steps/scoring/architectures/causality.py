"""Check that a model is causal: its output for a token must not depend on later tokens."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.folders import vocabulary_size
from steps.models.positions import turns_by_length
from steps.scoring.architectures.batching import backbone
from steps.scoring.examples import TokenGroup, longest_of
from steps.shared.execution_detail import execution_detail

_TOLERANCES = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 0.02,
    torch.bfloat16: 0.05,
}
"""The largest mean difference of hidden states, relative to their mean size. It is a mean over
tokens, because rounding can send a few tokens of a bfloat16 model to other experts."""
_CHEAP = 64
_Read = Callable[[PreTrainedModel, Tensor], Tensor]


def require_causal(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> None:
    """Raise ValueError if the model's output for a token changes when later tokens change, or when
    the last token is removed.

    Such a model defines no log-probability of a response. Examples are BERT without `is_decoder`,
    and sparse attention that selects among future keys.
    """
    group = longest_of(groups)
    response = max(group.responses, key=lambda response: response.num_fed)
    ids = torch.tensor([*group.prompt_ids, *response.ids[: response.num_fed]])
    # Compare the hidden states of the whole sequence, but the larger logits only of its start.
    off = _change(model, _states, ids)
    if model.get_output_embeddings() is not None:  # a classifier has one output for all tokens
        off = max(off, _change(model, _logits, ids[:_CHEAP]))
    if off > _TOLERANCES[model.dtype]:
        raise ValueError(_not_causal(model, group, off))


def _change(model: PreTrainedModel, read: _Read, ids: Tensor) -> float:
    """By how much the output of `read` for earlier tokens changes when the second half of `ids`
    changes, or when the last token is removed."""
    half = len(ids) // 2
    if half == 0:
        return 0.0
    others = torch.cat([ids[:half], (ids[half:] + 1) % vocabulary_size(model)])
    found = read(model, ids)
    off = _difference(found[:half], read(model, others)[:half])
    if turns_by_length(model):  # the length may change all rotation angles, by design
        return off
    return max(off, _difference(found[:-1], read(model, ids[:-1])))


@execution_detail
def _not_causal(model: PreTrainedModel, group: TokenGroup, off: float) -> str:
    return (
        f"{type(model).__name__} is not causal: its output for a token changes with the tokens "
        f"after it (of row {group.row!r}, by {off:.2g} of its size); take a model that predicts "
        "the next token, or the same one with is_decoder=true in its config"
    )


def _states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The model's last hidden states, [L, H]."""
    hidden: Tensor = backbone(model)(input_ids=ids[None].to(model.device), use_cache=False)[0]
    return hidden[0].to(torch.promote_types(hidden.dtype, torch.float32))


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The model's logits, [L, V]."""
    logits: Tensor = model(input_ids=ids[None].to(model.device), use_cache=False).logits
    return logits[0].to(torch.promote_types(logits.dtype, torch.float32))


def _difference(one: Tensor, other: Tensor) -> float:
    """The relative difference of two sets of states; 0 if there are none or if they are NaN
    (scoring raises the error for NaN)."""
    off = (one - other).abs().mean() / one.abs().mean()
    return off.nan_to_num(0, posinf=0).item()
