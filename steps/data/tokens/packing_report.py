"""Estimate how well rows would fill packed sequences of a fixed length, before any training.

The method is best-fit decreasing: from the longest row on, each row goes where it leaves the least
room. Rows of equal length are placed together, so the cost depends on the number of distinct
lengths, not of rows.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Packing:
    """Sequences of `room` tokens that hold `tokens` tokens of `rows` rows."""

    room: int
    rows: int
    tokens: int
    sequences: int

    @property
    def filled(self) -> float:
        """The share of the sequences that is not padding."""
        return self.tokens / (self.room * self.sequences) if self.sequences else 0.0

    @property
    def filled_unpacked(self) -> float:
        """The same with a sequence for every row."""
        return self.tokens / (self.room * self.rows) if self.rows else 0.0

    def __str__(self) -> str:
        return (
            f"{self.rows} rows of {self.tokens} tokens fit into {self.sequences} sequences of "
            f"{self.room} tokens, {self.filled:.1%} full; one row a sequence: "
            f"{self.filled_unpacked:.1%}"
        )


def packed(lengths: Mapping[int, int], room: int) -> Packing:
    """Pack rows; `lengths` maps each length to its number of rows. A row longer than `room` counts
    as one full sequence."""
    left, sequences = Counter[int](), 0
    for length in sorted(lengths, reverse=True):
        size, waiting = min(length, room), lengths[length]
        while waiting:
            fits = [space for space in left if space >= size and left[space]]
            if not fits:
                per = room // size if size else waiting
                whole, rest = divmod(waiting, per)
                sequences += whole + bool(rest)
                left[room - per * size] += whole
                left[room - rest * size] += bool(rest)
                break
            space = min(fits)
            each = min(space // size if size else waiting, waiting)
            used = min(left[space], waiting // each)
            left[space] -= used
            left[space - each * size] += used
            waiting -= used * each
    tokens = sum(min(length, room) * count for length, count in lengths.items())
    return Packing(room, sum(lengths.values()), tokens, sequences)
