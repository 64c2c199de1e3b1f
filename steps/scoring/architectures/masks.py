"""Check that the masks of a model's layers match their declared reach, on which packed attention
relies.

The model reads one sequence with its own masks. Its attention is replaced by a function that
computes nothing and only compares the mask of each layer, entry by entry, with the layer's declared
reach. The comparison is exact. So it finds a window that is only just exceeded, which rounding in
the logps would hide in bfloat16.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steps.scoring.architectures.batching import backbone
from steps.scoring.attention import Reach, reach_of

WATCHED = "temper_watched"


@dataclass
class Watch:
    """Collects the faults of a forward: one sentence for each layer with an unexpected mask."""

    faults: list[str] = field(default_factory=list)

    def look(self, layer: nn.Module, tokens: int, mask: Tensor | None, reach: Reach) -> None:
        """Compare the `mask` of a `layer` with its `reach`, for a sequence of `tokens` tokens."""
        if mask is None and reach.covers(tokens):
            return
        device = torch.device("cpu") if mask is None else mask.device
        given = Reach().mask(tokens, tokens, device) if mask is None else _seen(mask)
        said = reach.mask(tokens, tokens, device)
        if given.shape[-2:] == said.shape and bool((given == said).all()):
            return
        number = getattr(layer, "layer_idx", None)
        self.faults.append(
            f"layer {number} masks otherwise than its config and what it hands over say "
            f"({_said(reach)})"
        )


def mask_fault(model: PreTrainedModel, ids: Tensor) -> str | None:
    """The first fault in the masks of `model` for the sequence `ids` [L], or None.

    Changes the model's attention; the caller must set another one afterwards. Passes on any error
    of a model that cannot be run in this way.
    """
    ALL_ATTENTION_FUNCTIONS.register(WATCHED, _watched)
    ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, sdpa_mask)
    model.set_attn_implementation(WATCHED)
    if model.config._attn_implementation != WATCHED:
        return None  # such a model does not accept packed attention either
    watch = Watch()
    backbone(model)(input_ids=ids[None], use_cache=False, watch=watch)
    return watch.faults[0] if watch.faults else None


def _watched(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    watch: Watch | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Replaces a layer's attention: inspects the mask and returns zeros."""
    if watch is None:
        raise ValueError("a layer does not hand on keywords, without a pack packs cannot be read")
    watch.look(module, query.shape[2], attention_mask, reach_of(module, sliding_window))
    batch, heads, tokens, _ = query.shape
    return value.new_zeros(batch, tokens, heads, value.shape[-1]), None


def _seen(mask: Tensor) -> Tensor:
    """A mask as booleans. An additive mask with values other than 0 and the lowest number becomes
    all False, which matches no reach."""
    if mask.dtype is torch.bool:
        return mask
    lowest = mask <= torch.finfo(mask.dtype).min / 2
    return mask == 0 if bool(((mask == 0) | lowest).all()) else torch.zeros_like(mask).bool()


def _said(reach: Reach) -> str:
    if reach.window is not None:
        return f"a window of {reach.window}"
    return "no window" if reach.chunk is None else f"chunks of {reach.chunk}"
