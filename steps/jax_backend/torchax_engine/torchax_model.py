"""Transformers' model as a function from stacked weights and a round of packs to logps, in JAX.

torchax replaces each operation of torch by one of JAX. Transformers' code computes the hidden
states, with attention and angles of this module:

    stacked weights → parameters by name                  `torch.func.functional_call` puts them in
    ids, positions, three integers a token → hidden states [B, T, H]
    hidden states of scored tokens → logps [B, S]
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import torch
from jax import Array
from torch import Tensor, nn
from torchax.interop import call_torch  # pyright: ignore[reportMissingImports]
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from steps.jax_backend.pack_arrays import PackArrays
from steps.jax_backend.param_tree import Tree
from steps.scoring.architectures.batching import backbone
from steps.scoring.attention import reach_of, refuse_unknown
from steps.scoring.head import gaps_of, output_head, with_hits

_ATTENTION = "temper_torchax"


class LogpsModel(nn.Module):
    """A model whose output are the logps [B, S] of a round, with hits beside them [B, S, 2], or a
    reward model's scores; `model` is changed for it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attend)
        model.set_attn_implementation(_ATTENTION)
        self.model = model
        self._head = None if hasattr(model, "score") else output_head(model)
        self._angles = _Angles(sorted(set(getattr(model.config, "layer_types", None) or ())))
        backbone(model).rotary_emb = self._angles

    def of_weights(self, weights: Tree, arrays: PackArrays, hits: bool = False) -> Array:
        """The logps of a round as a function of the decoder's weights."""
        named = {f"model.{name}": value for name, value in _parameters(weights)}
        with jax.default_matmul_precision("highest"):  # as in `decoder`
            return call_torch(partial(self._called, hits), named, arrays)

    def _called(self, hits: bool, named: dict[str, Tensor], arrays: PackArrays) -> Tensor:
        return torch.func.functional_call(self, named, (arrays, hits))

    def forward(self, arrays: Any, hits: bool) -> Tensor:
        self._angles.tables = (arrays.cos, arrays.sin)
        hidden = backbone(self.model)(
            input_ids=arrays.ids, position_ids=arrays.positions, use_cache=False, arrays=arrays
        ).last_hidden_state
        index = arrays.predictors.long()[..., None].expand(-1, -1, hidden.shape[-1])
        rows = hidden.gather(1, index)
        if self._head is None:
            scores: Tensor = self.model.score(rows)  # pyright: ignore[reportCallIssue]
            return scores[..., 0] if scores.shape[-1] == 1 else scores
        own = self._head.module(rows)
        logits = own * self._head.scale
        if self._head.soft_cap is not None:
            logits = torch.tanh(logits / self._head.soft_cap) * self._head.soft_cap
        targets = arrays.targets.long()
        logps = logits.log_softmax(dim=-1).gather(2, targets[..., None])[..., 0]
        # Not of transformed ones: a kernel may round these differently where it repeats them.
        return with_hits(logps, gaps_of(own, targets)) if hits else logps


class _Angles(nn.Module):
    """Gives a model the cosines and sines of a round, which torch has computed on the host: those
    of another library differ in the last bit."""

    tables: tuple[Tensor, Tensor]

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__()
        self._kinds = kinds

    def forward(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor]:
        number = 0 if layer_type is None else self._kinds.index(layer_type)
        cos, sin = (table[number].to(x.dtype) for table in self.tables)
        return cos, sin


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    *,
    arrays: Any,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls in every layer: query [B, heads, T, d], and key and
    value with their own number of heads, to [B, T, heads, d]. Nothing is dropped.

    Raises ValueError for any argument that it does not implement.
    """
    refuse_unknown(attention_mask, others)
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
    own, first, last = (row[..., None] for row in (arrays.own, arrays.first, arrays.last))
    seen = ((key >= own) & (key <= key[:, None])) | ((key >= first) & (key < last))
    if window is None:
        return seen
    return seen & (arrays.positions[:, None] > arrays.positions[..., None] - window)


def _parameters(weights: Tree) -> Iterator[tuple[str, Array]]:
    """Stacked weights by the names of the model's parameters; also while they are traced."""
    for name, value in weights.items():
        if name != "layers":
            yield name, value
    for suffix, stack in weights["layers"].items():
        for number in range(len(stack)):
            yield f"model.layers.{number}.{suffix}", stack[number]
