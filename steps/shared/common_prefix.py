"""The common beginning of two sequences."""

from collections.abc import Sequence
from typing import Any


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items, or characters, two sequences share at their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
