"""How the bytes of one file become numbered records; one module a family of file formats.

Every reader yields `(number, record)`, counted from one as a person would count: lines, elements
of a list, rows of a table. What cannot be read is yielded as a `MalformedRow` in the record's
place and the rest goes on; only a source that fails to deliver bytes (a network, a disk) raises.
Memory holds a block and a row, never a file. Begin with ``lines``; ``load.shards`` says which
suffix goes to which reader.
"""

from collections.abc import Mapping
from typing import Any

from steps.data.rows.reasons import MalformedRow


class Cell(str):
    """A value of a file that knows no kinds of values: a text, or a number or JSON as text."""

    __slots__ = ()


Item = tuple[int, Mapping[str, Any] | MalformedRow]
