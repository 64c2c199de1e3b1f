"""Comma- and tab-separated values, with a header line; quotes may hold line breaks.

A quote that is never closed, or not closed at a cell's end, ends the file there, because the cells
after it cannot be told apart. All values are texts. One that spells a JSON list or object stands
for both (`readers.ListCell`): messages or tools, or an answer that is JSON. A format that needs a
number or a boolean interprets the text (`readers.Cell`). An empty cell is null. Numbers count rows,
not lines, from the first row after the header.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from steps.data.readers import Cell, Item, ListCell, ObjectCell
from steps.data.readers.blocks import CutOff
from steps.data.readers.lines import BOM, DECODER, MAX_ROW_BYTES, cut_off, too_large
from steps.data.rows.reasons import MalformedRow

_MAX_CELL = 4 * MAX_ROW_BYTES
"""The letters of a cell after which reading stops, as its quote is probably not closed. A cell that
is shorter, but over the limit of rows, costs only its row."""
_SURROGATE = re.compile("[\udc80-\udcff]")


def separated_values(
    blocks: Iterable[bytes], start: int = 1, separator: str = ","
) -> Iterator[Item]:
    """The rows of a CSV file, from row `start` on; with tabs for separators, of a TSV file."""
    csv.field_size_limit(_MAX_CELL)
    lines = csv.reader(_lines(blocks), delimiter=separator, strict=True)
    number = 0
    try:
        header = next(lines, None)
        if header is None:
            return
        names = [name for name in header if name]
        if len(set(names)) < len(names) or any(map(_SURROGATE.search, names)):
            raise CutOff("the header names a column twice, or is no UTF-8")
        for number, cells in enumerate((line for line in lines if line), start=1):
            if number >= start:
                yield number, _record(header, cells)
    except CutOff as error:
        yield number + 1, cut_off(error, f"row {number}")
    except csv.Error as error:
        how = "a cell with a quote in it stands in quotes, and its own quotes are doubled"
        yield number + 1, cut_off(ValueError(f"{error}; {how}"), f"row {number}")


def _lines(blocks: Iterable[bytes]) -> Iterator[str]:
    """Text line by line, ends included; bytes that are no UTF-8 become lone surrogates."""
    rest = b""
    for index, block in enumerate(blocks):
        block = block.removeprefix(BOM) if index == 0 else block
        *whole, rest = (rest + block).split(b"\n")
        yield from (line.decode("utf-8", "surrogateescape") + "\n" for line in whole)
    if rest:
        yield rest.decode("utf-8", "surrogateescape")


def _record(header: list[str], cells: list[str]) -> Mapping[str, Any] | MalformedRow:
    size = sum(map(len, cells))
    if size > MAX_ROW_BYTES:
        return too_large(size)
    if len(cells) != len(header):
        return MalformedRow(
            "broken table", f"{len(cells)} cells, but the header names {len(header)} columns"
        )
    if any(_SURROGATE.search(cell) for cell in cells):
        return MalformedRow("not valid UTF-8", "a cell holds bytes that are no text")
    return {name: of_text(cell) if cell else None for name, cell in zip(header, cells, strict=True)}


def of_text(cell: str) -> Cell | ListCell | ObjectCell:
    """A text that stands for itself and for the JSON value that it may spell."""
    if cell[:1] in ("[", "{"):
        try:
            found = DECODER.decode(cell)
        except (ValueError, RecursionError):
            return Cell(cell)
        return ListCell(found, cell) if isinstance(found, list) else ObjectCell(found, cell)
    return Cell(cell)
