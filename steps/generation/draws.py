"""Sample tokens with random numbers that depend only on the token's place.

Token `position` of completion `k` of a row is drawn with the uniform number at place `position` of
its own stream, which a counter-based generator (Philox; Salmon et al. 2011, *Parallel random
numbers: as easy as 1, 2, 3*) gives for the key (seed, row, k). The number is looked up in the
cumulative distribution, in float64. So a completion is the same in any batch and after any kill.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS = 32
"""How many numbers of a stream are made at once."""

_ELEMENTS = 2**24
"""The size of one piece of the table of probabilities: 128 MiB."""


class Streams:
    """Makes the numbers of any streams. One generator serves them all, as a new one takes longer
    than its numbers. It is for one thread."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._state: Any = self._generator.state

    def numbers(self, keys: Sequence[bytes], blocks: Sequence[int]) -> Tensor:
        """The numbers in [0, 1) of one block of each of n streams; float64 [n, NUMBERS]."""
        raw = np.empty((len(keys), NUMBERS), dtype=np.uint64)
        state = self._state["state"]
        for row, key, block in zip(raw, keys, blocks, strict=True):
            state["key"][:] = np.frombuffer(key, "<u8")
            state["counter"][0] = block * (NUMBERS // 4)  # a count gives four numbers
            self._generator.state = self._state
            row[:] = self._generator.random_raw(NUMBERS)
        return torch.from_numpy((raw >> np.uint64(11)) * 2.0**-53)


def stream_key(seed: Sequence[int], row: str, k: int) -> bytes:
    """The key of the stream of one completion."""
    own = _stream_names(tuple(seed), row).copy()
    own.update(f"{k}]".encode())
    return own.digest()


@lru_cache(256)
def _stream_names(seed: tuple[int, ...], row: str) -> "hashlib.blake2b":
    """The hash of the JSON of (seed, row, k) up to k, which a row's completions share."""
    named = json.dumps([list(seed), row])
    return hashlib.blake2b(f"{named[:-1]}, ".encode(), digest_size=16)


def uniforms(seed: Sequence[int], row: str, k: int) -> Iterator[float]:
    """The endless stream of numbers for the tokens of one completion."""
    streams, key = Streams(), stream_key(seed, row, k)
    for block in count():
        yield from streams.numbers([key], [block])[0].tolist()


def draw(logits: Tensor, temperatures: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens, int64 [N], and their log-probabilities, float64 [N].

    Args:
        logits: [N, V].
        temperatures: float64 [N]; 0 takes the likeliest token, with its log-probability at 1.
        numbers: float64 [N], in [0, 1).
    """
    rows = max(1, _ELEMENTS // logits.shape[1])
    pieces = zip(logits.split(rows), temperatures.split(rows), numbers.split(rows), strict=True)
    drawn = [_draw(*piece) for piece in pieces]
    tokens, logps = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    return tokens, logps


def _draw(logits: Tensor, temperatures: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    greedy = temperatures == 0
    scaled = logits.double()
    scaled = scaled - scaled.amax(dim=-1, keepdim=True)  # before what may overflow
    scaled /= temperatures.masked_fill(greedy, 1.0)[:, None]
    mass = scaled.exp().cumsum(dim=-1)
    total = mass[:, -1:]
    below = torch.minimum(numbers[:, None] * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(mass, below, right=True)
    if greedy.any():
        drawn = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), drawn)
    tokens = drawn.clamp(max=logits.shape[1] - 1)  # this matters only if a logit is NaN
    return tokens[:, 0], (scaled.gather(1, tokens) - total.log())[:, 0]
