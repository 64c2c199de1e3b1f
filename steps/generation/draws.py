"""Sample tokens with random numbers that depend only on the token's place.

Token `position` of completion `k` of a row is drawn with the uniform number at place `position` of
its own stream, which a counter-based generator (Philox; Salmon et al. 2011, *Parallel random
numbers: as easy as 1, 2, 3*) gives for the key (seed, row, k). The number is looked up in the
cumulative distribution, in float64. So a completion is the same in any batch and after any kill.

Tokens may be left out: all but the `top_k` likeliest, then those behind the share `top_p` of the
probability, then those with less than the share `min_p` of the largest probability. This is the
order of transformers' processors; vLLM begins with min_p, which differs if top_p is set, too. The
others are looked up in the order of ids, as if nothing were left out: settings that leave out no
token of a row change no bit.
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
from torch.nn import functional

from steps.generation.engine import Request

NUMBERS = 32
"""How many numbers of a stream are made at once."""

_ELEMENTS = 2**24
"""The size of one piece of the table of probabilities: 128 MiB."""

_VOCABULARY = 2**31
"""No model has so many tokens, and any dtype holds the number."""

_NUCLEUS = 512
"""How many of the likeliest tokens are sorted at first: most often top_p leaves no more."""


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


def cuts_of(requests: Sequence[Request]) -> Tensor:
    """The settings by which `draw` leaves out tokens for each request, float64 [N, 3]: top_k, top_p
    and min_p."""
    cuts = [(min(r.top_k, _VOCABULARY), r.top_p, r.min_p) for r in requests]
    return torch.tensor(cuts, dtype=torch.float64)


def draw(
    logits: Tensor, temperatures: Tensor, numbers: Tensor, cuts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens, int64 [N], and their log-probabilities in the distribution that they are drawn from,
    float64 [N].

    Args:
        logits: [N, V].
        temperatures: float64 [N]; 0 takes the likeliest token, with its log-probability at 1 among
            all tokens.
        numbers: float64 [N], in [0, 1).
        cuts: float64 [N, 3], as `cuts_of` has them; None: no token is left out.
    """
    rows = max(1, _ELEMENTS // logits.shape[1])
    left = [None] * -(-len(logits) // rows) if cuts is None else cuts.split(rows)
    pieces = zip(
        logits.split(rows), temperatures.split(rows), numbers.split(rows), left, strict=True
    )
    drawn = [_draw(*piece) for piece in pieces]
    tokens, logps = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    return tokens, logps


def log_share(logits: Tensor, temperature: float, cuts: Tensor) -> Tensor:
    """The logarithm of the probability that all tokens have together that are drawn from; float64
    [N].

    Args:
        logits: [N, V].
        cuts: as in `draw`.
    """
    heats = torch.full_like(cuts[:, 0], temperature)
    kept, _ = _weights(logits, heats, cuts)
    return kept.logsumexp(dim=-1) - _scaled(logits, heats).logsumexp(dim=-1)


def _draw(
    logits: Tensor, temperatures: Tensor, numbers: Tensor, cuts: Tensor | None
) -> tuple[Tensor, Tensor]:
    greedy = temperatures == 0
    heats, ids = temperatures.masked_fill(greedy, 1.0), None
    if cuts is None:
        scaled = _scaled(logits, heats)
    else:
        scaled, ids = _weights(logits, heats, cuts.where(~greedy[:, None], _nothing(cuts)))
    mass = scaled.exp().cumsum(dim=-1)
    total = mass[:, -1:]
    below = torch.minimum(numbers[:, None] * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(mass, below, right=True)
    if greedy.any():
        drawn = torch.where(greedy[:, None], logits.argmax(dim=-1, keepdim=True), drawn)
    places = drawn.clamp(max=scaled.shape[1] - 1)  # this matters only if a logit is NaN
    logps = scaled.gather(1, places) - total.log()
    return (places if ids is None else ids.gather(1, places))[:, 0], logps[:, 0]


def _scaled(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Logits at their temperatures, of which a row's largest is 0; float64."""
    scaled = logits.double()
    scaled = scaled - scaled.amax(dim=-1, keepdim=True)  # before what may overflow
    return scaled.div_(temperatures[:, None])


def _nothing(cuts: Tensor) -> Tensor:
    """The cuts of a row that leaves out no token."""
    return cuts.new_tensor([0.0, 1.0, 0.0])


def _weights(logits: Tensor, temperatures: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor | None]:
    """As `_scaled`, and -∞ for tokens that are left out; and the tokens, if these are some only."""
    top_k, top_p, min_p = cuts.unbind(dim=1)
    ids = None
    if top_k.any():  # before the division, whose rounding could make two tokens equal
        logits, ids = _likeliest(logits, top_k.long())
    scaled = _scaled(logits, temperatures)
    if (top_p < 1).any():
        scaled = _nucleus(scaled, top_p)
    if min_p.any():
        scaled = scaled.masked_fill(scaled.exp() < min_p[:, None], -torch.inf)
    return scaled, ids


def _likeliest(logits: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits with -∞ for all tokens that are less likely than number `top_k` [N] of their row; of
    few tokens, which are returned in the order of ids, if no row draws from more."""
    size = logits.shape[1]
    top_k = top_k.clamp(max=size)
    top = logits.topk(int(top_k.max()))
    least = top.values.gather(1, (top_k - 1).clamp(min=0)[:, None])
    left_out = (logits < least) & (top_k > 0)[:, None]  # and not what is NaN
    most = size - int(left_out.sum(dim=1).min())
    if 2 * most > size:
        return logits.masked_fill(left_out, -torch.inf), None
    every = top if most == top.indices.shape[1] else logits.topk(most)
    ids = every.indices.sort(dim=1).values
    return logits.gather(1, ids).masked_fill(left_out.gather(1, ids), -torch.inf), ids


def _nucleus(scaled: Tensor, top_p: Tensor) -> Tensor:
    """`scaled` with -∞ for all but the fewest likeliest tokens that have the share `top_p` [N] of a
    row's probability. Of equally likely tokens the first ones stay, as in greedy decoding."""
    wanted = top_p * scaled.exp().cumsum(dim=-1)[:, -1]
    least = torch.full_like(wanted, -torch.inf)  # of what stays; and how many equal it
    equal = torch.full_like(wanted, scaled.shape[1], dtype=torch.int64)
    rows, count = (top_p < 1).nonzero()[:, 0], _NUCLEUS
    while len(rows):  # each by itself: others must not decide how it is computed
        values = scaled[rows].topk(min(count, scaled.shape[1])).values
        mass = values.exp().cumsum(dim=-1)
        before = functional.pad(mass[:, :-1], (1, 0))
        stay = (before < wanted[rows, None]).sum(dim=-1, keepdim=True).clamp(min=1)
        least[rows] = values.gather(1, stay - 1)[:, 0]
        equal[rows] = stay[:, 0] - (values > least[rows, None]).sum(dim=-1)
        if count >= scaled.shape[1]:
            break
        rows, count = rows[~(mass[:, -1] >= wanted[rows])], 8 * count
    ties = scaled == least[:, None]
    left_out = scaled < least[:, None]
    if (ties.sum(dim=-1) > equal).any():
        left_out |= ties & (ties.cumsum(dim=-1) > equal[:, None])
    return scaled.masked_fill(left_out, -torch.inf)
