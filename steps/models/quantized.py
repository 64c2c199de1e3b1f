"""Frozen weights of 4 bits under adapters (QLoRA, Dettmers et al. 2023,
https://arxiv.org/abs/2305.14314), through bitsandbytes.

The linear layers of a model, except its head, are rounded while it is loaded. A layer computes with
the rounded weight W', in the model's dtype. So the reference of a policy is the model with W'; and
the trained model is W' plus its adapters, not the original weights plus the adapters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from steps.models.config import Dtype, Quantization


def four_bit(quantization: Quantization, dtype: Dtype, on_host: bool) -> dict[str, Any]:
    """The settings with which transformers rounds weights while it loads a model.

    Raises ValueError without bitsandbytes; and if `on_host` is set, because such a model is about
    to be sharded, and rows of blocks cannot be.
    """
    if on_host:
        raise ValueError("weights of 4 bits are not shared by several processes; use one process")
    require_bitsandbytes("quantization")
    described = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=quantization is Quantization.nf4_double,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
    )
    return {"quantization_config": described}


def require_bitsandbytes(setting: str) -> None:
    """Raise ValueError, which names the `setting`, if bitsandbytes is not installed."""
    if find_spec("bitsandbytes") is None:
        raise ValueError(f"{setting} needs bitsandbytes: pip install 'temper-ml[bitsandbytes]'")


def prepare_four_bit(model: PreTrainedModel) -> None:
    """Make a model that was just loaded fit for training; raises ValueError if none of its layers
    was rounded.

    On processors with AVX512-BF16, a forward without gradients would arrange the weights anew, for
    a kernel that has no gradient and that takes some sizes only.
    """
    names = {name.rpartition(".")[0] for name, _ in rounded_weights(model)}
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no linear layers that can be rounded to 4 bits; leave out "
            "quantization"
        )
    for name in names:
        layer: Any = model.get_submodule(name)
        layer.support_avx512bf16_for_cpu = False


def quantization_of(model: PreTrainedModel) -> Quantization | None:
    """How the weights of `model` are rounded; None if they are not."""
    described = getattr(model.config, "quantization_config", None)
    if not isinstance(described, BitsAndBytesConfig) or not described.load_in_4bit:
        return None
    is_double = described.bnb_4bit_use_double_quant
    return Quantization.nf4_double if is_double else Quantization.nf4


@contextmanager
def rounded_layers_computing_in(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """Let the layers whose weights are rounded, if there are any, compute in another dtype."""
    layers: list[Any] = [
        model.get_submodule(name.rpartition(".")[0]) for name, _ in rounded_weights(model)
    ]
    before = [layer.compute_dtype for layer in layers]
    for layer in layers:
        layer.compute_dtype = dtype
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.compute_dtype = own


def rounded_weights(model: PreTrainedModel) -> Iterator[tuple[str, Any]]:
    """The names and parameters of the weights that are rounded."""
    return ((n, p) for n, p in model.named_parameters() if hasattr(p, "quant_state"))


@torch.no_grad()
def put_rounded_weights(model: PreTrainedModel, plain: PreTrainedModel) -> None:
    """Give a `plain` model of the same folder the values of the rounded weights of `model`."""
    for name, weight in rounded_weights(model):
        own = name.removesuffix(".weight").removesuffix(".base_layer")
        layer: Any = plain.get_submodule(own)
        values = values_of(weight)
        layer.weight.copy_(values.t() if isinstance(layer, Conv1D) else values)


def count_of(parameter: Tensor) -> int:
    """The number of weights of a parameter, of which a byte may hold two."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()


def values_of(weight: Any) -> Tensor:
    """The values of a rounded weight, [outputs, inputs]."""
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state)
