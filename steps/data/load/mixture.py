"""Several sources as one, in proportion to their weights.

Rows are drawn one at a time from the source that is furthest behind its share, the first named of
them in a tie. So every stretch of the mixture holds the sources in nearly the weights' proportions,
and the order is a function of the weights and the sources alone: there is no seed. A source is
read in its own order and no row is drawn twice. One epoch of a mixture ends, by `until`,

* `first exhausted`: when a source that is due has no more rows. The proportions hold throughout;
  rows of the other sources that were not drawn are not part of the epoch, and are never read;
* `all exhausted`: when every source is. All rows are in it once; the weights decide only how early
  the rows of a source come.
"""

import math
from collections.abc import Sequence

from steps.data.load.shards import Reader, Source
from steps.data.readers import Item

UNTIL = ("first exhausted", "all exhausted")

Position = list[list[int]]
"""Where a mixture is: of each source the shard, the row in it, and how many rows were drawn."""


class Mixture:
    """A place in a mixture, which moves as rows are drawn.

    Attributes:
        ended_by: the source that had no more rows when it was due while others had.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float],
        until: str = "first exhausted",
        position: Position | None = None,
    ) -> None:
        self.weights = weights
        self.until = until
        places = position or [[0, 1, 0] for _ in sources]
        self.readers = [
            Reader(source, shard, row)
            for source, (shard, row, _) in zip(sources, places, strict=True)
        ]
        self.drawn = [drawn for _, _, drawn in places]
        self._open = set(range(len(sources)))
        self.ended_by: int | None = None

    @property
    def position(self) -> Position:
        """What to give to a new object for it to go on from here."""
        drawn = zip(self.readers, self.drawn, strict=True)
        return [[reader.shard, reader.row, count] for reader, count in drawn]

    def draw(self) -> tuple[int, str, Item] | None:
        """The next row: which source, the name of its shard, the row. `None` at the end."""
        while self._open:
            index = min(self._open, key=lambda i: ((self.drawn[i] + 1) / self.weights[i], i))
            if (found := self.readers[index].next()) is not None:
                self.drawn[index] += 1
                return index, *found
            self._open.remove(index)
            if self.until == "first exhausted":  # a look at what is left, of which no more is drawn
                left = any(self.readers[other].next() is not None for other in self._open)
                self.ended_by, self._open = index if left else None, set()
        return None


def check_weights(weights: Sequence[float], until: str) -> None:
    """Refuse weights that are no proportions.

    Raises:
        ValueError: one is not a positive number, or `until` is none of `UNTIL`.
    """
    for weight in weights:
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"a weight in a mixture must be above 0, got {weight}")
    if until not in UNTIL:
        raise ValueError(f"until is {until!r}; it must be one of {', '.join(UNTIL)}")
