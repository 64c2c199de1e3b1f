"""Activation checkpointing: recompute activations in the backward instead of keeping them."""

from collections.abc import Callable
from functools import cache, partial
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

from steps.models.config import LEAST_INPUT, ActivationCheckpointing

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
    "bitsandbytes::gemm_4bit",
    "mkldnn::_linear_pointwise",
)
"""Operations whose results selective checkpointing keeps: nearly all of the arithmetic, in a few
large tensors. torchtitan's list also has the collectives of tensor parallelism."""


_FEW = 128
"""The inner dimension below which a product that is much wider than its factor is cheap: an
adapter's second factor has as large a result as the matrix that it adapts."""


def checkpoint_activations(
    model: PreTrainedModel, how: ActivationCheckpointing = ActivationCheckpointing.full
) -> None:
    """Make each layer of `model` keep only the activations that `how` names. Gradients do not
    change in any bit.

    Unlike `gradient_checkpointing_enable`, this also works if the model is not in training mode, as
    in preference training without dropout.
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


class _WritesInPlace(Exception):
    """A layer is about to change a tensor in place, possibly a kept one."""


def _selectively(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Selective checkpointing of one layer; a layer that writes in place keeps all activations.

    An in-place write can change a view of a kept result unnoticed, so that the backward would use
    changed values (Gemma 3n's layers write like this)."""
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    hidden = next(tensors, None)
    if hidden is None or not torch.is_grad_enabled() or hidden.nbytes < LEAST_INPUT:
        return forward(*args, **kwargs)
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    before = _random_state(hidden)
    result = checkpoint(_tried, forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)
    if result is not _WritesInPlace:
        return result
    _set_random_state(hidden, before)
    return forward(*args, **kwargs)


def _tried(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `forward` returns, or the class `_WritesInPlace` where it raises that: an error that
    leaves a checkpoint does not end it before the error is gone (torch 2.11)."""
    try:
        return forward(*args, **kwargs)
    except _WritesInPlace:
        return _WritesInPlace


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Whether to keep an operation's result. Torch calls this before it runs the operation."""
    if operation._schema.is_mutable and not context.is_recompute:
        raise _WritesInPlace
    # Operations with random numbers are recomputed, so that later random numbers stay the same.
    is_kept = _is_expensive(operation) and not (
        _drops_out(operation, args, kwargs) or _widens(operation, args)
    )
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _is_expensive(operation: Any) -> bool:
    return operation.name().partition(".")[0] in _EXPENSIVE


def _drops_out(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    names = [argument.name for argument in operation._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("dropout_p"))


def _widens(operation: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is a product that takes less to compute again than to keep."""
    if operation.name().partition(".")[0] not in ("aten::mm", "aten::addmm"):
        return False
    inner, wide = [each for each in args if isinstance(each, Tensor)][-1].shape
    return inner < _FEW and 4 * inner <= wide


def _random_state(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    on_device = torch.cuda.get_rng_state(hidden.device) if hidden.is_cuda else None
    return torch.get_rng_state(), on_device


def _set_random_state(hidden: Tensor, state: tuple[Tensor, Tensor | None]) -> None:
    on_host, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, hidden.device)
