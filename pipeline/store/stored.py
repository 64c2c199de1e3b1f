"""What comes out of a store, checked before anything is done with it.

A store is not believed. Whoever can write a bucket can write any name and any number into it, and
what Temper does with them (join them to a path, delete there, download there, import) happens with
the rights of whoever runs it. So every name has a known form, here and nowhere else, and every JSON
text is read by :func:`parse_json`. What does not have its form is damaged, or somebody else's.
"""

import json
import re
from array import array
from itertools import accumulate
from typing import Any, NoReturn

MOST_NESTED = 200
"""Brackets within brackets in a JSON text: deeper ones could exhaust the stack of a reader."""
LARGEST = 2**63 - 1
"""Of sizes and counters."""
LATEST = 1e11
"""Of times, in seconds."""

_ATTEMPT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_KEY = re.compile(r"[0-9a-f]{32}")
_BLAKE3 = re.compile(r"[0-9a-f]{64}")
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NO_FILE = re.compile(
    r"(?:^|/)\.{0,2}(?:/|\Z)"  # an empty component, `.` or `..`, at the ends too
    r"|(?:^|[/\\])\.\.(?:[/\\]|\Z)|\0"  # as other systems write it
)
_LONGEST_FILE = 4096
_LONGEST_STEP = 100
_BRACKETS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def is_step(name: object) -> bool:
    """Whether it is the name of a step, which is that of a function."""
    return isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST_STEP


def is_key(name: object) -> bool:
    """Whether it is a key, or the digest of an artifact."""
    return isinstance(name, str) and _KEY.fullmatch(name) is not None


def is_attempt(name: object) -> bool:
    """Whether it is the name of an attempt or of a run: one component of a path."""
    return isinstance(name, str) and _ATTEMPT.fullmatch(name) is not None


def is_file(name: object) -> bool:
    """Whether it is the name of a file in a folder, or of a part: a path that stays below it."""
    return isinstance(name, str) and len(name) <= _LONGEST_FILE and not _NO_FILE.search(name)


def is_blake3(name: object) -> bool:
    """Whether it is the BLAKE3 of a file, which also names copies of scratch."""
    return isinstance(name, str) and _BLAKE3.fullmatch(name) is not None


def is_reference(name: object) -> bool:
    """Whether it is of the form ``module:name``. It says nothing of what it names."""
    return isinstance(name, str) and len(name) <= 500 and _REFERENCE.fullmatch(name) is not None


def is_count(value: object, most: int = LARGEST) -> bool:
    """Whether it is a whole number from 0; ``true`` is none."""
    return type(value) is int and 0 <= value <= most


def is_seconds(value: object) -> bool:
    """Whether it is a time or a duration, as a finite number from 0."""
    return type(value) in (int, float) and 0 <= value <= LATEST  # type: ignore[operator]


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, is nested too deeply, or holds a number that is not finite.
    """
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if _may_be_deeper(text):
        raise ValueError(f"it is nested more than {MOST_NESTED} deep")
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _may_be_deeper(text: bytes) -> bool:
    depths = array("b", text.translate(_BRACKETS, _NO_BRACKETS))
    if max(accumulate(depths), default=0) <= MOST_NESTED:
        return False
    # brackets in texts may have been counted: once more without texts
    depths = array("b", _TEXT.sub(b"", text).translate(_BRACKETS, _NO_BRACKETS))
    return max(accumulate(depths), default=0) > MOST_NESTED


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no finite number")
