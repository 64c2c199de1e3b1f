r"""Lines: JSON Lines and plain text.

A line ends at `\n` or `\r\n`; a `\r` elsewhere is text. A byte order mark is skipped. Blank lines
are skipped but counted. Unescaped control characters within JSON strings are accepted, although
JSON forbids them.
"""

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from steps.data.readers import Item
from steps.data.readers.blocks import CutOff
from steps.data.rows.reasons import MalformedRow

MAX_ROW_BYTES = 16 * 2**20
"""A longer row is dropped: it would have about four million tokens, and is probably a mistake."""

BOM = b"\xef\xbb\xbf"

Parse = Callable[[str], Mapping | MalformedRow]


class RepeatedKey(ValueError):
    """An object has the same key twice, so its value is ambiguous."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RepeatedKey(f"the key {reprlib.repr(key)} is there twice in one object")
        found[key] = value
    return found


DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_once)
LENIENT_DECODER = json.JSONDecoder(strict=False)


def json_lines(blocks: Iterable[bytes], start: int = 1) -> Iterator[Item]:
    """One object a line, from line `start` on."""
    return _records(blocks, start, lambda line: as_object(DECODER.decode(line), of_lines=True))


def text_lines(blocks: Iterable[bytes], start: int = 1) -> Iterator[Item]:
    """Each line as the record `{"text": LINE}`, from line `start` on."""
    return _records(blocks, start, lambda line: {"text": line.removesuffix("\r")})


def too_large(size: int) -> MalformedRow:
    return MalformedRow("row too large", f"{size:,} bytes, over the limit of {MAX_ROW_BYTES:,}")


def cut_off(error: Exception, last: str) -> MalformedRow:
    return MalformedRow("file cut off", f"nothing can be read after {last}: {error}")


def as_object(value: object, of_lines: bool = False) -> Mapping | MalformedRow:
    if isinstance(value, Mapping):
        return value
    is_list = of_lines and isinstance(value, list)
    hint = "; a row names its values" if is_list else ""
    return MalformedRow(
        "not an object", f"found a {type(value).__name__}, expected an object{hint}"
    )


def _records(blocks: Iterable[bytes], start: int, parse: Parse) -> Iterator[Item]:
    for number, line in _numbered(blocks):
        if number < start:
            continue
        if isinstance(line, MalformedRow):
            yield number, line
        elif line and not line.isspace():
            yield number, _parsed(line, parse)


def _parsed(line: bytes, parse: Parse) -> Mapping | MalformedRow:
    try:
        return parse(line.decode())
    except UnicodeDecodeError as error:
        return MalformedRow("not valid UTF-8", str(error.reason) + f" at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return MalformedRow("broken JSON", str(error))


def _numbered(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes | MalformedRow]]:
    number = 0
    try:
        for number, line in enumerate(_split(blocks), start=1):
            if isinstance(line, int) or len(line) > MAX_ROW_BYTES:
                yield number, too_large(line if isinstance(line, int) else len(line))
            else:
                yield number, line.removeprefix(BOM) if number == 1 else line
    except CutOff as error:
        yield number + 1, cut_off(error, f"line {number}")


def _split(blocks: Iterable[bytes]) -> Iterator[bytes | int]:
    """Each line without its end; for a line over the limit that is not kept, only its size."""
    rest, dropped = b"", 0
    for block in blocks:
        *lines, last = block.split(b"\n")
        for line in lines:
            yield dropped + len(rest) + len(line) if dropped else rest + line
            rest, dropped = b"", 0
        rest += last
        if len(rest) > MAX_ROW_BYTES:
            rest, dropped = b"", dropped + len(rest)
    if rest or dropped:
        yield dropped + len(rest) if dropped else rest
