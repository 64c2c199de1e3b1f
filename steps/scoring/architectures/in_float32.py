"""Compute in float32 for a while with a model of 16 bits: so rounding hides no other difference.

What a recurrence or a position misses in a pack can be smaller than the rounding of bfloat16 and
still be wrong (Falcon-H1, Zaya, BART: up to 0.2 nats a token on average).

The weights of a layer are in float32 only while the layer computes. So the most memory that this
takes is that of one layer's weights and of those outside all layers, which are the embeddings and
the head. Afterwards the weights have their bits again, as every number of 16 bits is one of
float32.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.models.quantized import rounded_layers_computing_in


def can_be_in_float32(model: PreTrainedModel) -> bool:
    """Whether `model` has 16 bits, and its weights are not sharded."""
    if model.dtype not in (torch.bfloat16, torch.float16):
        return False
    return not any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` compute in float32 in the block, without gradients."""
    dtype, layers = model.dtype, list(_layers(model))
    outside = [tensor for tensor in _outside(model) if tensor.dtype is dtype]
    shared = set(map(id, outside))
    with ExitStack() as undone:
        undone.enter_context(rounded_layers_computing_in(model, torch.float32))
        undone.callback(_cast, outside, dtype)
        _cast(outside, torch.float32)
        for layer in layers:
            own = [t for t in _tensors(layer) if t.dtype is dtype and id(t) not in shared]
            before = layer.register_forward_pre_hook(partial(_before, own))
            after = layer.register_forward_hook(partial(_after, own, dtype), always_call=True)
            undone.callback(before.remove)
            undone.callback(after.remove)
        yield


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model, without those inside another one."""
    for child in module.children():
        if isinstance(child, GradientCheckpointingLayer):
            yield child
        else:
            yield from _layers(child)


def _outside(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that a module outside all layers has, some of which layers may share."""
    yield from chain(module.parameters(recurse=False), module.buffers(recurse=False))
    for child in module.children():
        if not isinstance(child, GradientCheckpointingLayer):
            yield from _outside(child)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())


def _before(own: Iterable[Tensor], layer: nn.Module, inputs: Any) -> None:
    _cast(own, torch.float32)


def _after(
    own: Iterable[Tensor], dtype: torch.dtype, layer: nn.Module, inputs: Any, output: Any
) -> None:
    _cast(own, dtype)


def _cast(tensors: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Change the dtype of tensors in place."""
    for tensor in tensors:
        tensor.data = tensor.data.to(dtype)
