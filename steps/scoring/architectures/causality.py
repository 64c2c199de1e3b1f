"""Whether a model is causal: whether what it makes of a token depends on later ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from steps.models.folders import vocabulary_size
from steps.models.positions import rotations
from steps.scoring.architectures.batching import backbone
from steps.scoring.examples import TokenGroup
from steps.shared.execution_detail import execution_detail

_TOLERANCES = {
    torch.float64: 1e-6,
    torch.float32: 1e-4,
    torch.float16: 0.02,
    torch.bfloat16: 0.05,
}
"""Of hidden states, relative to their size, as a mean over tokens: that other shapes of a product
send a few tokens of a bfloat16 model to other experts is rounding too."""
_CHEAP = 64
_Read = Callable[[PreTrainedModel, Tensor], Tensor]


def require_causal(model: PreTrainedModel, groups: Sequence[TokenGroup]) -> None:
    """Raises ValueError for a model that gives a token something else when later tokens are others,
    or when there is one fewer.

    Such a model has no log-probability of a response: BERT without `is_decoder`; a sparse attention
    that chooses among keys of the future.
    """
    group = max(groups, key=lambda group: group.longest_sequence)
    response = max(group.responses, key=lambda response: response.num_fed)
    ids = torch.tensor([*group.prompt_ids, *response.ids[: response.num_fed]])
    # The hidden states of all of it; the logits, which are larger, of as much as is cheap.
    off = _change(model, _states, ids)
    if model.get_output_embeddings() is not None:  # a classifier says one thing of all tokens
        off = max(off, _change(model, _logits, ids[:_CHEAP]))
    if off > _TOLERANCES[model.dtype]:
        raise ValueError(_not_causal(model, group, off))


def _change(model: PreTrainedModel, read: _Read, ids: Tensor) -> float:
    """By how much what `read` finds of earlier tokens changes with the later half of `ids`, or with
    the last of them gone."""
    half = len(ids) // 2
    if half == 0:
        return 0.0
    others = torch.cat([ids[:half], (ids[half:] + 1) % vocabulary_size(model)])
    found = read(model, ids)
    off = _difference(found[:half], read(model, others)[:half])
    rescaled = {"dynamic", "longrope"} & {str(r.get("rope_type")) for r in rotations(model)}
    if rescaled:  # the last token may turn all others by other angles, as it is meant to
        return off
    return max(off, _difference(found[:-1], read(model, ids[:-1])))


@execution_detail
def _not_causal(model: PreTrainedModel, group: TokenGroup, off: float) -> str:
    return (
        f"{type(model).__name__} is not causal: what it makes of a token depends on the tokens "
        f"behind it (of row {group.row!r}, by {off:.2g} of its size); take a model that predicts "
        "the next token, or the same one with is_decoder=true in its config"
    )


def _states(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """What the model makes of each token, before its head; [L, H]."""
    hidden: Tensor = backbone(model)(input_ids=ids[None].to(model.device), use_cache=False)[0]
    return hidden[0].to(torch.promote_types(hidden.dtype, torch.float32))


def _logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """What it says comes next; [L, V]."""
    logits: Tensor = model(input_ids=ids[None].to(model.device), use_cache=False).logits
    return logits[0].to(torch.promote_types(logits.dtype, torch.float32))


def _difference(one: Tensor, other: Tensor) -> float:
    """Of two sets of states, relative; 0 where there are none, or none that are numbers (whoever
    scores complains of that)."""
    off = (one - other).abs().mean() / one.abs().mean()
    return off.nan_to_num(0, posinf=0).item()
