"""Attention by XLA, some queries at a time, so that a pack needs no mask of T × T in memory.

Where no token sees further back than `reach`, a block of so many queries meets its own keys and
those of the block before. In other packs, short ones, a block meets all keys up to its own last
one; in long ones all keys, and the backward computes the scores again, which would fill the memory.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from steps.jax_backend.architecture import NO_WINDOW, Architecture
from steps.jax_backend.pack_arrays import (
    LayerFacts,
    PackArrays,
    dropped,
    in_blocks,
    joined,
)

_QUERY_BLOCK = 512
_SHORT, _MOST_BLOCKS, _LEAST_BLOCK = 1024, 4, 192


def attend(
    a: Architecture, q: Array, k: Array, v: Array, pack: PackArrays, facts: LayerFacts
) -> Array:
    """Attention of every token to what it sees: q [B, T, heads, d], k and v [B, T, key heads, d] to
    [B, T, heads, d]."""
    tokens, slides = q.shape[1], min(a.windows) < NO_WINDOW
    q = q.reshape(*q.shape[:2], a.key_heads, -1, a.head_size)
    index = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32), pack.own.shape)
    sees = (index, pack.own, pack.first, pack.last, pack.positions)
    keys = (k, v, index, pack.positions)

    def of_block(queries: tuple[Array, ...], keys: tuple[Array, ...] = keys) -> Array:
        k, v, key, key_position = keys
        mask = _mask(queries[1:], key, key_position, facts.window, slides)
        kept = _kept(a, facts.keys, queries[1], key)
        return _attend(a, queries[0], k, v, mask, kept)

    if pack.reach < tokens:
        blocks = tuple(in_blocks(x, pack.reach) for x in (q, *sees))
        near = tuple(_with_block_before(in_blocks(x, pack.reach)) for x in keys)
        out = joined(jax.vmap(of_block)(blocks, near))
    elif tokens <= _SHORT:
        ends = _block_ends(tokens)
        parts = [
            of_block(tuple(x[:, start:end] for x in (q, *sees)), tuple(x[:, :end] for x in keys))
            for start, end in zip((0, *ends), ends, strict=False)
        ]
        out = jnp.concatenate(parts, axis=1)
    else:
        blocks = tuple(in_blocks(x, math.gcd(tokens, _QUERY_BLOCK)) for x in (q, *sees))
        out = joined(lax.map(jax.checkpoint(of_block, prevent_cse=False), blocks))
    return out.reshape(*q.shape[:2], a.heads, a.head_size)


def _kept(a: Architecture, keys: Array | None, query: Array, key: Array) -> Array | None:
    """Whether dropout leaves what some queries [B, t] take from some keys [B, T], for each head:
    [B, key heads, group, t, T]; None without dropout. Each is drawn by its own two places, so it
    is the same however the pack is cut and whatever lies beside it."""
    if keys is None or not a.attention_dropout:
        return None
    heads = (a.key_heads, a.heads // a.key_heads)

    def of_pack(pack: Array, query: Array, key: Array) -> Array:
        def of_pair(at: Array, to: Array) -> Array:
            own = jax.random.fold_in(jax.random.fold_in(pack, at), to)
            return jax.random.bernoulli(own, 1 - a.attention_dropout, heads)

        of_row = jax.vmap(of_pair, in_axes=(None, 0), out_axes=-1)
        return jax.vmap(of_row, in_axes=(0, None), out_axes=-2)(query, key)

    return jax.vmap(of_pack)(keys, query, key)


def _attend(
    a: Architecture, q: Array, k: Array, v: Array, mask: Array, kept: Array | None
) -> Array:
    """Of q [B, t, key heads, group, d] to the keys that mask [B, t, T] lets it see, and of these
    to what is `kept`."""
    accurate = jnp.promote_types(q.dtype, jnp.float32)
    batch, tokens, heads, group, size = q.shape
    # One axis of all queries of a key head: otherwise XLA transposes the scores on processors.
    q = jnp.moveaxis(q, 1, 3).reshape(batch, heads, group * tokens, size)
    scores = jnp.einsum("bkqd,bskd->bkqs", q, k, preferred_element_type=accurate)
    scores = scores.reshape(batch, heads, group, tokens, -1)
    scores = scores * jnp.asarray(a.attention_scale, accurate)
    if a.attention_cap is not None:
        scores = jnp.tanh(scores / a.attention_cap) * a.attention_cap
    scores = scores + jnp.where(mask, 0, jnp.finfo(accurate).min / 2)[:, None, None]
    # Divided after the product, as in FlashAttention (Dao et al. 2022): of the scores' size, the
    # backward then needs one array.
    parts = jnp.exp(scores - lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    whole = parts.sum(axis=-1, keepdims=True)
    parts = dropped(parts.astype(v.dtype), a.attention_dropout, kept)
    out = jnp.einsum(
        "bkqs,bskd->bkqd",
        parts.reshape(batch, heads, group * tokens, -1),
        v,
        preferred_element_type=accurate,
    )
    out = (out.reshape(batch, heads, group, tokens, size) / whole).astype(v.dtype)
    return jnp.moveaxis(out, 3, 1)


def _block_ends(tokens: int) -> tuple[int, ...]:
    """Where each of a few blocks of queries ends: about equally many, a multiple of 32."""
    count = max(1, min(_MOST_BLOCKS, tokens // _LEAST_BLOCK))
    size = -(-tokens // (count * 32)) * 32
    return (*range(size, tokens, size), tokens)


def _mask(
    queries: tuple[Array, ...], key: Array, key_position: Array, window: Array, slides: bool
) -> Array:
    """Which of some keys [B, K] each of some queries [B, t] sees: [B, t, K]."""
    index, own, first, last, position = (x[..., None] for x in queries)
    key, key_position = key[:, None], key_position[:, None]
    seen = ((key >= own) & (key <= index)) | ((key >= first) & (key < last))
    return seen & (position - key_position < window) if slides else seen


def _with_block_before(blocks: Array) -> Array:
    """[n, B, size, …] as [n, B, 2 · size, …]. The first has none before it: as tokens, those would
    be -1, which nothing sees."""
    before = jnp.roll(blocks, 1, axis=0)
    nothing = jnp.asarray(-1 if jnp.issubdtype(blocks.dtype, jnp.integer) else 0, blocks.dtype)
    return jnp.concatenate([before.at[0].set(nothing), blocks], axis=2)
