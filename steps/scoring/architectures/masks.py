"""Whether the layers of a model mask as they say, so that packed attention can mask in their place.

The model reads one sequence with its own masks and with an attention that computes nothing: it
looks at the mask that a layer is given, and compares it, entry by entry, with what the layer says
of its reach. Nothing is rounded here, so a window that a sequence has just passed is seen in
bfloat16 too, where the logps would hide it.
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
    """What has been seen of a forward. faults: a sentence for each layer that is not as it says."""

    faults: list[str] = field(default_factory=list)

    def look(self, layer: nn.Module, tokens: int, mask: Tensor | None, reach: Reach) -> None:
        """Compares the `mask` of a `layer` for a sequence of so many `tokens`."""
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
    """What is wrong with the masks of `model` for the sequence `ids` [L], if anything is.

    Changes the model's attention; whoever calls sets another one. Raises whatever a model raises
    that does not take this way of being read.
    """
    ALL_ATTENTION_FUNCTIONS.register(WATCHED, _watched)
    ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, sdpa_mask)
    model.set_attn_implementation(WATCHED)
    if model.config._attn_implementation != WATCHED:
        return None  # nor will it take the packed one
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
    """In place of a layer's attention: zeros."""
    if watch is None:
        raise ValueError("a layer does not hand on keywords, without a pack packs cannot be read")
    watch.look(module, query.shape[2], attention_mask, reach_of(module, sliding_window))
    batch, heads, tokens, _ = query.shape
    return value.new_zeros(batch, tokens, heads, value.shape[-1]), None


def _seen(mask: Tensor) -> Tensor:
    """A mask as booleans; of one that is added to scores, with anything but 0 and a lowest value,
    one that no reach equals."""
    if mask.dtype is torch.bool:
        return mask
    lowest = mask <= torch.finfo(mask.dtype).min / 2
    return mask == 0 if bool(((mask == 0) | lowest).all()) else torch.zeros_like(mask).bool()


def _said(reach: Reach) -> str:
    if reach.window is not None:
        return f"a window of {reach.window}"
    return "no window" if reach.chunk is None else f"chunks of {reach.chunk}"
