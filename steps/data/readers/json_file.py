"""`.json` files: one list of objects, one object, or JSON Lines under another name.

The first character and the first line decide which of these it is. A list is read element by
element. The end of a broken element cannot be found, so reading stops there as if the file were
truncated: one `MalformedRow` stands for all lost rows.
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from steps.data.readers import Item
from steps.data.readers.blocks import CutOff
from steps.data.readers.lines import (
    BOM,
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


def json_file(blocks: Iterable[bytes], start: int = 1) -> Iterator[Item]:
    """The objects of the file from number `start` on; in JSON Lines, from that line on."""
    remaining = iter(blocks)
    head, breaks = _head(remaining)
    again = chain([head], _then_raise(breaks) if breaks else remaining)
    opening = head.removeprefix(BOM).lstrip()
    if not opening.startswith(b"[") and _is_lines(opening):
        yield from json_lines(again, start)
        return
    for number, item in _Elements(again, listed=opening.startswith(b"[")):
        if number >= start:
            yield number, item


def _head(blocks: Iterator[bytes]) -> tuple[bytes, CutOff | None]:
    """The file up to the end of its first nonblank line, and the error if it is cut off there."""
    head = b""
    try:
        for block in blocks:
            head += block
            opening = head.removeprefix(BOM).lstrip()
            if opening.startswith(b"[") or b"\n" in opening or len(head) > MAX_ROW_BYTES:
                break
    except CutOff as error:
        return head, error
    return head, None


def _then_raise(error: CutOff) -> Iterator[bytes]:
    raise error
    yield b""


def _is_lines(opening: bytes) -> bool:
    """Whether the first line is a complete object, even if a malformed one."""
    line, newline, _ = opening.partition(b"\n")
    return line.rstrip().endswith(b"}") and (len(line.strip()) > 1 or not newline)


def _is_certain(error: json.JSONDecodeError) -> bool:
    """Whether the error is certain: it is not at the text's end, so more text cannot fix it."""
    unfinished = error.msg.startswith("Unterminated string")
    return not unfinished and error.pos < len(error.doc) - len("-Infinity")


class _Elements:
    """The elements of a list, or objects one after another, decoded from a growing buffer."""

    def __init__(self, blocks: Iterable[bytes], listed: bool) -> None:
        self.blocks = iter(blocks)
        self.listed = listed
        # Bytes that are no UTF-8 become lone surrogates: they cost their element, not the file.
        self.decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
        self.text, self.at, self.ended = "", 0, False

    def __iter__(self) -> Iterator[Item]:
        number = 1
        try:
            if self.listed:
                self._next_character()
                self.at += 1
            while self._more(number):
                yield number, self._element()
                number += 1
        except (CutOff, MalformedRow) as error:
            yield number, cut_off(error, f"element {number - 1}")

    def _more(self, number: int) -> bool:
        """Go to the next element; false at the end of the file."""
        character = self._next_character()
        if self.listed and number > 1 and character == ",":
            self.at += 1
            self._next_character()
            return True
        if not self.listed or (number == 1 and character not in ("]", "")):
            return character != ""
        if character != "]":
            found = repr(character) if character else "the end of the file"
            raise MalformedRow("broken JSON", f"expected ',' or ']', found {found}")
        self.at += 1
        if self._next_character():
            raise MalformedRow("broken JSON", "text after the end of the list")
        return False

    def _element(self) -> Mapping[str, Any] | MalformedRow:
        while True:
            try:
                value, end = self._decode()
                if end < len(self.text) or self.ended:
                    break
            except RecursionError:
                raise MalformedRow("broken JSON", "nested too deeply") from None
            except json.JSONDecodeError as error:
                if self.ended or _is_certain(error):
                    raise MalformedRow("broken JSON", str(error)) from None
            except ValueError as error:  # a number of too many digits
                raise MalformedRow("broken JSON", str(error)) from None
            if len(self.text) - self.at > MAX_ROW_BYTES:
                raise too_large(len(self.text) - self.at)
            self._fill(len(self.text) - self.at)
        source, self.at = self.text[self.at : end], end
        if len(source) > MAX_ROW_BYTES:
            return too_large(len(source))
        if not source.isascii() and any("\ud800" <= c <= "\udfff" for c in source):
            return MalformedRow("not valid UTF-8", "the element holds bytes that are no text")
        return value if isinstance(value, MalformedRow) else as_object(value)

    def _decode(self) -> tuple[Any, int]:
        try:
            return DECODER.raw_decode(self.text, self.at)
        except RepeatedKey as error:
            _, end = LENIENT_DECODER.raw_decode(self.text, self.at)
            return MalformedRow("broken JSON", str(error)), end

    def _next_character(self) -> str:
        """Move to the next character that is not white space and return it; empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return self.text[self.at : self.at + 1]
            self._fill(1)

    def _fill(self, wanted: int) -> None:
        """Read at least `wanted` more characters, if there are any, and discard those before."""
        parts, length = [self.text[self.at :]], 0
        while length < wanted and not self.ended:
            block = next(self.blocks, None)
            self.ended = block is None
            parts.append(self.decode(block or b"", self.ended))
            length += len(parts[-1])
        self.text, self.at = "".join(parts), 0
