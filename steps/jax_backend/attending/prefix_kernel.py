"""Attention of prefix-shared packs as a TPU kernel in Pallas, forward and backward.

Scores never leave the chip's own memory (Dao et al. 2022, https://arxiv.org/abs/2205.14135). What
a token sees is told by three integers of its own (`PackArrays`): of the keys at or before it those
from `own` on, and those in [first, last), its group's prompt. So a rejected response sees the
prompt and not the chosen one, which segment numbers cannot say.

Queries lie along the last axis, whose integers are then rows too: qᵀ [d, T], scores ᵀ [keys,
queries], oᵀ [d, T]. Blocks of keys that lie after all queries of a block are passed over.

    sᵀ = k qᵀ · scale,  pᵀ = exp(sᵀ − log Σ exp sᵀ),  oᵀ = vᵀ pᵀ
    dsᵀ = pᵀ ∘ (v doᵀ − Σ doᵀ ∘ oᵀ) · scale,  dqᵀ = kᵀ dsᵀ,  dk = dsᵀ q,  dv = pᵀ do
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from steps.jax_backend.attending.kernel_grid import block_of, by_key, by_query, options, specs_at

_UNSEEN = -1e30


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def prefix_attention(
    q: Array, k: Array, v: Array, sees: Array, scale: float, interpreted: bool
) -> Array:
    """Attention of every token to what it sees: [B, T, heads, d].

    Args:
        q: [B, T, heads, d]; k, v: [B, T, key heads, d], each shared by equally many heads.
        sees: int32 [B, 3, T]; `own`, `first` and `last` of `PackArrays`.
        interpreted: by JAX on any device, slowly; otherwise compiled for a TPU.
    """
    return _forward(q, k, v, sees, scale, interpreted)[0]


def _forward(q: Array, k: Array, v: Array, sees: Array, scale: float, interpreted: bool) -> Any:
    turned, accurate = jnp.transpose(q, (0, 2, 3, 1)), _accurate(q)
    keys, values = (jnp.swapaxes(x, 1, 2) for x in (k, v))
    batch, heads, size, tokens = turned.shape
    block, group = block_of(tokens, interpreted), heads // keys.shape[1]
    rows, of_query, of_key, of_row = specs_at(by_query(group), size, block)
    out, total = pl.pallas_call(
        partial(_forward_kernel, scale=scale, block=block),
        grid=(batch, heads, tokens // block, tokens // block),
        in_specs=[rows, of_query, of_key, of_key],
        out_specs=[of_query, of_row],
        out_shape=[_like(turned), jax.ShapeDtypeStruct((batch, heads, 1, tokens), accurate)],
        scratch_shapes=[pltpu.VMEM((rows, block), accurate) for rows in (1, 1, size)],
        **options(interpreted),
    )(sees, turned, keys, values)
    return jnp.transpose(out, (0, 3, 1, 2)), (turned, keys, values, sees, out, total)


def _backward(scale: float, interpreted: bool, kept: Any, gradient: Array) -> Any:
    turned, keys, values, sees, out, total = kept
    batch, heads, size, tokens = turned.shape
    block, group = block_of(tokens, interpreted), heads // keys.shape[1]
    blocks, accurate = tokens // block, _accurate(out)
    of_out = jnp.transpose(gradient, (0, 2, 3, 1))
    products = jnp.sum(of_out.astype(accurate) * out.astype(accurate), axis=2, keepdims=True)
    inputs = (sees, turned, keys, values, of_out, total, products)
    rows, of_query, of_key, of_row = specs_at(by_query(group), size, block)
    of_queries = pl.pallas_call(
        partial(_query_kernel, scale=scale, block=block),
        grid=(batch, heads, blocks, blocks),
        in_specs=[rows, of_query, of_key, of_key, of_query, of_row, of_row],
        out_specs=of_query,
        out_shape=_like(turned),
        scratch_shapes=[pltpu.VMEM((size, block), accurate)],
        **options(interpreted),
    )(*inputs)
    rows, of_query, of_key, of_row = specs_at(by_key(group, blocks), size, block)
    of_keys, of_values = pl.pallas_call(
        partial(_key_kernel, scale=scale, block=block, blocks=blocks),
        grid=(batch, heads // group, blocks, group * blocks),
        in_specs=[rows, of_query, of_key, of_key, of_query, of_row, of_row],
        out_specs=[of_key] * 2,
        out_shape=[_like(keys)] * 2,
        scratch_shapes=[pltpu.VMEM((block, size), accurate)] * 2,
        **options(interpreted),
    )(*inputs)
    of_keys, of_values = (jnp.swapaxes(x, 1, 2) for x in (of_keys, of_values))
    return jnp.transpose(of_queries, (0, 3, 1, 2)), of_keys, of_values, None


prefix_attention.defvjp(_forward, _backward)


def _forward_kernel(
    sees: Any, q: Any, k: Any, v: Any, out: Any, total: Any, top: Any, sum_: Any, gathered: Any,
    *, scale: float, block: int,
) -> None:  # fmt: skip
    """Softmax over blocks of keys, one after the other: `top` is the largest score so far."""
    query, key = pl.program_id(2), pl.program_id(3)

    @pl.when(key == 0)
    def _() -> None:
        top[...] = jnp.full_like(top, _UNSEEN)
        sum_[...], gathered[...] = jnp.zeros_like(sum_), jnp.zeros_like(gathered)

    @pl.when(key <= query)
    def _() -> None:
        scores = _scores(sees, q, k, query, key, scale, block)
        new = jnp.maximum(top[...], scores.max(axis=0, keepdims=True))
        shares, fade = jnp.exp(scores - new), jnp.exp(top[...] - new)
        sum_[...] = sum_[...] * fade + shares.sum(axis=0, keepdims=True)
        gathered[...] = gathered[...] * fade + _dot(v[0, 0], shares.astype(v.dtype), 0, 0)
        top[...] = new

    @pl.when(key == pl.num_programs(3) - 1)
    def _() -> None:
        out[0, 0] = (gathered[...] / sum_[...]).astype(out.dtype)
        total[0, 0] = top[...] + jnp.log(sum_[...])


def _query_kernel(*refs: Any, scale: float, block: int) -> None:
    """dqᵀ of a block of queries, over blocks of keys."""
    sees, q, k, v, of_out, total, products, out, gathered = refs
    query, key = pl.program_id(2), pl.program_id(3)

    @pl.when(key == 0)
    def _() -> None:
        gathered[...] = jnp.zeros_like(gathered)

    @pl.when(key <= query)
    def _() -> None:
        given = sees, q, k, v, of_out, total, products
        _, of_scores = _gradients(*given, query, key, scale, block)
        gathered[...] += _dot(k[0, 0], of_scores.astype(k.dtype), 0, 0)

    @pl.when(key == pl.num_programs(3) - 1)
    def _() -> None:
        out[0, 0] = gathered[...].astype(out.dtype)


def _key_kernel(*refs: Any, scale: float, block: int, blocks: int) -> None:
    """dk and dv of a block of keys, over blocks of queries of all heads that share a key head."""
    sees, q, k, v, of_out, total, products, of_k, of_v, keys, values = refs
    key, step = pl.program_id(2), pl.program_id(3)
    query = step % blocks

    @pl.when(step == 0)
    def _() -> None:
        keys[...], values[...] = jnp.zeros_like(keys), jnp.zeros_like(values)

    @pl.when(key <= query)
    def _() -> None:
        given = sees, q, k, v, of_out, total, products
        shares, of_scores = _gradients(*given, query, key, scale, block)
        values[...] += _dot(shares.astype(of_out.dtype), of_out[0, 0], 1, 1)
        keys[...] += _dot(of_scores.astype(q.dtype), q[0, 0], 1, 1)

    @pl.when(step == pl.num_programs(3) - 1)
    def _() -> None:
        of_k[0, 0], of_v[0, 0] = keys[...].astype(of_k.dtype), values[...].astype(of_v.dtype)


def _gradients(
    sees: Any, q: Any, k: Any, v: Any, of_out: Any, total: Any, products: Any,
    query: Any, key: Any, scale: float, block: int,
) -> tuple[Array, Array]:  # fmt: skip
    """pᵀ and dsᵀ of a block of queries and one of keys."""
    shares = jnp.exp(_scores(sees, q, k, query, key, scale, block) - total[0, 0])
    return shares, shares * (_dot(v[0, 0], of_out[0, 0], 1, 0) - products[0, 0]) * scale


def _scores(sees: Any, q: Any, k: Any, query: Any, key: Any, scale: float, block: int) -> Array:
    """Of a block of queries to one of keys, [keys, queries]."""
    scores = _dot(k[0, 0], q[0, 0], 1, 0) * scale
    index = query * block + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    at = key * block + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    own, first, last = (sees[0, row : row + 1, :] for row in range(3))
    seen = ((at >= own) & (at <= index)) | ((at >= first) & (at < last))
    return jnp.where(seen, scores, _UNSEEN)


def _dot(x: Array, y: Array, of_x: int, of_y: int) -> Array:
    """The product of two matrices over one axis of each, summed in float32 at least."""
    precision = None if x.dtype == jnp.bfloat16 else lax.Precision.HIGHEST
    return lax.dot_general(
        x, y, (((of_x,), (of_y,)), ((), ())), precision, preferred_element_type=_accurate(x)
    )


def _like(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _accurate(x: Array) -> Any:
    return jnp.promote_types(x.dtype, jnp.float32)
