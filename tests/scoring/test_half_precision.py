"""The rounding of a model of 16 bits hides nothing that is wrong: neither in packs, nor in batches,
nor in slots, nor tokens that see later ones."""

from pathlib import Path

import pytest
import torch

from benchmarks.architectures import HELD_OUT, TRAINING, tiny
from steps.generation.choosing import choose_engine
from steps.generation.engine import Request
from steps.models.config import Dtype, Quantization
from steps.models.folders import load_model, save_model
from steps.scoring.architectures.in_float32 import in_float32
from steps.scoring.architectures.pack_layouts import Layout
from steps.scoring.config import Attention
from steps.scoring.parity import check_packing

EVERY = [*TRAINING, *HELD_OUT]
REQUESTS = [
    Request(f"{count}", 0, tuple(range(3, 3 + count)), max_new_tokens=30) for count in (5, 40)
]


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("architecture", "layout"),
    [
        ("llama", Layout.packed),
        ("gpt_oss", Layout.packed),
        ("bart", Layout.batched),  # its packs are off by less than bfloat16 rounds
        ("falcon_h1", Layout.batched),
        ("mamba", Layout.batched),  # whose states have 32 bits
    ],
)
def test_a_model_is_read_as_in_float32_and_keeps_its_weights(
    architecture: str, layout: Layout
) -> None:
    model = tiny(architecture).bfloat16()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert check_packing(model, EVERY).layout is layout
    for name, tensor in model.state_dict().items():
        assert tensor.dtype is before[name].dtype
        assert torch.equal(tensor, before[name])


@torch.no_grad()
def test_tied_and_shared_weights_are_in_float32_together() -> None:
    model = tiny("llama", tie_word_embeddings=True).bfloat16()
    first, second = model.model.layers  # pyright: ignore[reportGeneralTypeIssues]
    second.mlp = first.mlp
    exact = tiny("llama", tie_word_embeddings=True)
    exact.model.layers[1].mlp = exact.model.layers[0].mlp  # pyright: ignore
    exact.load_state_dict(model.state_dict())
    for ours, theirs in zip(exact.buffers(), model.buffers(), strict=True):
        ours.copy_(theirs)
    ids = torch.tensor([[5, 8, 13, 21]])
    expected = exact(input_ids=ids).logits
    with in_float32(model):
        logits = model(input_ids=ids).logits
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-5)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@torch.no_grad()
def test_weights_have_their_dtype_again_after_an_error_in_a_layer() -> None:
    model = tiny("llama").bfloat16()
    with pytest.raises(RuntimeError), in_float32(model):
        model.base_model(inputs_embeds=torch.zeros(1, 3, 5))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wanted", list(Attention))
def test_a_model_that_sees_a_little_of_later_tokens_is_refused(wanted: Attention) -> None:
    with pytest.raises(ValueError, match="XLMWithLMHeadModel is not causal"):
        check_packing(tiny("xlm").bfloat16(), EVERY, wanted)


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "name"), [("llama", "slots"), ("recurrent_gemma", "alone")]
)
def test_slots_are_right_in_float32_too(architecture: str, name: str) -> None:
    choice = choose_engine(tiny(architecture).bfloat16(), REQUESTS)
    assert choice.name == name
    assert (choice.why_not is None) == (name == "slots")


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_layers_of_4_bits_compute_in_float32_for_the_comparison(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    save_model(tiny("falcon_h1"), tmp_path)
    model = load_model(tmp_path, Dtype.bfloat16, quantization=Quantization.nf4)
    packing = check_packing(model.eval(), EVERY)
    assert packing.layout is Layout.batched
    assert "where rounding explains 0.002" in (packing.notice or "")
    rounded = [layer for layer in model.modules() if hasattr(layer, "compute_dtype")]
    assert {layer.compute_dtype for layer in rounded} == {torch.bfloat16}
