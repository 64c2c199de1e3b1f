"""What a decoder reads: a round of packs as arrays, and what one layer is told of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

_ARRAYS = (
    *("ids", "positions", "own", "first", "last", "cos", "sin", "predictors", "targets"),
    "noise",
)


@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=("reach",))
@dataclass(frozen=True)
class PackArrays:
    """B packs of T tokens and S scored ones; int32, but for the angles.

    ids, positions: [B, T].
    own: [B, T]; the first token of the segment that a token is in: it sees what lies from there to
        itself,
    first, last: [B, T]; and the tokens [first, last) of its group's prompt.
    cos, sin: [rotations, B, T, rotated channels].
    predictors, targets: [B, S]; which row predicts a scored token, and the token.
    reach: a divisor of T, or T; what a token sees lies among the `reach` tokens that end with it.
    noise: uint32 [B, 2]; seeds what is dropped of each pack. Without it nothing is.
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
    noise: Array | None = None


class LayerFacts(NamedTuple):
    """What differs from layer to layer besides weights; int32 [], and a key for each pack, [B]."""

    window: Array
    rotation: Array
    number: Array
    keys: Array | None = None


def dropped(x: Array, share: float, kept: Array | None) -> Array:
    """x, where it is not `kept` set to 0, and the rest scaled up (Srivastava et al. 2014)."""
    if kept is None:
        return x
    return jnp.where(kept, x / jnp.asarray(1 - share, x.dtype), jnp.zeros((), x.dtype))


def drawn(keys: Array | None, share: float, x: Array) -> Array | None:
    """Which numbers of x [B, T, …] dropout keeps, drawn for each pack by its key. A token's draws
    do not depend on how many follow."""
    if keys is None or not share:
        return None
    return jax.vmap(lambda key: jax.random.bernoulli(key, 1 - share, x.shape[1:]))(keys)


def folded(keys: Array, number: Any) -> Array:
    """Keys [B] for one of several draws."""
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def in_blocks(x: Array, size: int) -> Array:
    """[B, n · size, …] as [n, B, size, …]."""
    return jnp.moveaxis(x.reshape(x.shape[0], -1, size, *x.shape[2:]), 1, 0)


def joined(blocks: Array) -> Array:
    """[n, B, size, …] as [B, n · size, …]."""
    x = jnp.moveaxis(blocks, 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])
