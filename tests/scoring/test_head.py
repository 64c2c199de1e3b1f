"""The head's gradients, formed by hand, beside autograd's of the textbook log-softmax."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import gemma2, granite, llama, model_folder
from torch import Tensor, nn
from transformers import CohereConfig, CohereForCausalLM, PreTrainedModel

from steps.models.folders import load_model
from steps.scoring.head import (
    Head,
    compiled_kernels,
    output_head,
    softmax_backward,
)

ROWS, WIDTH, VOCABULARY = 12, 6, 20
Transforms = tuple[float, float | None]
TRANSFORMS: list[Transforms] = [(1.0, None), (0.25, None), (1.0, 2.0), (3.0, 0.7)]


def layer(bias: bool, dtype: torch.dtype = torch.float64) -> nn.Linear:
    torch.manual_seed(4)
    return nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)


def rows_and_targets(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, their targets, and gradients for the targets' logps."""
    generator = torch.Generator().manual_seed(5)
    rows = 3 * torch.randn((ROWS, WIDTH), generator=generator).to(dtype)
    targets = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    return rows, targets, torch.randn(ROWS, generator=generator)


def textbook(
    module: nn.Linear, rows: Tensor, targets: Tensor, scale: float, soft_cap: float | None
) -> Tensor:
    logits = module(rows) * scale
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    return logits.log_softmax(dim=-1)[torch.arange(len(rows)), targets]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_gradients_by_hand_are_autograd_s(bias: bool, transforms: Transforms) -> None:
    rows, targets, of_logps = rows_and_targets()
    ours, theirs = layer(bias), layer(bias)
    expected_rows = rows.clone().requires_grad_()
    expected = textbook(theirs, expected_rows, targets, *transforms)
    expected.backward(of_logps.double())
    with torch.no_grad():
        softmax = Head(ours, *transforms).softmax(rows, targets)
        torch.testing.assert_close(softmax.logps, expected.detach(), rtol=0, atol=1e-13)
        of_rows = softmax_backward(softmax, of_logps)
    torch.testing.assert_close(of_rows, expected_rows.grad, rtol=0, atol=1e-13)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-13)


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_through_autograd_it_is_the_same(transforms: Transforms) -> None:
    rows, targets, of_logps = rows_and_targets()
    ours, theirs = layer(bias=True), layer(bias=True)
    mine, other = (rows.clone().requires_grad_() for _ in range(2))
    actual = Head(ours, *transforms).logps(mine, targets)
    expected = textbook(theirs, other, targets, *transforms)
    assert torch.equal(actual, Head(ours, *transforms).softmax(rows, targets).logps)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
    for logps in (actual, expected):
        logps.backward(of_logps.double())
    torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=0, atol=1e-13)


@torch.no_grad()
def test_a_target_that_ties_with_the_largest_logit_is_a_hit() -> None:
    rows = rows_and_targets(torch.bfloat16)[0][:1]
    module = layer(bias=False, dtype=torch.bfloat16)
    best = module(rows).argmax(dim=-1)
    other = (best + 1) % VOCABULARY
    module.weight[other] = module.weight[best]
    for target in (best, other):
        assert Head(module).softmax(rows, target).logps_and_hits()[0, 1] == 1


@torch.no_grad()
def test_gradients_are_added_to_what_is_there() -> None:
    rows, targets, of_logps = rows_and_targets()
    module = layer(bias=True)
    gradients = []
    for _ in range(3):
        softmax_backward(Head(module).softmax(rows, targets), of_logps)
        assert module.weight.grad is not None
        gradients.append(module.weight.grad.clone())
    torch.testing.assert_close(gradients[1], 2 * gradients[0])
    torch.testing.assert_close(gradients[2], 3 * gradients[0])


@torch.no_grad()
def test_a_frozen_head_gets_none_and_passes_it_on() -> None:
    rows, targets, of_logps = rows_and_targets()
    module = layer(bias=True)
    expected = softmax_backward(Head(module).softmax(rows, targets), of_logps)
    frozen = layer(bias=True).requires_grad_(False)
    assert torch.equal(softmax_backward(Head(frozen).softmax(rows, targets), of_logps), expected)
    assert frozen.weight.grad is None
    assert frozen.bias.grad is None


@torch.no_grad()
def test_extreme_logits_stay_finite() -> None:
    module = layer(bias=False, dtype=torch.float32)
    rows, targets, of_logps = rows_and_targets(torch.float32)
    softmax = Head(module, scale=1e4).softmax(rows, targets)
    exact = layer(bias=False, dtype=torch.float32).double()
    expected = textbook(exact, rows.double(), targets, 1e4, None)
    assert softmax.logps.min() < -1e3
    torch.testing.assert_close(softmax.logps.double(), expected, rtol=1e-5, atol=1e-2)
    assert softmax_backward(softmax, of_logps).isfinite().all()
    assert module.weight.grad is not None
    assert module.weight.grad.isfinite().all()


@torch.no_grad()
def test_a_certain_prediction_keeps_a_gradient_in_bfloat16() -> None:
    # p - 1 is formed before it is rounded to 8 bits; rounding p first would make it 0.
    module = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    module.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    rows = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16)
    softmax = Head(module).softmax(rows, torch.tensor([0]))
    gradient = softmax_backward(softmax, torch.tensor([-1.0]))
    p = torch.tensor([8.0, 0.0]).softmax(0)[0].item()
    assert 1 - p < 2**-9
    assert gradient[0, 0].item() == pytest.approx(p - 1, rel=0.01)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler of C++")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("transforms", [TRANSFORMS[0], TRANSFORMS[3]])
def test_compiled_it_is_the_same_up_to_rounding(transforms: Transforms, dtype: torch.dtype) -> None:
    from torch._inductor import config

    module = layer(bias=True, dtype=dtype)
    expected = forth_and_back(Head(module, *transforms))
    with config.patch({"cpp.vec_isa_ok": False}):  # or it compiles programs to find out
        found = forth_and_back(Head(module, *transforms, compiled_kernels(torch.compile)))
    for result, other in zip(found, expected, strict=True):
        torch.testing.assert_close(result, other)


def forth_and_back(head: Head) -> tuple[Tensor, ...]:
    """Logps and all gradients of some rows; the head's own gradients are none afterwards."""
    weight: Any = head.module.weight
    generator = torch.Generator().manual_seed(5)
    rows = 3 * torch.randn((ROWS, weight.shape[1]), generator=generator).to(weight.dtype)
    targets = torch.arange(ROWS) % weight.shape[0]
    targets[::2] = head.module(rows).argmax(dim=-1)[::2]
    softmax = head.softmax(rows, targets)
    logps, hits = softmax.logps_and_hits().unbind(dim=1)
    assert hits[::2].all()
    of_rows = softmax_backward(softmax, torch.randn(ROWS, generator=generator))
    gradients = [p.grad.clone() for p in head.module.parameters() if p.grad is not None]
    head.module.zero_grad()
    return logps, of_rows, *gradients


@torch.no_grad()
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32])
def test_gradients_have_the_dtype_that_is_wanted(wanted: torch.dtype) -> None:
    rows, targets, of_logps = rows_and_targets(torch.bfloat16)
    module = layer(bias=True, dtype=torch.bfloat16)
    for parameter in module.parameters():
        parameter.grad_dtype = wanted
    for _ in range(2):
        softmax = Head(module).softmax(rows, targets)
        assert softmax.logps.dtype == torch.float32
        assert softmax_backward(softmax, of_logps).dtype == torch.bfloat16
    assert {p.grad.dtype for p in module.parameters() if p.grad is not None} == {wanted}


def cohere() -> PreTrainedModel:
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    return CohereForCausalLM(
        CohereConfig(vocab_size=VOCABULARY, intermediate_size=32, logit_scale=0.5, **sizes)
    )


@pytest.mark.parametrize(
    ("build", "scale", "soft_cap"),
    [(llama, 1.0, None), (gemma2, 1.0, 3.0), (granite, 0.25, None), (cohere, 0.5, None)],
)
def test_an_architecture_s_transforms_are_read_from_its_config(
    tmp_path: Path, build: Callable[[], PreTrainedModel], scale: float, soft_cap: float | None
) -> None:
    model = load_model(model_folder(tmp_path, build))
    head = output_head(model)
    assert head.is_plain
    assert (head.module, head.scale, head.soft_cap) == (model.lm_head, scale, soft_cap)
