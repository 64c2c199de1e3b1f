"""Packs as arrays of a few static shapes, for compiled programs.

A round has one pack for each device. Every new number of tokens T or scored tokens S would need a
new compilation, so both are padded to a few sizes: T to quarters of the largest forward, to eighths
above its half, or to an eighth or a sixteenth of it, and S to quarters of T. A filler token attends
only to fillers; a scored filler token gets no gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steps.jax_backend.architecture import Architecture, angle_tables
from steps.jax_backend.pack_arrays import PackArrays
from steps.scoring.packing import Pack
from steps.scoring.scorer import Batch

_FEWEST = 32
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

    def __init__(self, architecture: Architecture, tokens_per_forward: int, devices: int) -> None:
        self._architecture = architecture
        self._budget = tokens_per_forward
        self._devices = devices
        self._cos, self._sin = angle_tables(architecture, _ROUND_UP_POSITIONS)

    def of(self, packs: Sequence[Pack]) -> tuple[Round, ...]:
        """The rounds of some packs, in their order."""
        starts = range(0, len(packs), self._devices)
        return tuple(
            self._round(packs, range(s, min(s + self._devices, len(packs)))) for s in starts
        )

    def _round(self, packs: Sequence[Pack], numbers: range) -> Round:
        chosen = [packs[number] for number in numbers]
        tokens = filled_size(max(len(pack.input_ids) for pack in chosen), self._budget, finely=True)
        scored = filled_size(max(len(pack.targets) for pack in chosen), tokens)
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


def filled_size(needed: int, budget: int, finely: bool = False) -> int:
    """The padded size for `needed` rows: a multiple of a quarter of the budget. `finely`, it is one
    of an eighth above a half, and an eighth or a sixteenth if that is enough."""
    parts = 4
    if finely and (2 * needed > budget or 8 * needed <= budget):
        parts = 16 if 16 * needed <= budget else 8
    part = -(-budget // (parts * _FEWEST)) * _FEWEST
    return max(1, -(-needed // part)) * part


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
