"""Compute in float32 for a while with a model of 16 bits: so rounding hides no other difference.

What a recurrence or a position misses in a pack can be smaller than the rounding of bfloat16 and
still be wrong (Falcon-H1, Zaya, BART: up to 0.2 nats a token on average).

The weights of a layer are in float32 only while the layer computes. So the most memory that this
takes is that of one layer's weights and of those outside all layers, which are the embeddings and
the head. The weights themselves stay where they are, so giving them back takes no memory: it works
after any error too.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from steps.models.quantized import rounded_layers_computing_in

_Result = TypeVar("_Result")
SHARED = "several devices share its weights"
NO_MEMORY = "there was not enough memory"
NO_OPERATION = "one of its operations does not work in float32"


@torch.no_grad()
def found_in_float32(
    model: PreTrainedModel, find: Callable[[], _Result]
) -> tuple[_Result | None, str | None]:
    """What `find` returns while a `model` of 16 bits computes in float32; or None, and why it could
    not compute so. Other models are not asked: None, and no reason."""
    if model.dtype not in (torch.bfloat16, torch.float16):
        return None, None
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return None, SHARED
    try:
        with in_float32(model):
            return find(), None
    except (torch.OutOfMemoryError, MemoryError):
        return None, NO_MEMORY
    except (RuntimeError, AssertionError):  # of the model's forward
        return None, NO_OPERATION


@contextmanager
def in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Let `model` compute in float32 in the block, without gradients."""
    dtype, layers = model.dtype, list(_layers(model))
    outside = [tensor for tensor in _outside(model) if tensor.dtype is dtype]
    shared = set(map(id, outside))
    with ExitStack() as undone:
        undone.enter_context(rounded_layers_computing_in(model, torch.float32))
        of_model = _Cast(outside)
        undone.callback(of_model.end)
        of_model.begin()
        for layer in layers:
            own = _Cast(t for t in _tensors(layer) if t.dtype is dtype and id(t) not in shared)
            undone.callback(own.end)
            before = layer.register_forward_pre_hook(own.begin)
            after = layer.register_forward_hook(own.end, always_call=True)
            undone.callback(before.remove)
            undone.callback(after.remove)
        yield


class _Cast:
    """Tensors that can be in float32 for a while, and then have their own storage again."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._own = [(tensor, tensor.data) for tensor in tensors]

    def begin(self, *_: Any) -> None:
        for tensor, own in self._own:
            tensor.data = own.float()

    def end(self, *_: Any) -> None:
        for tensor, own in self._own:
            tensor.data = own


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
