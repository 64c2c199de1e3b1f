"""The texts of tokens while they are drawn, and of each token alone, with its place in the text."""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from steps.generation.sampling import decoded

LEAST = -9999.0
"""Stands for the log-probability of an impossible token, as at OpenAI: JSON has no infinity."""
_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""A token that stands for a byte. If bytes in a row are no UTF-8, each becomes U+FFFD."""
_BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BEFORE = 4
"""How many of the tokens before it may change a token's text."""


class Pieces:
    """The text of tokens, piece by piece. All pieces together are the text of all tokens, so a
    piece is held back while later tokens can change it.

    Args:
        before: tokens before the first one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        self._tokenizer, self._before = tokenizer, list(before)
        self._held: list[int] = []

    def add(self, token: int) -> str:
        """The text that is known with this token."""
        self._held.append(token)
        piece, name = self._new_text(), str(self._tokenizer.convert_ids_to_tokens(token))
        # There may be a byte of a character before a token without text.
        is_open = _BYTE.fullmatch(name) or not decoded(self._tokenizer, [token])
        if is_open or piece.endswith("\ufffd"):
            return ""
        if piece:
            self._before, self._held = self._held, []
        return piece

    def end(self) -> str:
        """What is held back, after the last token."""
        return self._new_text()

    def _new_text(self) -> str:
        whole = decoded(self._tokenizer, [*self._before, *self._held])
        return whole[len(decoded(self._tokenizer, self._before)) :]


@dataclass(frozen=True)
class Token:
    """A token in a text.

    share: its part of the text in UTF-8; that of a special token may be empty.
    place: where the text of the token begins, or the character of which it is a part.
    logp: the model's log-probability at temperature 1; None for the first token of all.
    likeliest: the likeliest tokens in its place, of which places and likeliest are not set.
    """

    id: int
    name: str
    share: bytes
    logp: float | None = None
    place: int = 0
    likeliest: Sequence["Token"] = ()


class Reader:
    """Finds the name and place of one token after the other.

    Args:
        before: tokens before the first one.
        start: where the text of the first one begins.
        special: whether the text has special tokens.
        length: of the text, in which no token begins later.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        before: Sequence[int] = (),
        start: int = 0,
        special: bool = False,
        length: int = 2**31,
    ) -> None:
        self._tokenizer, self._special, self._length = tokenizer, special, length
        self._before = list(before)[-_BEFORE:]
        self._place, self._utf8 = start, getincrementaldecoder("utf-8")("replace")

    def read(self, token: int, logits: Tensor | None, top: int) -> Token:
        """The next token, with as many of the likeliest in its place. `logits` are [V]."""
        logp, likeliest = None, list[Token]()
        if logits is not None:
            logps = logits.float().log_softmax(-1)
            if logps.isnan().any():
                raise FloatingPointError("the model's logits are not numbers; look at its training")
            logps = logps.clamp(min=LEAST)
            logp, best = logps[token].item(), logps.topk(min(top, len(logps)))
            ranked = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            likeliest = [self._named(other, its_logp) for other, its_logp in ranked]
        found = self._named(token, logp)
        if _is_text(found.share):  # bytes before it are no character then
            self._place += len(self._utf8.decode(b"", final=True))
        place = min(self._place, self._length)
        self._place += len(self._utf8.decode(found.share))
        self._before = [*self._before, token][-_BEFORE:]
        return Token(token, found.name, found.share, found.logp, place, likeliest)

    def _named(self, token: int, logp: float | None) -> Token:
        share = self._share(token)
        named = share or text_of(self._tokenizer, [token]).encode()
        parts = "".join(f"\\x{byte:02x}" for byte in named)
        name = named.decode() if _is_text(named) or not named else f"bytes:{parts}"
        return Token(token, name, share, logp)

    def _share(self, token: int) -> bytes:
        name = str(self._tokenizer.convert_ids_to_tokens(token))
        if byte := _BYTE.fullmatch(name):
            return bytes.fromhex(byte[1])
        if "\ufffd" in text_of(self._tokenizer, [token]) and set(name) <= _BYTE_OF.keys():
            return bytes(_BYTE_OF[letter] for letter in name)  # a part of a character
        decode = text_of if self._special else decoded
        known = decode(self._tokenizer, self._before)
        return decode(self._tokenizer, [*self._before, token])[len(known) :].encode()


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, with special tokens."""
    return decoded(tokenizer, ids, special=True)


def _is_text(share: bytes) -> bool:
    try:
        return bool(share.decode())
    except UnicodeDecodeError:
        return False
