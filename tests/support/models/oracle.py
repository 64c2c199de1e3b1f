"""An independent, slow reference for the training engine: textbook formulas and a plain forward.

Nothing of `steps` is imported here, so nothing can be wrong in both. A
sequence is run alone, unpadded and unpacked, through the model's own `forward` with the model's own
masks and head; its log-probabilities are read off the full logits; a loss is
written pair by pair as its paper has it; gradients are autograd's, through all of that at once.

A *group* is a prompt and its responses: `(prompt_ids, [response_ids, ...])`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.float64 import in_float64 as in_float64

Ids = Sequence[int]
Scored = Sequence[bool] | None


def load(folder: Path, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """The model of a folder, without dropout, with transformers' own attention: SDPA, or the eager
    one for soft-capped scores and sinks, which SDPA cannot do. Experts are eager too."""
    config = AutoConfig.from_pretrained(folder)
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    attention = "eager" if capped or config.model_type == "gpt_oss" else "sdpa"
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attention, experts_implementation="eager"
    ).eval()


def token_logps(model: PreTrainedModel, prompt: Ids, response: Ids) -> Tensor:
    """log p(token | everything before it) of every response token that has a token before it."""
    ids = [*prompt, *response]
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    first = max(len(prompt), 1)
    before, tokens = logits[first - 1 : -1], torch.tensor(ids[first:], dtype=torch.int64)
    return before.gather(1, tokens[:, None])[:, 0] - before.logsumexp(dim=-1)


def logp(model: PreTrainedModel, prompt: Ids, response: Ids, scored: Scored = None) -> Tensor:
    """The sum of `token_logps` over the scored tokens."""
    values = token_logps(model, prompt, response)
    if scored is None:
        return values.sum()
    keep = torch.tensor(list(scored)[len(response) - len(values) :], dtype=torch.bool)
    return values[keep].sum()


def group_logps(model: PreTrainedModel, prompt: Ids, responses: Sequence[Ids]) -> Tensor:
    """`logp` of every response to one prompt, each by a forward of its own."""
    return torch.stack([logp(model, prompt, response) for response in responses])


def gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter, by name; zeros where the loss does not depend on it."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


# --- losses of one pair --------------------------------------------------------------------------
# c, r: the policy's logps of the chosen and rejected response; rc, rr: the reference's; nc, nr: how
# many tokens those sum over.


def dpo(c: Tensor, r: Tensor, rc: Tensor, rr: Tensor, beta: float) -> Tensor:
    """Rafailov et al. 2023, equation 7."""
    return -logsigmoid(beta * ((c - rc) - (r - rr)))


def ipo(c: Tensor, r: Tensor, rc: Tensor, rr: Tensor, nc: int, nr: int, beta: float) -> Tensor:
    """Azar et al. 2023, equation 17, on log-ratios per token."""
    h = (c - rc) / nc - (r - rr) / nr
    return (h - 1 / (2 * beta)) ** 2


def simpo(c: Tensor, r: Tensor, nc: int, nr: int, beta: float, gamma: float) -> Tensor:
    """Meng et al. 2024, equation 6; `gamma` is the target margin itself."""
    return -logsigmoid(beta / nc * c - beta / nr * r - gamma)


def kto(logp: Tensor, reference: Tensor, baseline: Tensor, desirable: bool, beta: float) -> Tensor:
    """Ethayarajh et al. 2024, equation 8, with lambda = 1 and the value inverted to a loss."""
    reward = logp - reference
    sign = 1 if desirable else -1
    return 1 - _sigmoid(beta * sign * (reward - baseline))


def _sigmoid(x: Tensor) -> Tensor:
    return torch.exp(-softplus(-x))


def assert_same_gradients(model: PreTrainedModel, expected: dict[str, Tensor]) -> None:
    """Relative to each parameter's own gradient, and to the largest where that vanishes."""
    largest = max(gradient.norm() for gradient in expected.values())
    assert largest > 1e-3
    for name, parameter in model.named_parameters():
        wanted = expected[name]
        actual = torch.zeros_like(wanted) if parameter.grad is None else parameter.grad
        tolerance = 1e-8 * max(wanted.norm(), 1e-4 * largest)
        assert (actual - wanted).norm() <= tolerance, name
