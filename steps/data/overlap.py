"""Rows that say the same: exact duplicates, and overlap with an evaluation set.

*Duplicates* have equal roles, texts and tool calls once texts are normalised (Unicode NFKC, runs of
white space as one space); case counts, scores and labels of rows do not.

*Overlap* is a run of `n` words that a row shares with a text of the evaluation set (Brown et al.
2020, *Language Models are Few-Shot Learners*, appendix C, with n = 13). Words are letters and
digits without regard to case; punctuation and spacing are nothing. An evaluation text of fewer
than `n` words matches a message that has exactly its words, if it has at least `SHORTEST` of them.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from steps.data.rows import Message, Row, TextRow
from steps.data.tables import to_json, to_record

NGRAM_WORDS = 13
SHORTEST = 4
"""Fewer words ("yes", "what is it") say nothing about where they come from."""

_WORD = re.compile(r"\w+")
_NOT_CONTENT = frozenset({"row", "score_chosen", "score_rejected", "template_kwargs"})


def content_key(row: Row) -> bytes:
    """16 bytes that rows share when they say the same."""
    record = {k: _normal(v) for k, v in to_record(row).items() if k not in _NOT_CONTENT}
    return hashlib.blake2b(to_json(record).encode(), digest_size=16).digest()


def texts_of(row: Row) -> Iterator[str]:
    """The text of every message of `row`, or its text, in order; system prompts are left out."""
    if isinstance(row, TextRow):
        yield row.text
        return
    for field in fields(row):
        value = getattr(row, field.name)
        if isinstance(value, tuple) and field.name != "tools":
            yield from _said(value)


class EvaluationSet:
    """The n-grams of texts that training data must not hold.

    Memory grows with the evaluation set (some 100 bytes a word), not with what is compared.
    """

    def __init__(self, n: int = NGRAM_WORDS) -> None:
        if n < SHORTEST:
            raise ValueError(f"an n-gram must have at least {SHORTEST} words, got {n}")
        self.n = n
        self._grams: dict[bytes, str] = {}
        self._short: dict[bytes, str] = {}

    def add(self, row: str, texts: Iterable[str]) -> None:
        """Take in the texts of one evaluation row."""
        for text in texts:
            words = _words(text)
            if len(words) >= self.n:
                for gram in self._ngrams(words):
                    self._grams.setdefault(_hash(gram), row)
            elif len(words) >= SHORTEST:
                self._short.setdefault(_hash(words), row)

    def overlap(self, texts: Iterable[str]) -> str | None:
        """What the texts share with the set, in words, or `None` if that is nothing."""
        for text in texts:
            words = _words(text)
            if self._short and (row := self._short.get(_hash(words))) is not None:
                return f"the same message as evaluation row {row}: {' '.join(words)!r}"
            for gram in self._ngrams(words):
                if (row := self._grams.get(_hash(gram))) is not None:
                    return f"shares with evaluation row {row}: {' '.join(gram)!r}"
        return None

    def _ngrams(self, words: list[str]) -> Iterator[list[str]]:
        return (words[start : start + self.n] for start in range(len(words) - self.n + 1))


def _said(messages: Iterable[Message]) -> Iterator[str]:
    return (message["content"] for message in messages if message["role"] != "system")


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _hash(words: list[str]) -> bytes:
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).digest()


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(unicodedata.normalize("NFKC", value).split())
    if isinstance(value, list):
        return [_normal(item) for item in value]
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    return value
