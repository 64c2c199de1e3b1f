"""The load-balancing loss of a mixture of experts (Fedus et al. 2021, Switch Transformers,
https://arxiv.org/abs/2101.03961, equations 4 to 6), as transformers computes it.

Let f_e be the share of tokens that choose expert e among their `top_k`, and P_e the mean
probability that the routers give it, both over all layers and all tokens of a batch. Then

    auxiliary loss = experts · Σ_e f_e P_e

and training adds `coefficient` times this loss. f is a count, so gradients flow through P only. The
loss is not a sum over packs: the gradient of each pack needs f of the whole batch. If a batch has
more than one pack, a pass without gradients computes f first. So the loss does not depend on how
the batch is cut into packs.

A token counts once for each response in whose sequence it is; the prompt of a pair counts twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from steps.models.folders import evaluating
from steps.scoring.packing import Pack, without_waiting
from steps.shared.execution_detail import execution_detail

_ALLOWED = {torch.float64: 1e-6, torch.float32: 1e-4}


@dataclass(frozen=True)
class Balancing:
    """coefficient: the weight of the auxiliary loss; top_k: how many experts a token chooses."""

    coefficient: float
    top_k: int


@dataclass(frozen=True)
class Load:
    """How a set of tokens uses E experts, summed over the layers; float64.

    chosen: [E]; how many tokens choose each expert.
    probability: [E]; the sum of the routers' probabilities for each expert.
    tokens: the number of tokens times layers.
    """

    chosen: Tensor
    probability: Tensor
    tokens: Tensor

    def __add__(self, other: "Load") -> "Load":
        return Load(
            self.chosen + other.chosen,
            self.probability + other.probability,
            self.tokens + other.tokens,
        )

    def detach(self) -> "Load":
        """The load without gradients."""
        return Load(self.chosen, self.probability.detach(), self.tokens)

    def loss_within(self, whole: "Load") -> Tensor:
        """The share of these tokens in the auxiliary loss of the `whole` batch."""
        product = (whole.chosen * self.probability).sum()
        return len(self.chosen) * product / whole.tokens**2


class Routing:
    """Records the load of experts in one pack's forwards.

    Args:
        whole: the load of the whole batch, or None if the pack is the whole batch.
    """

    def __init__(self, balancing: Balancing, whole: Load | None = None) -> None:
        self._balancing = balancing
        self._whole = whole
        self.load: Load | None = None

    def see(self, outputs: Any, weights: Tensor) -> None:
        """Add a forward: the `outputs` of a base model, with its routers' logits, and the weight of
        each token, [T]."""
        load = load_of(outputs.router_logits, weights, self._balancing.top_k)
        self.load = load if self.load is None else self.load + load

    def see_pack(self, outputs: Any, pack: Pack) -> None:
        """Add a forward of the pack as one row."""
        self.see(outputs, token_weights(pack))

    def loss(self) -> Tensor:
        """The pack's share of the batch's auxiliary loss, times the coefficient."""
        assert self.load is not None
        return self._balancing.coefficient * self.load.loss_within(self._batch())

    def batch_loss(self) -> float:
        """The auxiliary loss of the batch."""
        return self._batch().loss_within(self._batch()).item()

    def _batch(self) -> Load:
        if self._whole is not None:
            return self._whole
        assert self.load is not None
        return self.load.detach()


def load_of(logits: Sequence[Tensor], weights: Tensor, top_k: int) -> Load:
    """The load from the routers' logits: for each layer [T, E], or [..., E] with T tokens."""
    weights = weights.double()[:, None]
    chosen, probability = [], []
    for layer in logits:
        probabilities = layer.flatten(0, -2).softmax(dim=-1)
        best = probabilities.topk(top_k, dim=-1).indices
        ones = torch.zeros_like(probabilities, dtype=torch.float64).scatter_(1, best, 1.0)
        chosen.append((ones * weights).sum(dim=0))
        probability.append((probabilities.double() * weights).sum(dim=0))
    return Load(
        torch.stack(chosen).sum(dim=0),
        torch.stack(probability).sum(dim=0),
        weights.sum() * len(logits),
    )


def token_weights(pack: Pack) -> Tensor:
    """How many sequences contain each token of a pack, float64 [T]; 0 for the filler."""
    weights = torch.zeros(len(pack.input_ids), dtype=torch.float64)
    for span in pack.responses:
        weights[span.prompt_start : span.prompt_stop] += 1
        weights[span.start : span.stop] += 1
    return without_waiting(weights, pack.input_ids.device)


@torch.no_grad()
def find_balancing(
    model: PreTrainedModel, coefficient: float | None
) -> tuple[Balancing | None, str | None]:
    """How the expert load of `model` is balanced, and a notice for the user, if any.

    A `coefficient` of None means the coefficient of the model's config. There is no balancing if
    the coefficient is 0 or if the model has no such loss. The loss of this module is compared with
    the model's own on a few tokens. If the model defines the loss otherwise, none is added, and a
    notice reports it.
    """
    config = model.config.get_text_config()
    if coefficient is None:
        coefficient = getattr(config, "router_aux_loss_coef", None)
    if not coefficient or not hasattr(config, "output_router_logits"):
        return None, None
    top_k = getattr(config, "num_experts_per_tok", None)
    try:
        ids = torch.arange(8, device=model.device)[None]
        speaker = model if model.get_output_embeddings() is not None else _as_language_model(model)
        with evaluating(model):
            outputs: Any = speaker(input_ids=ids, use_cache=False, output_router_logits=True)
        if not getattr(outputs, "router_logits", None):
            return None, None  # a dense model of a family that has others
        assert isinstance(top_k, int)
        load = load_of(outputs.router_logits, torch.ones(8, device=model.device), top_k)
        off = abs(float(load.loss_within(load)) - float(outputs.aux_loss))
    except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None, _unknown(model, coefficient)
    if not off <= _ALLOWED.get(model.dtype, 0.05):
        return None, _unknown(model, coefficient)
    return Balancing(float(coefficient), top_k), None


def _as_language_model(model: PreTrainedModel) -> PreTrainedModel:
    """A classifier's body in the language model of its family, without a head: a classifier adds no
    load-balancing loss to its outputs."""
    config = model.config
    with torch.device("meta"):
        found = AutoModelForCausalLM.from_config(config.from_dict(config.to_dict()))
    found.add_module(found.base_model_prefix, model.base_model)
    found.set_output_embeddings(nn.Identity())
    return found


@execution_detail
def _unknown(model: PreTrainedModel, coefficient: float) -> str:
    return (
        f"the load of the experts is not balanced: {type(model).__name__} has a coefficient "
        f"({coefficient:g}) for such a loss, but not the loss itself in the form that is known here"
    )
