"""Which blocks of its arrays a place in the grid of `prefix_kernel` reads and writes."""

import math
from collections.abc import Callable
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
"""A block on a TPU is a multiple of so many tokens."""

_BLOCK = 512
_BATCH, _HEAD, _KEY_HEAD, _QUERIES, _KEYS = range(5)


def by_query(group: int) -> Callable[..., tuple[Any, ...]]:
    """Pack, head, key head, block of queries and of keys, of a place in a grid of queries."""
    return lambda pack, head, query, key: (pack, head, head // group, query, key)


def by_key(group: int, blocks: int) -> Callable[..., tuple[Any, ...]]:
    """The same in a grid of keys, in which the queries of `group` heads follow each other."""
    return lambda pack, head, key, step: (
        *(pack, head * group + step // blocks, head, step % blocks, key),
    )


def specs_at(place: Callable[..., tuple[Any, ...]], size: int, block: int) -> list[pl.BlockSpec]:
    """Of `sees`, of what is as queries are, as keys are, and of one number a query."""

    def spec(shape: tuple[int, ...], *axes: int | None) -> pl.BlockSpec:
        return pl.BlockSpec(
            shape, lambda *at: tuple(0 if axis is None else place(*at)[axis] for axis in axes)
        )

    return [
        spec((1, 3, block), _BATCH, None, _QUERIES),
        spec((1, 1, size, block), _BATCH, _HEAD, None, _QUERIES),
        spec((1, 1, block, size), _BATCH, _KEY_HEAD, _KEYS, None),
        spec((1, 1, 1, block), _BATCH, _HEAD, None, _QUERIES),
    ]


def block_of(tokens: int, interpreted: bool) -> int:
    """How many tokens are a block; raises ValueError for so many that a TPU cannot have blocks."""
    block = math.gcd(tokens, _BLOCK)
    if block % LANES and not interpreted:
        raise ValueError(
            f"a forward of {tokens} tokens has no blocks of {LANES}; with backend.kernel=true, "
            f"set tokens_per_forward to a multiple of {_BLOCK}"
        )
    return block


def options(interpreted: bool) -> dict[str, Any]:
    order = ("parallel", "parallel", "parallel", "arbitrary")
    compiler = pltpu.CompilerParams(dimension_semantics=order)
    return {"interpret": True} if interpreted else {"compiler_params": compiler}
