"""Exact duplicates of rows, and overlap of rows with an evaluation set.

*Duplicates* have equal roles, texts and tool calls, after texts have been normalised: Unicode NFC,
no white space at the ends, plain line feeds. Case and indentation matter; scores and the names of
rows do not. Two pairs *contradict* each other if they are duplicates once the sides of one are
exchanged.

*Overlap* is a run of `n` words that a row shares with a text of the evaluation set (Brown et al.
2020, *Language Models are Few-Shot Learners*, appendix C, with n = 13). Words consist of letters,
with their marks (in Hindi, vowels are marks), and digits; case, punctuation and spacing are
ignored. In Chinese and Japanese, which have no spaces between words, each character counts as a
word. An evaluation text of fewer than `n` words matches only a message with exactly these words,
and only if it has at least `SHORTEST` words, or `n` letters in Thai, Lao, Burmese or Khmer, where
words are hard to separate.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from steps.data.rows.rows import Row, TextRow

NGRAM_WORDS = 13
SHORTEST = 4
"""Texts with fewer words ("yes", "what is it") do not indicate a common source."""

_HAN_AND_KANA = (
    "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_ASCII_WORD = re.compile(r"\w+")
_THAI_TO_KHMER = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
_MOST_OF_PLANE_1 = 0x1F000
"""All marks of letters lie below."""
_NOT_CONTENT = frozenset({"row", "score_chosen", "score_rejected", "weight", "template_kwargs"})


def content_key(row: Row) -> bytes:
    """A digest of 16 bytes; rows are duplicates if their digests are equal. That of a pair has one
    more byte, which says which of the two sides is the chosen one."""
    names = (field.name for field in fields(row) if field.name not in _NOT_CONTENT)
    content = {name: _written(getattr(row, name)) for name in names}
    sides = [content.pop(name) for name in ("chosen", "rejected") if name in content]
    order = bytes([sides != sorted(sides)]) if sides else b""
    written = "".join([*content, *content.values(), *sorted(sides)])
    return hashlib.blake2b(written.encode(), digest_size=16).digest() + order


def _written(value: Any) -> str:
    """A text that only equal values have, in whatever order their keys are; texts count in their
    normal form. It is several times faster than JSON."""
    if isinstance(value, str):
        text = normal_text(value)
        return f"{len(text)}:{text}"
    if isinstance(value, list | tuple):
        return f"[{''.join(map(_written, value))}]"
    if isinstance(value, dict):
        return f"{{{''.join(_written(key) + _written(value[key]) for key in sorted(value))}}}"
    return f"{value!r};"


def normal_text(text: str) -> str:
    """The normal form of a text; see the module."""
    composed = text if text.isascii() else unicodedata.normalize("NFC", text)
    return composed.replace("\r\n", "\n").strip()


def texts_of(row: Row) -> Iterator[str]:
    """The text of every message of `row`, or its text, in order; system prompts are left out."""
    for _, texts in named_texts(row):
        yield from texts


def named_texts(row: Row) -> Iterator[tuple[str, list[str]]]:
    """The names of the parts of `row`, each with its texts."""
    if isinstance(row, TextRow):
        yield "text", [row.text]
        return
    for name in _names(type(row)):
        value = getattr(row, name)
        if isinstance(value, tuple):
            yield name, [m["content"] for m in value if m["role"] != "system"]


@cache
def _names(kind: type[Row]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name != "tools")


class EvaluationSet:
    """The n-grams of texts that training data must not contain.

    Memory grows with the evaluation set (about 100 bytes per word), not with the compared rows.
    """

    def __init__(self, n: int = NGRAM_WORDS) -> None:
        if not isinstance(n, int) or n < SHORTEST:
            raise ValueError(f"n must be a whole number of words, at least {SHORTEST}: {n!r}")
        self.n = n
        self._grams: dict[bytes, str] = {}
        self._short: dict[bytes, str] = {}

    def add(self, row: str, texts: Iterable[str]) -> None:
        """Take in the texts of one evaluation row."""
        for text in texts:
            words = words_of(text)
            if len(words) >= self.n:
                for gram in self._ngrams(words):
                    self._grams.setdefault(_hash(gram), row)
            elif self._is_telling(words):
                self._short.setdefault(_hash(words), row)

    def overlap(self, texts: Iterable[str]) -> str | None:
        """A description of the words that the texts share with the set, or `None`."""
        for text in texts:
            words = words_of(text)
            if self._short and (row := self._short.get(_hash(words))) is not None:
                return f"the same message as evaluation row {row}: {' '.join(words)!r}"
            for gram in self._ngrams(words):
                if (row := self._grams.get(_hash(gram))) is not None:
                    return f"shares with evaluation row {row}: {' '.join(gram)!r}"
        return None

    def _is_telling(self, words: list[str]) -> bool:
        letters = len(_THAI_TO_KHMER.findall("".join(words)))
        return len(words) >= SHORTEST or letters >= self.n

    def _ngrams(self, words: list[str]) -> Iterator[list[str]]:
        return (words[start : start + self.n] for start in range(len(words) - self.n + 1))


def words_of(text: str) -> list[str]:
    """The words of a text, without regard to case."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    return _word().findall(unicodedata.normalize("NFKC", text).casefold())


@cache
def _word() -> re.Pattern[str]:
    """A word. In Thai, Lao, Burmese and Khmer a mark ends one: there are no spaces between words,
    and a whole sentence would be one."""
    marks = "".join(
        letter
        for letter in map(chr, range(_MOST_OF_PLANE_1))
        if unicodedata.category(letter) in ("Mn", "Mc") and not _THAI_TO_KHMER.match(letter)
    )
    letter = rf"[^\W{_HAN_AND_KANA}]"
    return re.compile(rf"[{_HAN_AND_KANA}]|{letter}+(?:[{marks}]+{letter}*)*")


def _hash(words: list[str]) -> bytes:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest()
