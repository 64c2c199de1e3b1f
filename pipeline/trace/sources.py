"""Reads the statements of source files, and keeps them among the caches of the user."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any

import blake3

from pipeline.base import user_cache
from pipeline.trace.source_parts import Part, Source, Statement, read_source


def parsed(content: bytes) -> Source:
    """The statements of a source file. Raise `SyntaxError` or `ValueError` if it is not valid."""
    place = _place(digest_of(content))
    return _known(place) or _kept(place, content)


def known(digest: str) -> Source | None:
    """The statements of a source file that was read before, by its digest."""
    return _known(_place(digest))


def keep(content: bytes) -> None:
    """Make sure that :func:`known` finds the statements of a source file, whatever becomes of the
    file; do nothing if it is not valid."""
    place = _place(digest_of(content))
    with suppress(SyntaxError, ValueError, RecursionError):
        if not place.exists():
            _kept(place, content)


def digest_of(content: bytes) -> str:
    return blake3.blake3(content).hexdigest()


def _place(digest: str) -> Path:
    return user_cache.place("statements", _ABOUT + digest.encode())


@lru_cache(4096)
def _found(place: Path) -> Source:
    return _restored(user_cache.load(place))


def _known(place: Path) -> Source | None:
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        return _found(place)
    return None


def _kept(place: Path, content: bytes) -> Source:
    made = read_source(content)
    user_cache.save(place, json.loads(json.dumps(astuple(made), default=sorted)))
    return made


def _restored(data: Any) -> Source:
    statements, bindings, aliases, whole, text, acting = data
    return Source(
        tuple(_statement(*entry) for entry in statements),
        bindings,
        {name: tuple(tuple(at) for at in places) for name, places in aliases.items()},
        _part(whole),
        text,
        acting,
    )


def _statement(
    part: Any, binds: Any, has_own: bool, has_hints: bool, functions: Mapping[str, Any]
) -> Statement:
    inner = {name: _part(entry) for name, entry in functions.items()}
    names = None if binds is None else tuple(binds)
    return Statement(_part(part), names, has_own, has_hints, inner)


def _part(data: Any) -> Part:
    digest, words, values, imports, reflection, look, origins, line = data
    return Part(
        digest,
        frozenset(words),
        frozenset(values),
        tuple(map(tuple, imports)),
        frozenset(reflection),
        look,
        tuple(map(tuple, origins)),
        line,
    )


_ABOUT = json.dumps(
    [
        user_cache.version_of(
            "looks.py", "source_parts.py", "sources.py", folder=Path(__file__).parent
        ),
        sys.version,
    ]
).encode()
