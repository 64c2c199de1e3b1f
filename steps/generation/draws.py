"""Sample tokens with random numbers that depend only on the token's place.

Token `position` of completion `k` of a row is drawn with the uniform number at place `position` of
its own stream, which a counter-based generator (Philox; Salmon et al. 2011, *Parallel random
numbers: as easy as 1, 2, 3*) gives for the key (seed, row, k). The number is looked up in the
cumulative distribution, in float64. So a completion is the same in any batch and after any kill.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

_BLOCK = 32
_ELEMENTS = 2**24
"""The size of one piece of the table of probabilities: 128 MiB."""


def uniforms(seed: Sequence[int], row: str, k: int) -> Iterator[float]:
    """The endless stream of numbers in [0, 1) for the tokens of one completion."""
    key = hashlib.blake2b(json.dumps([list(seed), row, k]).encode(), digest_size=16)
    stream = np.random.Philox(key=np.frombuffer(key.digest(), "<u8").astype(np.uint64))
    while True:
        yield from ((stream.random_raw(_BLOCK) >> np.uint64(11)) * 2.0**-53).tolist()


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
    scaled = logits.double() - logits.amax(dim=-1, keepdim=True)  # before what may overflow
    scaled /= temperatures.masked_fill(greedy, 1.0)[:, None]
    mass = scaled.exp().cumsum(dim=-1)
    total = mass[:, -1:]
    below = torch.minimum(numbers[:, None] * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(mass, below, right=True)
    tokens = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), drawn)
    tokens = tokens.clamp(max=logits.shape[1] - 1)  # this matters only if a logit is NaN
    return tokens[:, 0], (scaled.gather(1, tokens) - total.log())[:, 0]
