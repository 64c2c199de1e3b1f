"""Encode texts as token ids, each with the characters that it covers.

A tokenizer first splits a text at special tokens and encodes the parts independently. So the prompt
of a pair need be encoded only once: a *tail* that starts with the last special token of the prompt
has the same tokens alone as at the end of a longer text. The code then checks that the tail's
tokens begin with the tokens of the prompt's end.

Many tokenizers also split a text before every space that follows another character than white
space, and after a letter of ASCII before a line break or most punctuation, whatever stands around
them. The parts between such places, called *words* here, are encoded independently, so that the ids
of a word can be remembered. `_splits_into_words` says for which tokenizers this is so.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from steps.data.tokens.rendering import Span, any_of, load_bare_tokenizer
from steps.data.vocabularies import TOKENIZER, save_template

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase


WORDS_REMEMBERED = 2**17
"""The number of words in a tokenizer's cache of merges, a few MB. The default of 10,000 fills up
quickly. The larger cache saves a tenth of the time and changes no tokens. As many words with their
ids are remembered here, as long as they are short."""

_CHARACTERS_REMEMBERED = 2**21
_END = 12
"""The length of a text's end that shows what becomes of its last white space."""


@dataclass(frozen=True)
class Encoder:
    """A fast tokenizer that adds no special tokens and does not pad or truncate.

    Attributes:
        anchors: the ids of special tokens at which a text may be split, by their text.
        unknown: the id for text outside the vocabulary, which may stand for several characters.
        greedy: the added tokens that absorb following white space.
    """

    core: "Tokenizer"
    anchors: dict[str, int]
    unknown: int | None
    greedy: dict[str, int]

    @cached_property
    def anchor_pattern(self) -> re.Pattern[str]:
        return re.compile(any_of(self.anchors))

    @cached_property
    def greedy_pattern(self) -> re.Pattern[str]:
        """Matches a greedy token at the end of a text."""
        return re.compile(rf"(?:{any_of(self.greedy)})\s*\Z")

    def drops_end(self, text: str) -> bool:
        """Whether white space at the end of a text has no token, as after a normalizer that strips
        each part between special tokens."""
        end = text[-_END:]
        if not end[-1:].isspace():
            return False
        if end not in self._drops:
            if len(self._drops) > WORDS_REMEMBERED:
                self._drops.clear()
            whole, bare = self.whole_ids([end, end.rstrip()])
            self._drops[end] = whole == bare
        return self._drops[end]

    @cached_property
    def _drops(self) -> dict[str, bool]:
        return {}

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        return self.whole_ids(texts) if self._words is None else self._words.ids(texts)

    def whole_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, encoded in one piece."""
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    @cached_property
    def _words(self) -> "_Words | None":
        return _Words(self) if _splits_into_words(self.core) else None

    def pieces(self, texts: Sequence[str]) -> list["Pieces"]:
        """The token ids of each text, with the characters that each token covers."""
        encodings = self.core.encode_batch(list(texts), add_special_tokens=False)
        greedy = frozenset(self.greedy.values())
        return [_pieces(encoding, greedy) for encoding in encodings]

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
    """Token ids and the characters that each covers, without gaps between tokens; and the ids of
    tokens that absorb following white space."""

    ids: list[int]
    covers: list[Span]
    greedy: frozenset[int] = frozenset()

    def mask(self, text: str, spans: Sequence[Span]) -> tuple[list[bool], int]:
        """Which tokens are completely within one of `spans`, and how many are only partly in one.

        A token that begins with white space before a span (as after a header that ends in a space)
        counts as within the span if it also contains other characters of it: it is the answer's
        first word. So does an end of turn that absorbs the white space after it: its id is that of
        the end alone.
        """
        mask, straddling = [False] * len(self.ids), 0
        for index, (start, end) in enumerate(self.covers):
            for first, last in spans:
                if start < last and first < end:
                    absorbed = self.ids[index] in self.greedy and text[last:end].isspace()
                    within = first <= start and (end <= last or absorbed)
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
    greedy = {str(t): index for index, t in tokenizer.added_tokens_decoder.items() if t.rstrip}
    return Encoder(
        core,
        anchors,
        unknown if isinstance(unknown, int) else None,
        greedy,
    )


# --- words ---------------------------------------------------------------------------------------

_PUNCTUATION = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'
"""The punctuation of ASCII without the apostrophe, which some patterns join with letters."""


def _word(added: Iterable[str], *, by_kind: bool) -> re.Pattern[str]:
    """Matches a text up to the next place between words; none is within an `added` token.

    Words are cut only between characters of ASCII, of kinds that no added token has side by side.

    Args:
        by_kind: whether the tokenizer splits between letters, digits and punctuation, as GPT-2's
            does, and not only after letters.
    """
    pairs = [one + other for token in added for one, other in pairwise(token)]
    joined = "".join(pair for pair in pairs if re.search(r"\w", pair))
    signs = re.escape("".join(sign for sign in _PUNCTUATION if sign not in joined))
    digits = "" if re.search("[0-9]", joined) else "0-9"
    kinds = [kind for kind in ("A-Za-z", digits, signs) if kind][: None if by_kind else 1]
    after = rf"[ \n{''.join({*kinds, signs})}]"
    run = "|".join(f"[{kind}]++" for kind in kinds)
    others = rf"(?:[^\s{''.join(kinds)}]++|(?:{run})(?!{after}|\Z)|[^\S ]\s*+)*+(?:{run})?"
    return re.compile(rf" ?(?:{run})(?={after}|\Z)|(?!\Z)\s*+{others}")


_BYTES = {"type": "ByteLevel", "add_prefix_space": False}
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = _ENDING + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
QWEN = LLAMA.replace("{1,3}", "")
_GPT_OSS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    rf"{_ENDING}?|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+"
    rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_ENDING}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
    + _SPACES
)
_PATTERNS = {LLAMA, QWEN, _GPT_OSS}
"""Patterns of which every alternative has a space at its start or among white space alone, and
nothing of `_PUNCTUATION` after a letter, and none looks back: so a match ends before each space
that follows another character, and between such a letter and what follows, and begins there."""


class _Words:
    """The ids of texts, word by word."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        added = [t.content for t in encoder.core.get_added_tokens_decoder().values()]
        self._word = _word(added, by_kind=_described(encoder.core.pre_tokenizer)[-1]["use_regex"])
        self._known: dict[str, list[int]] = {}
        self._characters = 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        found = [self._word.findall(text) for text in texts]
        if self._characters > _CHARACTERS_REMEMBERED or len(self._known) > WORDS_REMEMBERED:
            self._known.clear()
            self._characters = 0
        known = self._known
        new = list(set().union(*found).difference(known))
        known.update(zip(new, self.encoder.whole_ids(new), strict=True))
        self._characters += sum(map(len, new))
        return [list(chain.from_iterable(map(known.__getitem__, words))) for words in found]


def _splits_into_words(core: "Tokenizer") -> bool:
    """Whether a tokenizer encodes words independently.

    No added token may have white space in it, or depend on what stands beside it. The normalizer
    may only compose characters, which a space is never part of. The model sees one match of the
    pattern at a time, if it is a BPE model without dropout.
    """
    from tokenizers.models import BPE

    model, added = core.model, core.get_added_tokens_decoder().values()
    if not isinstance(model, BPE) or model.dropout:
        return False
    if any(t.lstrip or t.rstrip or t.single_word or re.search(r"\s", t.content) for t in added):
        return False
    normal, splits = _described(core.normalizer), _described(core.pre_tokenizer)
    if not all(part == {"type": "NFC"} for part in normal) or not splits:
        return False
    *before, last = splits
    if not _BYTES.items() <= last.items():
        return False
    if last["use_regex"]:
        return all(part["type"] == "Digits" for part in before)
    return len(before) == 1 and any(
        before[0] == SPLIT | {"pattern": {"Regex": p}} for p in _PATTERNS
    )


def _described(part: Any) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, one for each of its parts."""
    if part is None:
        return []
    described = json.loads(part.__getstate__())
    return described.get("pretokenizers", described.get("normalizers", [described]))


def save_tokenizer(folder: Path, output: Path, *, renders: bool = True) -> None:
    """Write the tokenizer of a folder as one file, with which ids can be decoded; and its chat
    template as another, if that has rendered them."""
    tokenizer = load_bare_tokenizer(folder)
    output.mkdir(parents=True, exist_ok=True)
    encoder(tokenizer).core.save(str(output / TOKENIZER), pretty=False)
    if renders:
        save_template(tokenizer, output)


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


def _pieces(encoding: "Encoding", greedy: frozenset[int]) -> Pieces:
    """The reported offsets, widened to all characters of the token.

    Byte-level tokenizers report a token without its leading white space. A character of several
    bytes may be spread over tokens that all report it.
    """
    covers: list[Span] = []
    reached = 0
    for start, end in encoding.offsets:
        covers.append((min(start, reached), end))
        reached = max(reached, end)
    return Pieces(encoding.ids, covers, greedy)
