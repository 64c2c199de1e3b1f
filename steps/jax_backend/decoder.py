"""A decoder over packs in JAX: from token ids to the log-probabilities of scored tokens.

Weights have the names and the shapes of a Hugging Face folder, those of the layers stacked:

    {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H], "lm_head.weight": [V, H],
     "layers": {"self_attn.q_proj.weight": [L, heads · d, H], "input_layernorm.weight": [L, H], …}}

One layer is compiled and scanned over all layers. If a family lacks a weight (a bias, a norm), the
operation with this weight is left out. Norms, softmax and logits are in float32 at least, as in
transformers.

What a token sees is told by three integers of its own (`PackArrays`); `attending` reads them.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name, checkpoint_policies

from steps.jax_backend.architecture import Architecture
from steps.jax_backend.attending.query_blocks import attend
from steps.jax_backend.pack_arrays import (
    LayerFacts,
    PackArrays,
    drawn,
    dropped,
    folded,
    in_blocks,
    joined,
)

Weights = Mapping[str, Any]
Attend = Callable[[Architecture, Array, Array, Array, PackArrays, LayerFacts], Array]

_LOGITS_BYTES = 128 * 2**20

SCORE = "score.weight"
"""The head [1, H] of a reward model, which has no other."""

ADAPTER = ("lora_A.default.weight", "lora_B.default.weight")
"""An adapter's factors [r, I] and [O, r], as `peft` names them after the name of their matrix."""

_ATTENDED, _PRODUCT = "attended", "product"

RECOMPUTED = {
    "none": None,
    "selective": checkpoint_policies.save_from_both_policies(
        checkpoint_policies.dots_with_no_batch_dims_saveable,
        checkpoint_policies.save_only_these_names(_ATTENDED, _PRODUCT),
    ),
    "full": checkpoint_policies.nothing_saveable,
}
"""What a layer keeps for its backward, by the names of `ActivationCheckpointing`."""


def token_logps(
    architecture: Architecture,
    weights: Weights,
    pack: PackArrays,
    dtype: Any,
    recomputed: str = "none",
    shard: Callable[[Array], Array] = lambda x: x,
    attend: Attend = attend,
    hits: bool = False,
    normalised: bool = False,
) -> Array:
    """log p(token | tokens before it) of scored tokens: [B, S], float32 or float64.

    Of a reward model, the scores of responses, in the places of their last tokens.

    Args:
        dtype: the dtype of the computation; weights may have a higher precision.
        recomputed: a name in `RECOMPUTED`.
        shard: says how activations [B, …] are spread over devices.
        attend: `query_blocks.attend`, or what does the same.
        hits: hits are beside the logps, [B, S, 2] (see `scoring.head.with_hits`).
        normalised: as `scoring.head.with_normalisers`, [B, S, 3].
    """
    # TPUs multiply float32 in bfloat16 unless told otherwise.
    with jax.default_matmul_precision("highest" if dtype != jnp.bfloat16 else "default"):
        hidden = shard(_embed(architecture, weights, pack, dtype))
        hidden = _layers(architecture, weights["layers"], hidden, pack, recomputed, shard, attend)
        hidden = _norm(architecture, hidden, weights["model.norm.weight"])
        rows = jnp.take_along_axis(hidden, pack.predictors[..., None], axis=1)
        if SCORE in weights:
            return _scores(weights[SCORE].astype(dtype), rows)
        name = "model.embed_tokens.weight" if architecture.tied else "lm_head.weight"
        of_head = (architecture, weights[name].astype(dtype), rows, pack.targets)
        return _head(*of_head, hits, normalised)


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
    attend: Attend,
) -> Array:
    def layer(x: Array, of_layer: tuple[Weights, LayerFacts]) -> tuple[Array, None]:
        # Cast here, so that the backward keeps the weights themselves and not a copy.
        weights = jax.tree.map(lambda w: w.astype(x.dtype), of_layer[0])
        facts = of_layer[1]
        if pack.noise is not None:
            keys = jax.random.wrap_key_data(pack.noise)
            facts = facts._replace(keys=folded(keys, facts.number))
        return shard(_layer(a, weights, x, pack, facts, attend)), None

    policy = RECOMPUTED[recomputed]
    body = layer if policy is None else jax.checkpoint(layer, policy=policy, prevent_cse=False)
    of_layers = (a.windows, a.rotation_of, range(a.layers))
    facts = LayerFacts(*(jnp.asarray(values, jnp.int32) for values in of_layers))
    return lax.scan(body, hidden, (layers, facts))[0]


def _layer(
    a: Architecture, w: Weights, x: Array, pack: PackArrays, facts: LayerFacts, attend: Attend
) -> Array:
    """A block of attention and one of a gated perceptron, each added to what came in.

    With norms on both sides of a block (Gemma 2 and 3) `post_attention_layernorm` comes after the
    attention; else it is the one before the perceptron.
    """
    is_sandwich = "pre_feedforward_layernorm.weight" in w
    attended = _attention(a, w, _norm(a, x, w["input_layernorm.weight"]), pack, facts, attend)
    if is_sandwich:
        x = x + _norm(a, attended, w["post_attention_layernorm.weight"])
        fed = _perceptron(a, w, _norm(a, x, w["pre_feedforward_layernorm.weight"]), facts)
        return x + _norm(a, fed, w["post_feedforward_layernorm.weight"])
    x = x + attended
    return x + _perceptron(a, w, _norm(a, x, w["post_attention_layernorm.weight"]), facts)


def _attention(
    a: Architecture, w: Weights, x: Array, pack: PackArrays, facts: LayerFacts, attend: Attend
) -> Array:
    if "self_attn.qkv_proj.weight" in w:
        sizes = (a.heads * a.head_size, (a.heads + a.key_heads) * a.head_size)
        q, k, v = jnp.split(_linear(a, w, "self_attn.qkv_proj", x, facts), sizes, axis=-1)
    else:
        q, k, v = (_linear(a, w, f"self_attn.{name}_proj", x, facts) for name in "qkv")
    q, k, v = (part.reshape(*part.shape[:-1], -1, a.head_size) for part in (q, k, v))
    if "self_attn.q_norm.weight" in w:
        q = _norm(a, q, w["self_attn.q_norm.weight"])
        k = _norm(a, k, w["self_attn.k_norm.weight"])
    cos, sin = (table[facts.rotation][:, :, None].astype(x.dtype) for table in (pack.cos, pack.sin))
    out = attend(a, _rotated(q, cos, sin), _rotated(k, cos, sin), v, pack, facts)
    out = checkpoint_name(out, _ATTENDED)
    return _linear(a, w, "self_attn.o_proj", out.reshape(*x.shape[:-1], -1), facts)


def _rotated(x: Array, cos: Array, sin: Array) -> Array:
    """x [B, T, heads, d], its first channels turned by the angles; cos, sin [B, T, 1, channels]."""
    turned, rest = jnp.split(x, [cos.shape[-1]], axis=-1)
    left, right = jnp.split(turned, 2, axis=-1)
    turned = turned * cos + jnp.concatenate([-right, left], axis=-1) * sin
    return jnp.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned


def _perceptron(a: Architecture, w: Weights, x: Array, facts: LayerFacts) -> Array:
    if "mlp.gate_up_proj.weight" in w:
        gate, up = jnp.split(_linear(a, w, "mlp.gate_up_proj", x, facts), 2, axis=-1)
    else:
        gate, up = (_linear(a, w, f"mlp.{name}_proj", x, facts) for name in ("gate", "up"))
    if a.activation == "silu":
        gate = jax.nn.silu(gate)
    else:
        gate = jax.nn.gelu(gate, approximate=a.activation == "gelu_pytorch_tanh")
    return _linear(a, w, "mlp.down_proj", gate * up, facts)


def telling(weights: Weights, head: Any) -> dict[str, Any]:
    """Weights whose output shows faults of the decoder: a reward model, whose untrained head gives
    0, gets another head [n, H], for output [B, S, n]."""
    return {**weights, SCORE: head} if SCORE in weights else {**weights}


def _scores(weight: Array, rows: Array) -> Array:
    accurate = jnp.promote_types(weight.dtype, jnp.float32)
    scores = jnp.einsum("bsh,vh->bsv", rows, weight, preferred_element_type=accurate)
    # A reward model's one score is [B, S], as logps are; the rows of another head (`telling`) stay.
    return scores[..., 0] if len(weight) == 1 else scores


def _head(
    a: Architecture, weight: Array, rows: Array, targets: Array, hits: bool, normalised: bool
) -> Array:
    """Logps [B, S], or with hits [B, S, 2], or `normalised` [B, S, 3], from rows [B, S, H]; the
    logits of some rows at a time."""

    def logps(part: tuple[Array, Array]) -> Array:
        accurate = jnp.promote_types(weight.dtype, jnp.float32)
        own = jnp.einsum("bsh,vh->bsv", part[0], weight, preferred_element_type=accurate)
        logits = own
        if a.logits_cap is not None:
            logits = jnp.tanh(own / a.logits_cap) * a.logits_cap
        shifted = logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))
        at_target = jnp.take_along_axis(shifted, part[1][..., None], axis=-1)[..., 0]
        found = at_target - jnp.log(jnp.exp(shifted).sum(axis=-1))
        if not (hits or normalised):
            return found
        # Not of capped logits: a kernel that computes one twice may round it differently.
        at_target = jnp.take_along_axis(own, part[1][..., None], axis=-1)[..., 0]
        values = [found, at_target == own.max(axis=-1)]
        if normalised:
            values.append(jax.nn.logsumexp(logits, axis=-1))
        return jnp.stack(values, axis=-1)

    block = rows.shape[1]
    while block % 2 == 0 and block * a.vocabulary * 4 > _LOGITS_BYTES and block > 32:
        block //= 2
    if block == rows.shape[1]:
        return logps((rows, targets))
    parts = (in_blocks(rows, block), in_blocks(targets, block))
    return joined(lax.map(jax.checkpoint(logps, prevent_cse=False), parts))


def _norm(a: Architecture, x: Array, weight: Array) -> Array:
    """The root-mean-square norm over the last axis (Zhang and Sennrich 2019)."""
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    y = x.astype(accurate)
    y = y * lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + a.norm_epsilon)
    if a.norm_offset:  # Gemma multiplies before it rounds, the others after
        return _scaled(y, a.norm_offset + weight.astype(accurate)).astype(x.dtype)
    return _scaled(y.astype(x.dtype), weight.astype(x.dtype))


def _linear(a: Architecture, w: Weights, name: str, x: Array, facts: LayerFacts) -> Array:
    """With the adapter beside it (Hu et al. 2021), if there is one."""
    y = checkpoint_name(_product(x, w[f"{name}.weight"]), _PRODUCT)
    y = y + w[f"{name}.bias"] if f"{name}.bias" in w else y
    if f"{name}.{ADAPTER[0]}" not in w:
        return y
    keys = None if facts.keys is None else folded(facts.keys, zlib.crc32(name.encode()))
    x = dropped(x, a.adapter_dropout, drawn(keys, a.adapter_dropout, x))
    for factor in ADAPTER:
        x = jnp.einsum("...i,oi->...o", x, w[f"{name}.{factor}"])
    return y + x * jnp.asarray(a.adapter_scale, x.dtype)


@jax.custom_vjp
def _product(x: Array, weight: Array) -> Array:
    """x [B, T, I] times weight [O, I]: [B, T, O].

    For the weight's gradient, XLA transposes the first of two operands on processors, and with it
    computes once more what made it. So the narrower one comes first.
    """
    return _exactly("bti,oi->bto", x, weight)


def _exactly(subscripts: str, x: Array, y: Array, **options: Any) -> Array:
    """Products as in `token_logps`, whose context does not reach what a backward traces."""
    precision = "highest" if x.dtype != jnp.bfloat16 else "default"
    return jnp.einsum(subscripts, x, y, precision=precision, **options)


def _product_backward(kept: tuple[Array, Array], of_y: Array) -> tuple[Array, Array]:
    x, weight = kept
    if x.shape[-1] < of_y.shape[-1]:
        of_weight = _exactly("bti,bto->io", x, of_y).T
    else:
        of_weight = _exactly("bti,bto->oi", x, of_y)
    return _exactly("bto,oi->bti", of_y, weight), of_weight


_product.defvjp(lambda x, weight: (_product(x, weight), (x, weight)), _product_backward)


@jax.custom_vjp
def _scaled(x: Array, scale: Array) -> Array:
    """x [B, T, …, H] times scale [H]. On processors, XLA's sum over all rows, which is the gradient
    of the scale, costs several times what a product with ones does."""
    return x * scale


def _scaled_backward(kept: tuple[Array, Array], of_y: Array) -> tuple[Array, Array]:
    x, scale = kept
    rows = (of_y * x).reshape(-1, x.shape[-1])
    accurate = jnp.promote_types(x.dtype, jnp.float32)
    ones = jnp.ones((1, len(rows)), x.dtype)
    of_scale = _exactly("ot,ti->oi", ones, rows, preferred_element_type=accurate)
    return of_y * scale, of_scale[0].astype(scale.dtype)


_scaled.defvjp(lambda x, scale: (x * scale, (x, scale)), _scaled_backward)
