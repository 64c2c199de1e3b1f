"""Linear layers by oneDNN: the same values, the same bits in any company, the same layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import gpt2, llama, model_folder
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from steps.models.config import Dtype
from steps.models.folders import load_model, save_model
from steps.shared.matmul import is_by_onednn, linear, of_changing_rows
from steps.shared.padded_rows import padded_rows

TRANSPOSED = "transposed"


def laid_out(shape: tuple[int, ...], how: str) -> Tensor:
    """Random numbers, in one of the layouts that autograd and slices hand over."""
    *some, last = shape
    if how == TRANSPOSED:
        return torch.randn(last, *some).movedim(0, -1)
    if how == "every second":
        return torch.randn(*some, 2 * last)[..., ::2]
    if how == "expanded":
        return torch.randn(*some, 1).expand(shape)
    return torch.randn(shape)


@pytest.mark.parametrize("how", ["plain", TRANSPOSED, "every second", "expanded"])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (5, 7), (2, 3, 7), (0, 7)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_values_and_gradients_are_those_of_float64(
    shape: tuple[int, ...], how: str, has_bias: bool
) -> None:
    torch.manual_seed(0)
    rows, weight = laid_out(shape, how), laid_out((11, 7), how)
    gradient = laid_out((*shape[:-1], 11), how)
    factors = [rows, weight, *([torch.randn(11)] if has_bias else [])]

    def learned(product: Any, dtype: torch.dtype) -> list[Tensor]:
        leaves = [factor.to(dtype).detach().requires_grad_() for factor in factors]
        result = product(*leaves)
        return [result, *torch.autograd.grad(result, leaves, gradient.to(dtype))]

    expected = learned(functional.linear, torch.float64)
    for value, exact in zip(learned(linear, torch.float32), expected, strict=True):
        assert_close(value, exact.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), [(96, 256), (576, 576)])
def test_a_weights_gradient_is_as_exact_as_torchs_own(inputs: int, outputs: int) -> None:
    """A small weight's, which PyTorch computes, and a large one's, by oneDNN."""
    torch.manual_seed(0)
    rows, gradient = torch.randn(4096, inputs), torch.randn(4096, outputs)

    def error(product: Any) -> float:
        weight = torch.zeros(outputs, inputs, requires_grad=True)
        (found,) = torch.autograd.grad(product(rows, weight), weight, gradient)
        exact = gradient.double().t() @ rows.double()
        return float((found - exact).norm() / exact.norm())

    assert error(linear) < 2.5 * error(functional.linear)


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 192), (576, 1536), (100, 33), (17, 250)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_row_has_the_same_bits_in_any_company(
    inputs: int, outputs: int, is_transposed: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(inputs, outputs).t() if is_transposed else torch.randn(outputs, inputs)
    rows = torch.randn(700, inputs)
    together = linear(rows, weight)
    for count in (2, 3, 5, 8, 31, 32, 40, 113, 256, 511):
        for start in (0, 700 - count):
            assert torch.equal(
                linear(rows[start : start + count], weight), together[start:][:count]
            )


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(96, 256), (100, 33), (576, 1536), (10, 10), (30, 7)]
)
def test_a_samplers_row_has_the_same_bits_in_any_company(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    rows, weight = torch.randn(512, inputs), torch.randn(outputs, inputs)
    with of_changing_rows():
        every = linear(rows, weight)
        for count in {padded_rows(count) for count in (1, 33, 70, 200, 333, 500)}:
            assert linear(rows[-count:].clone(), weight).equal(every[-count:])


@pytest.mark.parametrize("architecture", [llama, gpt2])
def test_a_loaded_model_is_that_of_transformers_but_for_the_last_bits(
    tmp_path: Path, architecture: Any
) -> None:
    folder = model_folder(tmp_path, architecture)
    ours, theirs = load_model(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert any(map(is_by_onednn, ours.modules()))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ids = torch.arange(12)[None]
    assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-6)
    save_model(ours, tmp_path / "saved")
    for name, weight in load_model(tmp_path / "saved").state_dict().items():
        assert torch.equal(weight, theirs.state_dict()[name])


def test_other_dtypes_and_function_transforms_are_left_to_torch(tmp_path: Path) -> None:
    model: Any = load_model(model_folder(tmp_path, llama), Dtype.float64)
    layer = model.get_output_embeddings()
    rows = torch.randn(3, layer.in_features, dtype=torch.float64)
    assert torch.equal(layer(rows), functional.linear(rows, layer.weight))
    small = torch.randn(4, 5)

    def total(weight: Tensor, row: Tensor) -> Tensor:
        return linear(row, weight).square().sum()

    per_example = torch.func.vmap(torch.func.grad(total), in_dims=(None, 0))
    weight = torch.randn(6, 5)
    expected = torch.stack([torch.func.grad(total)(weight, row) for row in small])
    assert_close(per_example(weight, small), expected)
