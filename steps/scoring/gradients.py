"""Add gradients to `.grad` by hand, only for modules without hooks, shards or adapters.

Autograd would first allocate each gradient as a tensor of its own. For the embedding or output
matrix, which every pack uses, that takes more time and memory than some layers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from steps.shared.matmul import is_by_onednn


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `module` is exactly a `kind`, without adapters, shards or hooks. Only then may code
    write its parameters' gradients by hand."""
    if type(module) is not kind or ("forward" in vars(module) and not is_by_onednn(module)):
        return False
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not any(hooks) and all(map(_is_plain_parameter, module.parameters()))


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add to `.grad`, in the parameter's dtype for gradients."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype or gradient.dtype)
    else:
        parameter.grad.add_(gradient)


def add_product(parameter: nn.Parameter, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to `.grad`, without a tensor for the product if the dtypes allow it."""
    gradient = parameter.grad
    if gradient is not None and gradient.dtype == left.dtype:
        gradient.addmm_(left, right)
    else:
        add_gradient(parameter, left @ right)


def add_rows(parameter: nn.Parameter, rows: Tensor, gradients: Tensor) -> None:
    """Add `gradients` [n, H] to the rows with the indices `rows` [n], which may repeat."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype or parameter.dtype)
    gradients = gradients.to(parameter.grad.dtype)
    if parameter.grad.is_cuda:  # this kernel sorts, so it adds in the same order every time
        parameter.grad.index_put_((rows,), gradients, accumulate=True)
    else:
        parameter.grad.index_add_(0, rows, gradients)


def _is_plain_parameter(parameter: nn.Parameter) -> bool:
    hooks: tuple[Any, ...] = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    return type(parameter) is nn.Parameter and parameter.is_leaf and not any(hooks)
