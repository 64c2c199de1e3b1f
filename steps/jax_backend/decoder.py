"""A decoder over packs in JAX: from token ids to the log-probabilities of scored tokens.

Weights have the names and the shapes of a Hugging Face folder, those of the layers stacked:

    {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H], "lm_head.weight": [V, H],
     "layers": {"self_attn.q_proj.weight": [L, heads · d, H], "input_layernorm.weight": [L, H], …}}

One layer is compiled and scanned over all layers. If a family lacks a weight (a bias, a norm), the
operation with this weight is left out. Norms, softmax and logits are in float32 at least, as in
transformers.

Three integers per token define to which tokens it attends (see `PackArrays`), so a pack needs no
T × T mask in memory. If no token attends further back than `reach`, a block of `reach` queries
attends to its own keys and those of the block before; otherwise a few queries at a time attend to
all keys.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_policies

from steps.jax_backend.architecture import NO_WINDOW, Architecture

Weights = Mapping[str, Any]

_QUERY_BLOCK = 512
_LOGITS_BYTES = 128 * 2**20

RECOMPUTED = {
    "none": None,
    "selective": checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": checkpoint_policies.nothing_saveable,
}
"""What a layer keeps for its backward, by the names of `ActivationCheckpointing`."""


_ARRAYS = ("ids", "positions", "own", "first", "last", "cos", "sin", "predictors", "targets")


@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=("reach",))
@dataclass(frozen=True)
class PackArrays:
    """B packs of T tokens and S scored ones; int32, but for the angles.

    ids, positions: [B, T].
    own: [B, T]; the first token of a token's segment. The token attends to all tokens from there to
        itself,
    first, last: [B, T]; and to the tokens [first, last) of its group's prompt.
    cos, sin: [rotations, B, T, rotated channels].
    predictors, targets: [B, S]; the row that predicts each scored token, and the token.
    reach: T or a divisor of T; a token attends only to the last `reach` tokens, including itself.
    """

    ids: Array
    positions: Array
    own: Array
    first: Array
    last: Array
    cos: Array
    sin: Array
    predictors: Array
    targets: Array
    reach: int


class LayerFacts(NamedTuple):
    """The settings that differ between layers, besides weights; int32 []."""

    window: Array
    rotation: Array


def token_logps(
    architecture: Architecture,
    weights: Weights,
    pack: PackArrays,
    dtype: Any,
    recomputed: str = "none",
    shard: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """log p(token | tokens before it) of scored tokens: [B, S], float32 or float64.

    Args:
        dtype: the dtype of the computation; weights may have a higher precision.
        recomputed: a name in `RECOMPUTED`.
        shard: annotates how activations [B, …] are sharded over devices.
    """
    # TPUs multiply float32 in bfloat16 unless told otherwise.
    with jax.default_matmul_precision("highest" if dtype != jnp.bfloat16 else "default"):
        hidden = shard(_embed(architecture, weights, pack, dtype))
        hidden = _layers(architecture, weights["layers"], hidden, pack, recomputed, shard)
        hidden = _norm(architecture, hidden, weights["model.norm.weight"])
        rows = jnp.take_along_axis(hidden, pack.predictors[..., None], axis=1)
        name = "model.embed_tokens.weight" if architecture.tied else "lm_head.weight"
        return _head(architecture, weights[name].astype(dtype), rows, pack.targets)


def _embed(a: Architecture, weights: Weights, pack: PackArrays, dtype: Any) -> Array:
    embedded = weights["model.embed_tokens.weight"][pack.ids].astype(dtype)
    if a.padding is not None:
        is_padding = (pack.ids == a.padding)[..., None]
        embedded = jnp.where(is_padding, lax.stop_gradient(embedded), embedded)
    return embedded * jnp.asarray(a.embedding_scale, dtype)


def _layers(
    a: Architecture,
    layers: Weights,
    hidden: Array,
    pack: PackArrays,
    recomputed: str,
    shard: Callable[[Array], Array],
) -> Array:
    def layer(x: Array, of_layer: tuple[Weights, LayerFacts]) -> tuple[Array, None]:
        # Cast here, so that the backward keeps the weights themselves and not a copy.
        weights = jax.tree.map(lambda w: w.astype(x.dtype), of_layer[0])
        return shard(_layer(a, weights, x, pack, of_layer[1])), None

    policy = RECOMPUTED[recomputed]
    body = layer if policy is None else jax.checkpoint(layer, policy=policy, prevent_cse=False)
    facts = LayerFacts(jnp.asarray(a.windows, jnp.int32), jnp.asarray(a.rotation_of, jnp.int32))
    return lax.scan(body, hidden, (layers, facts))[0]


def _layer(a: Architecture, w: Weights, x: Array, pack: PackArrays, facts: LayerFacts) -> Array:
    """A block of attention and one of a gated perceptron, each added to what came in.

    With norms on both sides of a block (Gemma 2 and 3) `post_attention_layernorm` comes after the
    attention; else it is the one before the perceptron.
    """
    is_sandwich = "pre_feedforward_layernorm.weight" in w
    attended = _attention(a, w, _norm(a, x, w["input_layernorm.weight"]), pack, facts)
    if is_sandwich:
        x = x + _norm(a, attended, w["post_attention_layernorm.weight"])
        fed = _perceptron(a, w, _norm(a, x, w["pre_feedforward_layernorm.weight"]))
        return x + _norm(a, fed, w["post_feedforward_layernorm.weight"])
    x = x + attended
    return x + _perceptron(a, w, _norm(a, x, w["post_attention_layernorm.weight"]))


def _attention(a: Architecture, w: Weights, x: Array, pack: PackArrays, facts: LayerFacts) -> Array:
    if "self_attn.qkv_proj.weight" in w:
        sizes = (a.heads * a.head_size, (a.heads + a.key_heads) * a.head_size)
        q, k, v = jnp.split(_linear(w, "self_attn.qkv_proj", x), sizes, axis=-1)
    else:
        q, k, v = (_linear(w, f"self_attn.{name}_proj", x) for name in "qkv")
    q, k, v = (part.reshape(*part.shape[:-1], -1, a.head_size) for part in (q, k, v))
    if "self_attn.q_norm.weight" in w:
        q = _norm(a, q, w["self_attn.q_norm.weight"])
        k = _norm(a, k, w["self_attn.k_norm.weight"])
    cos, sin = (table[facts.rotation][:, :, None].astype(x.dtype) for table in (pack.cos, pack.sin))
    out = attend(a, _rotated(q, cos, sin), _rotated(k, cos, sin), v, pack, facts.window)
    return _linear(w, "self_attn.o_proj", out.reshape(*x.shape[:-1], -1))


def attend(a: Architecture, q: Array, k: Array, v: Array, pack: PackArrays, window: Array) -> Array:
    """Attention of every token: q [B, T, heads, d], k and v [B, T, key heads, d] to
    [B, T, heads, d]."""
    tokens, slides = q.shape[1], min(a.windows) < NO_WINDOW
    q = q.reshape(*q.shape[:2], a.key_heads, -1, a.head_size)
    index = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), pack.own.shape)
    sees = (index, pack.own, pack.first, pack.last, pack.positions)
    keys = (k, v, index, pack.positions)

    def of_block(queries: tuple[Array, ...], keys: tuple[Array, ...] = keys) -> Array:
        k, v, key, key_position = keys
        return _attend(a, queries[0], k, v, _mask(queries[1:], key, key_position, window, slides))

    if pack.reach < tokens:
        blocks = tuple(_in_blocks(x, pack.reach) for x in (q, *sees))
        near = tuple(_with_block_before(_in_blocks(x, pack.reach)) for x in keys)
        out = _joined(jax.vmap(of_block)(blocks, near))
    elif tokens <= _QUERY_BLOCK:
        out = of_block((q, *sees))
    else:
        blocks = tuple(_in_blocks(x, math.gcd(tokens, _QUERY_BLOCK)) for x in (q, *sees))
        out = _joined(lax.map(jax.checkpoint(of_block, prevent_cse=False), blocks))
    return out.reshape(*q.shape[:2], a.heads, a.head_size)


def _attend(a: Architecture, q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Attention of q [B, t, key heads, group, d] to the keys that `mask` [B, t, T] allows."""
    accurate = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=accurate)
    scores = scores * jnp.asarray(a.attention_scale, accurate)
    if a.attention_cap is not None:
        scores = jnp.tanh(scores / a.attention_cap) * a.attention_cap
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(accurate).min)
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, axis=-1).astype(q.dtype), v)


def _mask(
    queries: tuple[Array, ...], key: Array, key_position: Array, window: Array, slides: bool
) -> Array:
    """To which of the keys [B, K] each of the queries [B, t] may attend: [B, t, K]."""
    index, own, first, last, position = (x[..., None] for x in queries)
    key, key_position = key[:, None], key_position[:, None]
    seen = ((key >= own) & (key <= index)) | ((key >= first) & (key < last))
    return seen & (position - key_position < window) if slides else seen


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x [B, T, heads, d], its first channels turned by the angles; cos, sin [B, T, 1, channels]."""
    turned, rest = jnp.split(x, [cos.shape[-1]], axis=-1)
    left, right = jnp.split(turned, 2, axis=-1)
    turned = turned * cos + jnp.concatenate([-right, left], axis=-1) * sin
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def _perceptron(a: Architecture, w: Weights, x: Array) -> Array:
    if "mlp.gate_up_proj.weight" in w:
        gate, up = jnp.split(_linear(w, "mlp.gate_up_proj", x), 2, axis=-1)
    else:
        gate, up = _linear(w, "mlp.gate_proj", x), _linear(w, "mlp.up_proj", x)
    if a.activation == "silu":
        gate = jax.nn.silu(gate)
    else:
        gate = jax.nn.gelu(gate, approximate=a.activation == "gelu_pytorch_tanh")
    return _linear(w, "mlp.down_proj", gate * up)


def _head(a: Architecture, weight: Array, rows: Array, targets: Array) -> Array:
    """Logps [B, S] from rows [B, S, H], the logits of some rows at a time."""

    def logps(part: tuple[Array, Array]) -> Array:
        accurate = jnp.promote_types(weight.dtype, jnp.float32)
        logits = jnp.einsum("bsh,vh->bsv", part[0], weight, preferred_element_type=accurate)
        if a.logits_cap is not None:
            logits = jnp.tanh(logits / a.logits_cap) * a.logits_cap
        shifted = logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))
        at_target = jnp.take_along_axis(shifted, part[1][..., None], axis=-1)[..., 0]
        return at_target - jnp.log(jnp.exp(shifted).sum(axis=-1))

    block = rows.shape[1]
    while block % 2 == 0 and block * a.vocabulary * 4 > _LOGITS_BYTES and block > 32:
        block //= 2
    if block == rows.shape[1]:
        return logps((rows, targets))
    parts = (_in_blocks(rows, block), _in_blocks(targets, block))
    return _joined(lax.map(jax.checkpoint(logps, prevent_cse=False), parts))


def _norm(a: Architecture, x: Array, weight: Array) -> Array:
    """The root-mean-square norm over the last axis (Zhang and Sennrich 2019)."""
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    y = x.astype(accurate)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + a.norm_epsilon)
    if a.norm_offset:  # Gemma multiplies before it rounds, the others after
        return (y * (a.norm_offset + weight.astype(accurate))).astype(x.dtype)
    return weight.astype(x.dtype) * y.astype(x.dtype)


def _linear(w: Weights, name: str, x: Array) -> Array:
    y = jnp.einsum("...i,oi->...o", x, w[f"{name}.weight"])
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _in_blocks(x: Array, size: int) -> Array:
    """[B, n · size, …] as [n, B, size, …]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


def _with_block_before(blocks: Array) -> Array:
    """[n, B, size, …] as [n, B, 2 · size, …]. Before the first block there is filler, whose token
    index is -1, to which no token attends."""
    before = jnp.roll(blocks, 1, axis=0)
    nothing = jnp.asarray(-1 if jnp.issubdtype(blocks.dtype, jnp.integer) else 0, blocks.dtype)
    return jnp.concatenate([before.at[0].set(nothing), blocks], axis=2)


def _joined(blocks: Array) -> Array:
    """[n, B, size, …] as [B, n · size, …]."""
    x = jnp.moveaxis(blocks, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])
