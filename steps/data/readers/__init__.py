"""Readers turn the bytes of a file into numbered records; one module a family of file formats.

Every reader yields `(number, record)`, where the number counts lines, elements of a list or rows of
a table from one. For an unreadable record it yields a `MalformedRow` and continues. Only failures
of a network or a disk raise errors. Memory holds a block and a row, never a whole file. Begin with
``lines``; ``load.shards`` assigns suffixes to readers.
"""

from collections.abc import Mapping
from typing import Any

from steps.data.rows.reasons import MalformedRow


class Cell(str):
    """A value from a file without types (CSV): a text, which may spell a number or JSON."""

    __slots__ = ()


Item = tuple[int, Mapping[str, Any] | MalformedRow]
