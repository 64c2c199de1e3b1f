"""Tokenise plain texts. All tokens are trained on except the first, which nothing predicts.

The tokenizer's own post-processor frames a text (it may write a BOS), and the text ends with one
end-of-sequence token. If the text itself contains such a token at its edge, it is not doubled.

By default, a text over the limit is split into *pieces*, consecutive rows. Each begins with the
last token of the piece before, as context, so that every token of the text but its first is trained
on exactly once. The rows of the text `doc` are called `doc#1`, `doc#2` and so on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import TextRow
from steps.data.tokens.config import LongText, TextConfig
from steps.data.tokens.encoding import Encoder, encoder
from steps.data.tokens.lengths import RowTooLong
from steps.data.tokens.tokenizing import Findings, Tokens, in_one_batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TokenizedText:
    """A text as one or several rows of tokens, in order."""

    row: str
    pieces: tuple[Tokens, ...]
    findings: Findings

    def named_pieces(self) -> list[tuple[str, Tokens]]:
        """The pieces, each with the label of its row."""
        if len(self.pieces) == 1:
            return [(self.row, self.pieces[0])]
        return [(f"{self.row}#{n}", piece) for n, piece in enumerate(self.pieces, start=1)]


@dataclass(frozen=True)
class TextTokenization:
    """A tokenizer, its end-of-sequence token, and the settings."""

    encoder: Encoder
    end: int
    config: TextConfig


def text_tokenization(
    tokenizer: "PreTrainedTokenizerBase", config: TextConfig = TextConfig()
) -> TextTokenization:
    """Make a tokenizer ready; it needs no chat template."""
    end = tokenizer.eos_token_id
    assert isinstance(end, int)  # `rendering.load_tokenizer` refuses one without
    return TextTokenization(encoder(tokenizer), end, config)


def tokenize_texts(
    tokenization: TextTokenization, rows: Sequence[TextRow]
) -> list[TokenizedText | MalformedRow]:
    """For every text, in order, its tokens, or the reason why it is dropped.

    Raises:
        RowTooLong: a text exceeds the limit, and the policy is `error`.
    """

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return tokenization.encoder.framed(texts, tokenization.end)

    def finish(row: TextRow, text: str, ids: list[int]) -> TokenizedText:
        made = _within_limit(tokenization.config, row.row, ids)
        spelled = specials_within(ids) > of_frame
        return replace(made, findings=replace(made.findings, spelled=spelled))

    def specials_within(ids: list[int]) -> int:
        return sum(index in special for index in ids[1:-1])

    special = set(tokenization.encoder.anchors.values()) - {tokenization.encoder.unknown}
    (frame,) = encode([""])
    of_frame = specials_within(frame)  # GLM's tokenizer begins a text with two
    return in_one_batch(rows, lambda row: row.text, encode, finish)


def _within_limit(config: TextConfig, row: str, ids: list[int]) -> TokenizedText:
    if len(ids) < 2:
        raise MalformedRow("no trained token", "the text has no token of its own")
    limit, cut = config.max_length, len(ids) > config.max_length
    kept, what = [ids], f"{len(ids)} tokens, over max_length={limit}"
    match config.too_long if cut else None:
        case LongText.drop:
            raise MalformedRow("too long", what)
        case LongText.error:
            raise RowTooLong(f"row {row}: the text has {what}")
        case LongText.keep_start:
            kept = [ids[:limit]]
        case LongText.keep_end:
            kept = [ids[-limit:]]
        case LongText.pieces:
            kept = [ids[at : at + limit] for at in range(0, len(ids) - 1, limit - 1)]
    lost = cut and config.too_long != LongText.pieces
    pieces = (Tokens(piece, [False] + [True] * (len(piece) - 1)) for piece in kept)
    return TokenizedText(row, tuple(pieces), Findings(response_cut=lost))
