"""Finds rows with nearly the same text by MinHash (Broder 1997) and bands of it, with `datasketch`.

A row counts as the set of its runs of words. Each run is labelled with the part of the row that it
is in, so a pair with its responses exchanged is another row. The *similarity* of two rows is the
number of runs in both divided by the number of runs in either (Jaccard). It is estimated from 128
minima, with an error of about 0.04. Only rows that share a band of minima are compared; nearly all
rows that are similar enough do.

A row is compared with the rows that were kept before it, and only with those that have the same
images and the same label. The minima are stored in the resume point, so a run that was killed goes
on with them.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from steps.data.images.finding import images_of
from steps.data.load.overlap import named_texts, words_of
from steps.data.rows.rows import Row
from steps.data.work.resume_point import ResumePoint

_MINIMA, _SEED, _SCHEME = 128, 1, "affine32"
_BYTES = 4
"""Of a minimum."""
_SIGNATURE, _BAND = "near signature", "near band"


@dataclass(frozen=True)
class NearDuplicates:
    """The setting for rows with nearly the same text.

    Args:
        similarity: the least share of common runs of words, 0.3 to 0.95, at which a row is dropped.
        words: the length of a run, in words.
    """

    needs_packages: ClassVar[tuple[str, ...]] = ("datasketch",)

    similarity: float = 0.8
    words: int = 3

    def __post_init__(self) -> None:
        if not 0.3 <= self.similarity <= 0.95:
            raise ValueError(
                f"similarity must be from 0.3 to 0.95, got {self.similarity}; rows that are equal "
                "are left out by duplicates=drop"
            )
        if self.words < 1:
            raise ValueError(f"words must be at least 1, got {self.words}")


class NearRows:
    """The rows kept so far, by their runs of words."""

    def __init__(self, wanted: NearDuplicates, resumed: ResumePoint) -> None:
        from datasketch import MinHashLSH

        # Rows that share a band are compared, so one too many costs little, and one too few a row.
        plan: Any = MinHashLSH(wanted.similarity, _MINIMA, weights=(0.1, 0.9))
        width = plan.r * _BYTES
        self._cuts = [slice(start, start + width) for start in range(0, plan.b * width, width)]
        self._wanted, self._resumed = wanted, resumed

    def like(self, row: Row, name: str, number: int) -> str | None:
        """What `row` nearly repeats, for a notice. If there is nothing, the row is kept under its
        label `name` as number `number`."""
        if not (runs := sorted(set(_runs(row, self._wanted.words)))):
            return None
        minima, scope = _minima(runs), _scope(row)
        bands = [_band(scope, index, minima[cut]) for index, cut in enumerate(self._cuts)]
        found = {key for band in bands for key in self._resumed.noted_after(_BAND, band)}
        for key in sorted(found):
            noted = self._resumed.noted(_SIGNATURE, key) or b""
            shared = _share(minima, noted[: len(minima)])
            if shared >= self._wanted.similarity:
                label = noted[len(minima) :].decode()
                return f"{shared:.2f} of the runs of words are those of row {label}"
        self._keep(number, minima + name.encode(), bands)
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
    """The share of minima that two rows have in common, which estimates their similarity."""
    values = (memoryview(minima).cast("I") for minima in (one, other))
    return sum(a == b for a, b in zip(*values, strict=True)) / _MINIMA


def _band(scope: bytes, index: int, minima: bytes) -> bytes:
    key = scope + index.to_bytes(2, "big") + minima
    return hashlib.blake2b(key, digest_size=16).digest()


def _scope(row: Row) -> bytes:
    """What must be equal in two rows besides words."""
    images = [image["sha256"] for image in images_of(getattr(row, "prompt", ()))]
    held = [images, getattr(row, "label", None), getattr(row, "answer", None)]
    return hashlib.blake2b(json.dumps(held).encode(), digest_size=16).digest()


def _runs(row: Row, words: int) -> Iterator[bytes]:
    """The runs of words of a row; if a text has fewer words than a run, all of them are one run."""
    for part, texts in named_texts(row):
        for found in map(words_of, texts):
            for start in range(max(1, len(found) - words + 1) if found else 0):
                yield "\0".join([part, *found[start : start + words]]).encode()
