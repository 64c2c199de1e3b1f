"""Checks values that are read from a store, before anything is done with them.

A store is not trusted. Whoever can write to a bucket can write any name and any number into it.
What Temper does with them (join them to a path, delete, download, import) happens with the rights
of its user. So every name has a known form, which is defined only here, and every JSON text is read
by :func:`parse_json`. A value of another form is damaged, or was not written by Temper.
"""

import json
import re
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NoReturn

MOST_NESTED = 200
"""The deepest nesting of brackets in JSON; a deeper text could exhaust the reader's stack."""
LARGEST = 2**63 - 1
"""The largest valid size or counter."""
LATEST = 1e11
"""The largest valid time, in seconds."""

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NO_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|\0")
"""An empty component, ``.`` or ``..``, also at the ends."""
_NO_FILE = re.compile(rf"{_NO_PATH.pattern}|(?:^|[/\\])\.\.(?:[/\\]|\Z)")
"""Also with the separators of other systems."""
_LONGEST_FILE = 4096
_LONGEST_STEP = 100
_BRACKETS = bytes.maketrans(b"[{]}", b"\1\1\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def is_step(name: object) -> bool:
    """Whether it is a valid step name: the name of a function."""
    return isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST_STEP


def _form(pattern: str) -> Callable[[object], bool]:
    form = re.compile(pattern)
    return lambda name: isinstance(name, str) and form.fullmatch(name) is not None


is_key = _form("[0-9a-f]{32}")
"""Whether it is a valid key or artifact digest."""
is_blake3 = _form("[0-9a-f]{64}")
"""Whether it is a BLAKE3 digest of a file, which also names copies of scratch files."""
is_attempt = _form("[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Whether it is a valid name of an attempt or a run: one component of a path."""

is_tag = _form("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Whether it is a valid name of a tag."""
is_time = _form(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
"""Whether it is a valid time in words, in UTC."""


def is_file(name: object) -> bool:
    """Whether it is a valid name of a file or part: a path that stays below its folder."""
    return isinstance(name, str) and len(name) <= _LONGEST_FILE and not _NO_FILE.search(name)


def is_path(name: object) -> bool:
    """Whether it is a valid name of a file for this machine alone, as of a copy of scratch: a path
    that stays below its folder, where a backslash is a letter like others."""
    return isinstance(name, str) and len(name) <= _LONGEST_FILE and not _NO_PATH.search(name)


def is_reference(name: object) -> bool:
    """Whether it has the form ``module:name``; whether that exists is not checked."""
    return isinstance(name, str) and len(name) <= 500 and _REFERENCE.fullmatch(name) is not None


def is_count(value: object, most: int = LARGEST) -> bool:
    """Whether it is an integer of at least 0; ``true`` is not."""
    return type(value) is int and 0 <= value <= most


def is_seconds(value: object) -> bool:
    """Whether it is a valid time or duration: a finite number of at least 0."""
    return type(value) in (int, float) and 0 <= value <= LATEST  # type: ignore[operator]


def parse_json(data: bytes | str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: the text is no JSON, is nested too deeply, or holds a number that is not finite.
    """
    text = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    # brackets inside strings may have been counted: then count again without strings
    if _depth(text) > MOST_NESTED and _depth(_TEXT.sub(b"", text)) > MOST_NESTED:
        raise ValueError(f"it is nested more than {MOST_NESTED} deep")
    try:
        return json.loads(data, parse_float=_finite, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _depth(text: bytes) -> int:
    steps = array("b", text.translate(_BRACKETS, _NO_BRACKETS))
    return max(accumulate(steps), default=0)


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text[:40]} is no finite number")
