"""What DPO of Llama-3.1-8B takes on one and on eight GPUs, counted without one.

    python benchmarks/gpu_account.py [--tokens 16384]

Operations are those of a forward and backward of two layers and the head on PyTorch's meta device,
which computes no number; the other layers are like these. Memory is the formula by which a plan
estimates it (`steps.step_needs`), taken apart. Nothing here was measured on a GPU.
"""

import argparse
from typing import Any

import torch
import torch.nn.attention.varlen  # or the first count knows nothing of it
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.llamas import LLAMAS
from steps.models.activation_checkpointing import checkpoint_activations
from steps.models.config import ActivationCheckpointing, Dtype, LoraConfig, Quantization
from steps.scoring import attention
from steps.scoring.examples import TokenGroup, TokenResponse
from steps.scoring.logps import forward_backward
from steps.scoring.packing import make_pack
from steps.step_needs import Model, activations, model_of, trained_parameters

SHAPE = LLAMAS["8b"]
SIZES: Model = model_of(SHAPE)  # type: ignore[assignment]
PROMPT, RESPONSE = 512, 256
GIB = 2.0**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384, help="of one forward")
    tokens = parser.parse_args().tokens
    attention._WITH_FLASH.add("meta")
    print(f"Llama-3.1-8B, packs of about {tokens} tokens, pairs of {PROMPT} + 2 x {RESPONSE}\n")
    print("| activations | PFLOP a pack | x 6 N T of the model's matrices |")
    print("|---|--:|--:|")
    for how in ActivationCheckpointing:
        operations, plain = counted(tokens, how)
        print(f"| {how} | {operations / 1e15:.2f} | {operations / plain:.2f} |")
    print("\n| GiB on each of | weights, gradients, AdamW | layer and head at work | activations |")
    print("|---|--:|--:|---|")
    for devices in (1, 8):
        state, gathered = (f"{size / GIB:.1f}" for size in held(devices))
        kept = ", ".join(
            f"{how} {working(tokens, how) / GIB:.1f}" for how in ActivationCheckpointing
        )
        print(f"| {devices} | {state} | {gathered} | {kept} |")
    adapters = trained_parameters(SIZES, LoraConfig()) * (2 + 4 + 4 + 8)
    for how in (None, *Quantization):
        size = (SIZES.weights(Dtype.bfloat16, how) + adapters) / GIB
        print(
            f"\nAdapters of rank 16 over {how or 'bfloat16'}: {size:.1f} GiB in place of the first"
        )


def counted(tokens: int, how: ActivationCheckpointing) -> tuple[float, float]:
    """Operations of a pack in all layers, and 6 for each token and parameter of a matrix that it
    goes through."""
    pairs = [
        TokenGroup(f"{i}", f"{i}", (1,) * PROMPT, (TokenResponse((2,) * RESPONSE),) * 2)
        for i in range(tokens // (PROMPT + 2 * RESPONSE))
    ]
    pack = make_pack(pairs).to("meta")
    one, two = (_operations(layers, pack, how) for layers in (1, 2))
    head = len(pack.targets) * SHAPE["vocab_size"] * SHAPE["hidden_size"]
    plain = 6 * ((SIZES.parameters - SIZES.table) * len(pack.input_ids) + head)
    return one + (two - one) * (SHAPE["num_hidden_layers"] - 1), plain


def _operations(layers: int, pack: Any, how: ActivationCheckpointing) -> int:
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, "num_hidden_layers": layers}))
    torch.nn.Module.to(model, dtype=torch.bfloat16)  # in place
    attention.use_packed_attention(model)
    checkpoint_activations(model, how)
    with FlopCounterMode(display=False) as counter:
        forward_backward(model, pack, lambda logps, _: (-logps.sums().sum(dim=1), {}))
    return counter.get_total_flops()


def held(devices: int) -> tuple[float, float]:
    """Bytes on each device of what is trained, with float32 masters, and of what is gathered of it
    for a while."""
    parameters = SIZES.parameters
    if devices == 1:  # bfloat16 weights; masters, gradients and two moments in float32
        return parameters * (2 + 4 + 4 + 8), 0.0
    layer = (parameters - SIZES.table) / SIZES.layers
    return parameters * (4 + 4 + 8) / devices, 4 * (layer + SIZES.table / 2)


def working(tokens: int, how: ActivationCheckpointing) -> float:
    """Bytes of what a pack keeps for its backward, and of two slices of logits."""
    return tokens * activations(SIZES, how) * 2 + 2e9


if __name__ == "__main__":
    main()
