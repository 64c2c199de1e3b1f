"""Activation checkpointing: less is kept from the forward, and computed again in the backward."""

from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.training.config import ActivationCheckpointing

_EXPENSIVE = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_flash_attention_forward",
    "torch_attn::_varlen_attn",
)
"""What selective checkpointing keeps: nearly all of the arithmetic, in a few large tensors. After
torchtitan, whose list has the collectives of tensor parallelism besides."""


_WORTHWHILE_BYTES = 2**20
"""Of a layer's input: below, choosing what to keep takes longer than all of it is worth."""


def checkpoint_activations(
    model: PreTrainedModel, how: ActivationCheckpointing = ActivationCheckpointing.full
) -> None:
    """Makes each layer of `model` keep no more than `how` says. Changes no bit of a gradient.

    Unlike `gradient_checkpointing_enable`, also when the model is not in training mode, as when
    preferences are learnt without dropout.
    """
    recomputing = {
        ActivationCheckpointing.none: None,
        ActivationCheckpointing.selective: _selectively,
        ActivationCheckpointing.full: _from_its_input,
    }[how]
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer) and recomputing is not None:
            layer.forward = partial(recomputing, layer.forward)


def _from_its_input(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _selectively(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    is_large = any(tensor.nbytes >= _WORTHWHILE_BYTES for tensor in islice(tensors, 1))
    if not (torch.is_grad_enabled() and is_large):
        return forward(*args, **kwargs)
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(_context: Any, operation: Any, *_: Any, **__: Any) -> CheckpointPolicy:
    is_kept = _is_expensive(operation)
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _is_expensive(operation: Any) -> bool:
    return operation.name().partition(".")[0] in _EXPENSIVE
