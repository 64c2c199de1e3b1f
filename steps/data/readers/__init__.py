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
    """A text that may be meant as the JSON value that it spells: a CSV cell, a value of a column
    that `datasets` stores as JSON."""

    __slots__ = ()


class ListCell(list[Any]):
    """The list that such a text spells as JSON; `written` is the text itself."""

    def __init__(self, value: list[Any], written: str) -> None:
        super().__init__(value)
        self.written = written


class ObjectCell(dict[str, Any]):
    """The object that such a text spells as JSON; `written` is the text itself."""

    def __init__(self, value: Mapping[str, Any], written: str) -> None:
        super().__init__(value)
        self.written = written


Item = tuple[int, Mapping[str, Any] | MalformedRow]
