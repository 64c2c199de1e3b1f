"""Several sources as one, in proportion to their weights.

The next row comes from the source that is most below its weight; in a tie, from the first one. So
the proportions of the weights hold approximately in every stretch of the mixture. The order depends
only on the weights and the sources: there is no seed. Each source is read in its own order, and
each row is used once. `until` sets when the mixture ends:

* `first exhausted`: when it is a source's turn and it has no more rows. The proportions hold to the
  end. The remaining rows of the other sources are not used;
* `all exhausted`: when all sources have ended. Every row is used once; the weights only decide how
  early the rows of a source come.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from steps.data.load.shards import Reader, Source

UNTIL = ("first exhausted", "all exhausted")

Opener = Callable[[int, int], Iterator[tuple[int, Any]]]
"""The numbered rows of a file of a source, given its number and the row to start at."""

Position = list[list[int]]
"""A position in a mixture: for each source the shard, the row in it, and the rows taken so far."""


class Mixture:
    """A position in a mixture, which moves as rows are taken.

    Attributes:
        ended_by: the source that ended the mixture while others had more rows.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float],
        until: str = "first exhausted",
        position: Position | None = None,
        openers: Sequence[Opener] | None = None,
    ) -> None:
        self.weights = weights
        self.until = until
        places = position or [[0, 1, 0] for _ in sources]
        self.readers = [
            Reader(source, shard, row, opener)
            for source, (shard, row, _), opener in zip(
                sources, places, openers or [None] * len(sources), strict=True
            )
        ]
        self.drawn = [drawn for _, _, drawn in places]
        self._open = set(range(len(sources)))
        self.ended_by: int | None = None

    @property
    def position(self) -> Position:
        """The position with which a new object continues from here."""
        drawn = zip(self.readers, self.drawn, strict=True)
        return [[reader.shard, reader.row, count] for reader, count in drawn]

    def draw(self) -> tuple[int, str, tuple[int, Any]] | None:
        """The next row: which source, the name of its shard, the row. `None` at the end."""
        while self._open:
            index = min(self._open, key=lambda i: ((self.drawn[i] + 1) / self.weights[i], i))
            if (found := self.readers[index].next()) is not None:
                self.drawn[index] += 1
                return index, *found
            self._open.remove(index)
            if self.until == "first exhausted":  # only check whether other sources have more rows
                left = any(self.readers[other].next() is not None for other in self._open)
                self.ended_by, self._open = index if left else None, set()
        return None


def check_weights(weights: Iterable[tuple[str, Any]], until: str) -> None:
    """Check the weights and the end of a mixture.

    Args:
        weights: of each part, its name and its weight.

    Raises:
        ValueError: a weight is not a positive number, or `until` is not one of `UNTIL`.
    """
    for name, weight in weights:
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (is_number and 0 < weight < math.inf):
            raise ValueError(
                f"data.mixture.{name}.weight must be a finite number above 0, got {weight!r}"
            )
    if until not in UNTIL:
        raise ValueError(f"until is {until!r}; it must be one of {', '.join(UNTIL)}")
