"""Encode texts as token ids, each with the characters that it covers.

A tokenizer first splits a text at special tokens and encodes the parts independently. So the prompt
of a pair need be encoded only once: a *tail* that starts with the last special token of the prompt
has the same tokens alone as at the end of a longer text. The code then checks that the tail's
tokens begin with the tokens of the prompt's end.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from steps.data.tokens.rendering import Span

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase


WORDS_REMEMBERED = 2**17
"""The number of words in a tokenizer's cache of merges, a few MB. The default of 10,000 fills up
quickly. The larger cache saves a tenth of the time and changes no tokens."""


@dataclass(frozen=True)
class Encoder:
    """A fast tokenizer that adds no special tokens and does not pad or truncate.

    Attributes:
        anchors: the ids of special tokens at which a text may be split, by their text.
        unknown: the id for text outside the vocabulary, which may stand for several characters.
        greedy: matches, at the end of a text, an added token that absorbs following white space.
    """

    core: "Tokenizer"
    anchors: dict[str, int]
    unknown: int | None
    greedy: re.Pattern[str]

    @cached_property
    def anchor_pattern(self) -> re.Pattern[str]:
        return re.compile(_any_of(self.anchors))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def pieces(self, texts: Sequence[str]) -> list["Pieces"]:
        """The token ids of each text, with the characters that each token covers."""
        encodings = self.core.encode_batch(list(texts), add_special_tokens=False)
        return [_pieces(encoding) for encoding in encodings]

    def framed(self, texts: Sequence[str], end: int) -> list[list[int]]:
        """The token ids of each text with the tokens that the tokenizer's post-processor adds, and
        with the token `end` if it is missing. No token is doubled at either edge."""
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=True)
        return [_framed(encoding.ids, encoding.special_tokens_mask, end) for encoding in encodings]

    def last_anchor(self, text: str) -> int | None:
        """Where the last anchor of a text starts."""
        starts = [match.start() for match in self.anchor_pattern.finditer(text)]
        return starts[-1] if starts else None


@dataclass(frozen=True)
class Pieces:
    """Token ids and the characters that each covers, without gaps between tokens."""

    ids: list[int]
    covers: list[Span]

    def mask(self, text: str, spans: Sequence[Span]) -> tuple[list[bool], int]:
        """Which tokens are completely within one of `spans`, and how many are only partly in one.

        A token that begins with white space before a span (as after a header that ends in a space)
        counts as within the span if it also contains other characters of it: it is the answer's
        first word.
        """
        mask, straddling = [False] * len(self.ids), 0
        for index, (start, end) in enumerate(self.covers):
            for first, last in spans:
                if start < last and first < end:
                    within = first <= start and end <= last
                    straddling += not within
                    begins = start < first and end <= last and not text[first:end].isspace()
                    mask[index] = within or (begins and text[start:first].isspace())
                    break
        return mask, straddling

    def until(self, character: int) -> int:
        """How many tokens end at or before a character."""
        count = 0
        while count < len(self.covers) and self.covers[count][1] <= character:
            count += 1
        return count


def encoder(tokenizer: "PreTrainedTokenizerBase") -> Encoder:
    """The encoder of a fast tokenizer, whose own truncation and padding are switched off."""
    core = cast("Tokenizer", tokenizer.backend_tokenizer)
    core.no_truncation()
    core.no_padding()
    if resize := getattr(core.model, "_resize_cache", None):
        resize(WORDS_REMEMBERED)
    anchors = {
        str(token): index
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.special
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
    }
    unknown = tokenizer.unk_token_id
    greedy = _any_of(str(t) for t in tokenizer.added_tokens_decoder.values() if t.rstrip)
    return Encoder(
        core,
        anchors,
        unknown if isinstance(unknown, int) else None,
        re.compile(rf"(?:{greedy})\s*\Z"),
    )


def _any_of(texts: Iterable[str]) -> str:
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return "|".join(map(re.escape, longest_first)) or r"(?!)"


def save_tokenizer(folder: Path, path: Path) -> None:
    """Write the tokenizer of a folder as one file, with which ids can be decoded."""
    from steps.data.tokens.rendering import load_bare_tokenizer

    path.parent.mkdir(parents=True, exist_ok=True)
    encoder(load_bare_tokenizer(folder)).core.save(str(path), pretty=False)


def _framed(ids: list[int], added: list[int], end: int) -> list[int]:
    """Token ids with the frame from the post-processor; `added` marks the frame's tokens."""
    own = [index for index, was_added in enumerate(added) if not was_added]
    first, last = (own[0], own[-1] + 1) if own else (len(ids), len(ids))
    before, after = ids[:first], ids[last:]
    if end not in after:
        after = [*after, end]
    while first < last and before and ids[first] == before[-1]:
        first += 1
    while first < last and ids[last - 1] == after[0]:
        last -= 1
    return [*before, *ids[first:last], *after]


def _pieces(encoding: "Encoding") -> Pieces:
    """The reported offsets, widened to all characters of the token.

    Byte-level tokenizers report a token without its leading white space. A character of several
    bytes may be spread over tokens that all report it.
    """
    covers: list[Span] = []
    reached = 0
    for start, end in encoding.offsets:
        covers.append((min(start, reached), end))
        reached = max(reached, end)
    return Pieces(encoding.ids, covers)
