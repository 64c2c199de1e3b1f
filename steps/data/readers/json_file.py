"""`.json` files: one list of objects, one object, or JSON Lines under another name.

The first character and the first line decide which of these it is. The text of the whole file is
held in memory, and its elements are decoded one after another. The end of a broken element cannot
be found, so reading stops there as if the file were truncated: one `MalformedRow` stands for all
lost rows.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from steps.data.readers import Item
from steps.data.readers.blocks import CutOff
from steps.data.readers.lines import (
    DECODER,
    LENIENT_DECODER,
    MAX_ROW_BYTES,
    RepeatedKey,
    as_object,
    cut_off,
    json_lines,
    too_large,
)
from steps.data.rows.reasons import MalformedRow

_SPACE = re.compile(r"[ \t\r\n]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE = re.compile(r"\{[^\n]*\}\s*?(?:\n|\Z)")
"""A first line that is a complete object, even if a malformed one."""


def json_file(blocks: Iterable[bytes], start: int = 1) -> Iterator[Item]:
    """The objects of the file from number `start` on; in JSON Lines, from that line on."""
    data, broken = bytearray(), list[CutOff]()
    try:
        for block in blocks:
            data += block
    except CutOff as error:
        broken.append(error)
    # Bytes that are no UTF-8 become lone surrogates: they cost their element, not the file.
    text = data.decode("utf-8-sig", "surrogateescape")
    if _LINE.match(text, _after_space(text, 0)):
        yield from json_lines(chain([bytes(data)], _raised(broken)), start)
        return
    del data
    number = 0
    try:
        for number, item in _elements(text):
            if number >= start:
                yield number, item
        yield from _raised(broken)
    except (ValueError, RecursionError) as error:
        if number + 1 >= start:
            why = broken[0] if broken else MalformedRow("broken JSON", str(error))
            yield number + 1, cut_off(why, f"element {number}")


def _raised(errors: Iterable[CutOff]) -> Iterator[Any]:
    for error in errors:
        raise error
    yield from ()


def _elements(text: str) -> Iterator[Item]:
    """The elements of a list, or objects one after another.

    Raises:
        ValueError, RecursionError: the rest of the text cannot be read.
    """
    at, number = _after_space(text, 0), 0
    listed = text.startswith("[", at)
    at = _after_space(text, at + listed)
    while at < len(text) and not (listed and text[at] == "]"):
        element, end = _element(text, at)
        number += 1
        yield number, element
        at = _after_space(text, end)
        if listed and text.startswith(",", at):
            at = _after_space(text, at + 1)
        elif listed and not text.startswith("]", at):
            raise ValueError(f"expected ',' or ']', found {text[at : at + 1] or 'the end'!r}")
    if listed and (at == len(text) or _after_space(text, at + 1) < len(text)):
        raise ValueError("the list has no end, or text follows it")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _element(text: str, at: int) -> tuple[Mapping[str, Any] | MalformedRow, int]:
    """The element that begins there, and where it ends."""
    try:
        value, end = DECODER.raw_decode(text, at)
    except RepeatedKey as error:
        return MalformedRow("broken JSON", str(error)), LENIENT_DECODER.raw_decode(text, at)[1]
    if end - at > MAX_ROW_BYTES:
        return too_large(end - at), end
    if not (source := text[at:end]).isascii() and _SURROGATE.search(source):  # alone it is slow
        return MalformedRow("not valid UTF-8", "the element holds bytes that are no text"), end
    return as_object(value), end
