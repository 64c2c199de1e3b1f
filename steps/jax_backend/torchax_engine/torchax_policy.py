"""Training with transformers' own model, which torchax runs on JAX; experimental.

Everything but the forward is that of the JAX backend: packs of few shapes, the compiled
vector-Jacobian product, losses on the host, AdamW, checkpoints. The forward calls transformers'
code, where torchax replaces each operation of torch by one of JAX:

    stacked weights, round of packs → parameters by name, masks    here
    parameters, ids, masks → hidden states                         transformers, by torchax
    hidden states of scored tokens → logps [B, S]                  `steps.scoring.head`, by torchax

So it shares no line of the decoder, and trains the families that the decoder does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import torch
import torchax
from jax import Array
from torch import Tensor, nn
from torchax.interop import call_torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steps.jax_backend.architecture import Architecture, other_dropouts
from steps.jax_backend.jax_scorer import JaxScorer, by_length, make_ready, require_packs
from steps.jax_backend.jax_trainer import JaxPolicy, JaxTrainer
from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.stacked import Tree
from steps.models.config import Dtype
from steps.models.folders import load_model
from steps.models.ranks import Ranks
from steps.scoring import parity
from steps.scoring.architectures.batching import backbone
from steps.scoring.attention import reach_of
from steps.scoring.examples import TokenGroup
from steps.scoring.head import output_head
from steps.scoring.packing import make_pack
from steps.scoring.reference import Reference
from steps.scoring.scored_by import ScoredBy
from steps.training.config import TrainConfig

_ATTENTION = "temper_torchax"


class _Angles(nn.Module):
    """The cosines and sines of a round, in place of those that a model computes.

    Torch computed them on the host, as another library's cosine differs in the last bit.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self._kinds = kinds
        self.tables: tuple[Any, Any] = (None, None)

    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        number = 0 if layer_type is None else self._kinds.index(layer_type)
        cos, sin = (table[number].to(x.dtype) for table in self.tables)
        return cos, sin


class _Logps(nn.Module):
    """A model whose output are the logps [B, S] of a round."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attend)
        model.set_attn_implementation(_ATTENTION)
        self.model, self.head = model, output_head(model)
        self.angles = _Angles(sorted(set(getattr(model.config, "layer_types", None) or ())))
        backbone(model).rotary_emb = self.angles

    def forward(self, arrays: PackArrays) -> Tensor:
        given: Any = arrays
        self.angles.tables = (given.cos, given.sin)
        hidden = backbone(self.model)(
            input_ids=given.ids, position_ids=given.positions, use_cache=False, arrays=arrays
        ).last_hidden_state
        self.angles.tables = (None, None)
        index = given.predictors.long()[..., None].expand(-1, -1, hidden.shape[-1])
        logits = self.head.module(hidden.gather(1, index)) * self.head.scale
        if self.head.soft_cap is not None:
            logits = torch.tanh(logits / self.head.soft_cap) * self.head.soft_cap
        return logits.log_softmax(dim=-1).gather(2, given.targets.long()[..., None])[..., 0]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    arrays: Any,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in every layer: query [B, heads, T, d], with fewer
    heads of key and value, to [B, T, heads, d]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    seen = _seen(arrays, reach_of(module, sliding_window).window)
    scores = scores.masked_fill(~seen[:, None], torch.finfo(scores.dtype).min / 2)
    return (scores.softmax(dim=-1) @ value).transpose(1, 2), None


def _seen(arrays: Any, window: int | None) -> Tensor:
    """What each token sees (`PackArrays`), within a window of so many positions: bool [B, T, T]."""
    key = torch.arange(arrays.ids.shape[1], device=arrays.ids.device)
    own, first, last = (x[..., None] for x in (arrays.own, arrays.first, arrays.last))
    seen = ((key >= own) & (key <= key[:, None])) | ((key >= first) & (key < last))
    if window is None:
        return seen
    return seen & (arrays.positions[:, None] > arrays.positions[..., None] - window)


class TorchaxScorer(JaxScorer):
    """A `JaxScorer` whose logps transformers' model computes, on one device."""

    def __init__(self, folder: Path, dtype: Dtype, tokens_per_forward: int) -> None:
        self._module = _Logps(load_model(folder, dtype, on_host=True).eval())
        super().__init__(folder, dtype, tokens_per_forward, devices=1)

    def logps_with(
        self, architecture: Architecture, **options: Any
    ) -> Callable[[Tree, PackArrays], Array]:
        def logps_of(weights: Tree, arrays: PackArrays) -> Array:
            named = {f"model.{name}": value for name, value in _parameters(weights)}
            with jax.default_matmul_precision("highest"):
                return call_torch(
                    lambda named, arrays: torch.func.functional_call(
                        self._module, named, (arrays,)
                    ),
                    named,
                    arrays,
                )

        return logps_of


def _parameters(weights: Tree) -> Iterator[tuple[str, Array]]:
    """The slices of stacked weights, by the names of the model's parameters."""
    for name, value in weights.items():
        if name != "layers":
            yield name, value
    for suffix, stack in weights["layers"].items():
        for number in range(len(stack)):
            yield f"model.layers.{number}.{suffix}", stack[number]
