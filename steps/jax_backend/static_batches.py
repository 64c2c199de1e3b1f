"""Packs as arrays of a few static shapes, for compiled programs.

A round has one pack for each device. Every new number of tokens T or scored tokens S would need a
new compilation, so both are padded to a few sizes: T to sixteenths of the largest forward, above
its half to eighths, or to a quarter, an eighth or a sixteenth of it, and S to quarters of T. So T
is less than 1.25 times the tokens of a pack above a quarter; it may be a step's only one. A filler
token attends only to fillers; a scored filler token gets no gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steps.jax_backend.architecture import Architecture, angle_tables
from steps.jax_backend.attending.kernel_grid import LANES
from steps.jax_backend.pack_arrays import PackArrays
from steps.scoring.packing import Pack
from steps.scoring.scorer import Batch

_FEWEST = 32
_SHARES = ((1 / 16, 16), (1 / 8, 8), (1 / 4, 4), (1 / 2, 16), (math.inf, 8), (math.inf, 4))
"""Up to a share of the largest forward, T is a multiple of one of so many parts of it."""

_ROUND_UP_POSITIONS = 1024


@dataclass(frozen=True)
class Round:
    """Packs that go through the model at once. `numbers` are their indices in the batch; the rest
    of the round is filler."""

    arrays: PackArrays
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class RoundsBatch(Batch):
    """A batch, laid out for rounds of forwards."""

    rounds: tuple[Round, ...] = ()


class Rounds:
    """Lays out packs for `devices` devices, with `tokens_per_forward` tokens per forward."""

    def __init__(
        self,
        architecture: Architecture,
        tokens_per_forward: int,
        devices: int,
        kernel: bool = False,
    ) -> None:
        self._architecture = architecture
        self._budget = tokens_per_forward
        self._kernel = kernel
        self._devices = devices
        self._cos, self._sin = angle_tables(architecture, _ROUND_UP_POSITIONS)

    def of(self, packs: Sequence[Pack], least: int = 0) -> tuple[Round, ...]:
        """The rounds of some packs, in their order, laid out as if one had `least` tokens."""
        starts = range(0, len(packs), self._devices)
        return tuple(
            self._round(packs, range(s, min(s + self._devices, len(packs))), least) for s in starts
        )

    def _round(self, packs: Sequence[Pack], numbers: range, least: int) -> Round:
        chosen = [packs[number] for number in numbers]
        needed = max(least, *(len(pack.input_ids) for pack in chosen))
        tokens = tokens_size(needed, self._budget, self._kernel)
        scored = scored_size(max(len(pack.targets) for pack in chosen), tokens)
        rows = np.zeros((5, self._devices, tokens), np.int32)
        heads = np.zeros((2, self._devices, scored), np.int32)
        for place, pack in enumerate(chosen):
            _fill(rows[:, place], heads[:, place], pack)
        ids, positions, own, first, last = rows
        cos, sin = self._angles(positions)
        reach = _filled_reach(max(map(_reach, chosen)), tokens)
        arrays: Any = (ids, positions, own, first, last, cos, sin, *heads)
        return Round(PackArrays(*arrays, reach=reach), tuple(numbers))

    def _angles(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        longest = int(positions.max()) + 1
        if longest > self._cos.shape[1]:
            more = -(-longest // _ROUND_UP_POSITIONS) * _ROUND_UP_POSITIONS
            self._cos, self._sin = angle_tables(self._architecture, more)
        return self._cos[:, positions], self._sin[:, positions]


def tokens_size(needed: int, budget: int, kernel: bool) -> int:
    """T for `needed` tokens: of the first share in `_SHARES` that fits.

    With the kernel the budget is rounded up to a multiple of 4 · `LANES`, and a share fits only if
    T is then a multiple of `LANES`.
    """
    if kernel:
        budget = _rounded_up(budget, 4 * LANES)
    return next(
        _of_part(needed, budget, parts)
        for share, parts in _SHARES
        if needed <= share * budget and not (kernel and budget % (parts * LANES))
    )


def scored_size(needed: int, tokens: int) -> int:
    """S for `needed` scored tokens of T: a multiple of a quarter."""
    return _of_part(needed, tokens, 4)


def _of_part(needed: int, whole: int, parts: int) -> int:
    """The smallest sufficient multiple of one of so many parts."""
    return _rounded_up(max(1, needed), _rounded_up(-(-whole // parts), _FEWEST))


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _reach(pack: Pack) -> int:
    """The largest distance, in tokens, over which a token attends, including itself."""
    return max(
        s.stop - (s.prefix_start if s.prefix_start < s.prefix_stop else s.start)
        for s in pack.segments
    )


def _filled_reach(needed: int, tokens: int) -> int:
    """The smallest sufficient reach among all tokens, a half of them, a quarter, and so on."""
    reach = tokens
    while reach % 2 == 0 and reach // 2 >= max(needed, _FEWEST):
        reach //= 2
    return reach


def _fill(rows: np.ndarray, heads: np.ndarray, pack: Pack) -> None:
    """Writes a pack into its place: rows [5, T], heads [2, S]."""
    tokens = len(pack.input_ids)
    rows[0, :tokens], rows[1, :tokens] = pack.input_ids.numpy(), pack.position_ids.numpy()
    for segment in pack.segments:
        rows[2, segment.start : segment.stop] = segment.start
        rows[3, segment.start : segment.stop] = segment.prefix_start
        rows[4, segment.start : segment.stop] = segment.prefix_stop
    for start in range(tokens, rows.shape[1], _FEWEST):  # no filler sees further than any token may
        rows[2, start : start + _FEWEST] = start
    heads[0, : len(pack.predictors)] = pack.predictors.numpy()
    heads[1, : len(pack.targets)] = pack.targets.numpy()
