"""Gradients written into `.grad` by hand, for modules without hooks, shards or adapters only.

Autograd would first make each of them as a tensor of its own: for the matrix of a vocabulary, read
by every pack, that costs more time and memory than some layers do.
"""

from typing import Any

import torch
from torch import Tensor, nn


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `module` is a `kind` and nothing besides: no adapter, no shards, no hook that someone
    waits for. Only then may its parameters' gradients be written by hand."""
    if type(module) is not kind or "forward" in vars(module):
        return False
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not any(hooks) and all(map(_is_plain_parameter, module.parameters()))


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Adds to `.grad`, in the dtype that gradients of the parameter are wanted in."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype or gradient.dtype)
    else:
        parameter.grad.add_(gradient)


def add_product(parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
    """Adds `left @ right`, without a tensor for the product where dtypes allow."""
    gradient = parameter.grad
    if gradient is not None and gradient.dtype == left.dtype:
        gradient.addmm_(left, right)
    else:
        add_gradient(parameter, left @ right)


def add_rows(parameter: nn.Parameter, rows: Tensor, gradients: Tensor) -> None:
    """Adds `gradients` [n, H] to the rows that `rows` [n] names, where some may be named often."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype or parameter.dtype)
    gradients = gradients.to(parameter.grad.dtype)
    if parameter.grad.is_cuda:  # sorts, and so adds in the same order every time
        parameter.grad.index_put_((rows,), gradients, accumulate=True)
    else:
        parameter.grad.index_add_(0, rows, gradients)


def _is_plain_parameter(parameter: nn.Parameter) -> bool:
    hooks: tuple[Any, ...] = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    return type(parameter) is nn.Parameter and parameter.is_leaf and not any(hooks)
