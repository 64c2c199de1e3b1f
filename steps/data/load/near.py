"""Rows that say nearly the same: MinHash (Broder 1997) and bands of it, by `datasketch`.

A row is the set of its runs of words, each with the part of the row that it stands in, so that a
pair with its sides exchanged is another row. What two sets have in common is their *similarity*,
the runs of both over the runs of either (Jaccard). It is estimated from 128 minima, to within some
0.04, and only of rows that share a band of minima, as most that are similar enough do.

Rows are compared with those that were kept before them, and only with rows that have the same
images and the same label. The minima lie in the resume point: on disk, and after a kill as before.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from steps.data.images.finding import images_of
from steps.data.load.overlap import words_of
from steps.data.rows.rows import Row, TextRow
from steps.data.work.resume_point import ResumePoint

_MINIMA, _SEED, _SCHEME = 128, 1, "affine32"
_BYTES = 4
"""Of a minimum."""
_SIGNATURE, _BAND = "near signature", "near band"


@dataclass(frozen=True)
class NearDuplicates:
    """Which rows are nearly the same.

    Args:
        similarity: from which share of common runs of words on, 0.3 to 0.95.
        words: the length of a run.
    """

    needs_packages: ClassVar[tuple[str, ...]] = ("datasketch",)

    similarity: float = 0.8
    words: int = 3

    def __post_init__(self) -> None:
        if not 0.3 <= self.similarity <= 0.95:
            raise ValueError(
                f"similarity must be from 0.3 to 0.95, got {self.similarity}; rows that are equal "
                "are left out by deduplicate=true"
            )
        if self.words < 1:
            raise ValueError(f"words must be at least 1, got {self.words}")


class NearRows:
    """The rows kept so far, by what they say."""

    def __init__(self, wanted: NearDuplicates, resumed: ResumePoint) -> None:
        from datasketch import MinHashLSH

        # Rows that share a band are compared, so one too many costs little, and one too few a row.
        plan: Any = MinHashLSH(wanted.similarity, _MINIMA, weights=(0.1, 0.9))
        width = plan.r * _BYTES
        self._cuts = [slice(start, start + width) for start in range(0, plan.b * width, width)]
        self._wanted, self._resumed = wanted, resumed

    def like(self, row: Row, number: int) -> str | None:
        """What `row` is nearly the same as, in words; if nothing, it is kept under its `number`."""
        if not (runs := sorted(set(_runs(row, self._wanted.words)))):
            return None
        minima, scope = _minima(runs), _scope(row)
        bands = [_band(scope, index, minima[cut]) for index, cut in enumerate(self._cuts)]
        found = {key for band in bands for key in self._resumed.noted_after(_BAND, band)}
        for key in sorted(found):
            noted = self._resumed.noted(_SIGNATURE, key)
            shared = _share(minima, noted[: len(minima)])
            if shared >= self._wanted.similarity:
                label = noted[len(minima) :].decode()
                return f"{shared:.2f} of the runs of words are those of row {label}"
        self._keep(number, minima + row.row.encode(), bands)
        return None

    def _keep(self, number: int, noted: bytes, bands: list[bytes]) -> None:
        key = number.to_bytes(8, "big")
        self._resumed.note(_SIGNATURE, key, noted)
        for band in bands:
            self._resumed.note(_BAND, band + key)


def _minima(runs: list[bytes]) -> bytes:
    from datasketch import MinHash

    made: Any = MinHash(_MINIMA, _SEED, scheme=_SCHEME)
    made.update_batch(runs)
    return made.hashvalues.astype("<u4").tobytes()


def _share(one: bytes, other: bytes) -> float:
    """The share of minima that two rows have in common: an estimate of their similarity."""
    values = (memoryview(minima).cast("I") for minima in (one, other))
    return sum(a == b for a, b in zip(*values, strict=True)) / _MINIMA


def _band(scope: bytes, index: int, minima: bytes) -> bytes:
    key = scope + index.to_bytes(2, "big") + minima
    return hashlib.blake2b(key, digest_size=16).digest()


def _scope(row: Row) -> bytes:
    """What rows must have in common besides words."""
    images = [image["sha256"] for image in images_of(getattr(row, "prompt", ()))]
    held = [images, getattr(row, "label", None), getattr(row, "answer", None)]
    return hashlib.blake2b(json.dumps(held).encode(), digest_size=16).digest()


def _runs(row: Row, words: int) -> Iterator[bytes]:
    """The runs of words of a row; of a text that has fewer, all of them."""
    for part, text in _texts(row):
        found = words_of(text)
        for start in range(max(1, len(found) - words + 1) if found else 0):
            yield "\0".join([part, *found[start : start + words]]).encode()


def _texts(row: Row) -> Iterator[tuple[str, str]]:
    """Every text of a row but system prompts, with the name of the part that it stands in."""
    if isinstance(row, TextRow):
        yield "text", row.text
        return
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, tuple) and field.name != "tools":
            said = (m for m in value if m["role"] != "system")
            yield from ((field.name, message["content"]) for message in said)
