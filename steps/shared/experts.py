"""Mixtures of experts on a CPU whose result for a token does not depend on the other tokens.

An expert reads the tokens that a router sends to it, so its number of rows depends on all tokens of
a forward. Therefore it also reads filler rows here, up to a number that `padded_rows` gives. Then a
response has the same bits in any pack, and a completion the same bits in any slots.

The experts compute as transformers defines it. The function that is registered there under the name
`temper_padded` adds the filler and drops its results.

Beside them some models have an expert that reads every token, and a gate with one number for each
(Qwen's). PyTorch computes sigmoids of contiguous numbers by vectors of 32, and the remainder in
another way. So such a number had other bits at the end of a forward than before.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from steps.shared.padded_rows import padded_rows

_PADDED = "temper_padded"
_GATE = "shared_expert_gate"
_ALIGNED = 16


def use_padded_experts(model: PreTrainedModel) -> None:
    """Let the experts of `model`, if it has any, read padded rows, and sigmoids of a gate with one
    number for each token be computed one by one."""
    ALL_EXPERTS_FUNCTIONS.register(_PADDED, _padded_experts)
    model.set_experts_implementation(_PADDED)
    for module in model.modules():
        if isinstance(getattr(module, _GATE, None), nn.Module):
            module.register_forward_pre_hook(_set_gate_apart)


def _set_gate_apart(block: nn.Module, _: Any) -> None:
    gate = getattr(block, _GATE)  # an adapter may have taken the place of the first one
    if _as_column not in gate._forward_hooks.values():
        gate.register_forward_hook(_as_column)


def _as_column(gate: nn.Module, inputs: Any, numbers: Tensor) -> Tensor:
    """The same numbers [T, 1], not contiguous."""
    return functional.pad(numbers, (0, 1))[..., :1]


def _padded_experts(
    experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The weighted sum, for each token, of its experts' outputs: [T, H].

    Args:
        experts: a module with the weights of all experts of a layer.
        hidden_states: [T, H].
        top_k_index: [T, K]; the experts of each token.
        top_k_weights: [T, K].
    """
    tokens, top_k = top_k_index.shape
    counts = top_k_index.flatten().bincount(minlength=experts.num_experts)
    padded = [padded_rows(count) if count else 0 for count in counts.tolist()]
    filler = torch.arange(len(counts)).repeat_interleave(torch.tensor(padded) - counts)
    # Each choice becomes a row of its own with one expert.
    rows = functional.pad(hidden_states.repeat_interleave(top_k, dim=0), (0, 0, 0, len(filler)))
    chosen = torch.cat([top_k_index.flatten(), filler])[:, None]
    weights = functional.pad(top_k_weights.flatten(), (0, len(filler)))[:, None]
    outputs = _forward_of(experts, rows.dtype)(experts, rows, chosen, weights)
    return outputs[: tokens * top_k].view(tokens, top_k, -1).sum(dim=1)


def _forward_of(experts: Any, dtype: torch.dtype) -> Any:
    """Grouped matrix products. These support neither float64 nor rows that are no multiple of 16
    bytes; there it is the module's own loop over experts."""
    sizes = (size for p in experts.parameters() if p.ndim == 3 for size in p.shape[1:])
    if dtype == torch.float64 or any(size * dtype.itemsize % _ALIGNED for size in sizes):
        return inspect.unwrap(experts.forward)
    return ALL_EXPERTS_FUNCTIONS["grouped_mm"]
