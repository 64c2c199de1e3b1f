"""Linear layers whose products oneDNN computes, in float32 on a CPU.

PyTorch gives these products to MKL, which leaves the 512-bit units of AMD's processors unused.
oneDNN takes half the time there, and no more with 256 bits (AVX2). Factors and sums are float32 in
both; oneDNN adds in the order of the inputs, and its errors are up to 2.2 times MKL's. For two rows
or more, a row's result does not depend, in any bit, on the other rows.

A call of oneDNN with other rows than the last one has a cost of its own, which is most of a small
product's. A sampler has other rows in every forward, so its small weights go to PyTorch too: see
`of_changing_rows`. Which of the two computes never depends on the number of rows, as then a row's
result would depend on the others.

A layer keeps its class, its name and its parameters, so adapters, state dicts and exports treat it
as before. Another dtype or device, a shard, an empty batch or a function transform goes to
PyTorch's own product, call by call.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

_SMALL = 2**16
"""Weights with fewer elements are small."""

_rows_change = ContextVar("rows_change", default=False)


@contextmanager
def of_changing_rows() -> Iterator[None]:
    """In the block, products of this thread with small weights are PyTorch's own."""
    before = _rows_change.set(True)
    try:
        yield
    finally:
        _rows_change.reset(before)


def use_onednn(model: PreTrainedModel) -> None:
    """Let oneDNN compute the products of all plain linear layers of `model`."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_forward, module)
        elif type(module) is Conv1D:
            module.forward = partial(_forward_transposed, module)


def is_by_onednn(module: nn.Module) -> bool:
    """Whether `use_onednn` alone has changed how a layer computes."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func in (_forward, _forward_transposed)


def _forward(layer: nn.Linear, input: Tensor) -> Tensor:
    return linear(input, layer.weight, layer.bias)


def _forward_transposed(layer: Conv1D, x: Tensor) -> Tensor:
    """Of GPT-2's linear layer, which keeps its weight as [inputs, outputs]."""
    return linear(x, layer.weight.t(), layer.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows` [..., I] times the transpose of `weight` [O, I], plus `bias` [O]: [..., O].

    By oneDNN, it is differentiable once.
    """
    # A sampler calls this for every product, so what decides most of its calls comes first.
    if (_rows_change.get() and _is_small(weight)) or not _is_for_onednn(rows, weight, bias):
        return functional.linear(rows, weight, bias)
    if rows.dim() != 2:  # the result of a function of one's own may not be a view
        flat = linear(rows.reshape(-1, rows.shape[-1]), weight, bias)
        return flat.view(*rows.shape[:-1], weight.shape[0])
    if torch.is_grad_enabled() and (
        rows.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Linear.apply(rows, weight, bias)
    return _product(rows, weight, bias)


def _is_small(weight: Tensor) -> bool:
    """Whether a weight is small, and of a shape with which PyTorch's product of a row does not
    depend on the other rows: few outputs, or odd numbers of inputs, have kernels of their own."""
    if weight.dim() != 2 or weight.numel() >= _SMALL:
        return False
    outputs, inputs = weight.shape
    return min(outputs, inputs) >= 16 and inputs % 4 == 0


def _is_for_onednn(rows: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    if not _HAS_ONEDNN or torch.is_autocast_enabled("cpu"):
        return False
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    has_right_shapes = (
        weight.dim() == 2
        and rows.dim() > 0
        and rows.shape[-1] == weight.shape[1]
        and (bias is None or bias.shape == weight.shape[:1])
    )
    return has_right_shapes and all(
        (type(factor) is Tensor or type(factor) is nn.Parameter)
        and factor.dtype == torch.float32
        and factor.device.type == "cpu"
        and factor.layout == torch.strided
        and factor.numel() > 0
        for factor in (rows, weight, *(() if bias is None else (bias,)))
    )


_HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `linear`, of matrices. The second may be a transposed view, which is not copied."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def _sum_of_outer_products(lefts: Tensor, rights: Tensor) -> Tensor:
    """The sum over rows of a row of `lefts` [N, O] by one of `rights` [N, I]: [O, I].

    oneDNN's operator copies its first factor, which takes as long as what it saves of a small
    product."""
    if lefts.shape[1] * rights.shape[1] < _SMALL:
        return lefts.t() @ rights
    if lefts.shape[1] > rights.shape[1]:  # oneDNN's operator copies the first, so the smaller is
        return _product(rights.t(), lefts.t()).t()
    return _product(lefts.t(), rights.t())


class _Linear(torch.autograd.Function):
    """A product with its three gradients, each by oneDNN."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0]
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_rows else None,
            _sum_of_outer_products(gradient, rows) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
