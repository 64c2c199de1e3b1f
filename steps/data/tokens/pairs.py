"""Tokenise preference pairs, with masks, in batches.

A pair consists of `prompt_ids`, the tokens that both sides share before the first trained token,
and the rest of each side. A token that the tokenizer merged across the edge of an assistant's text
belongs to its side.

Both sides of a pair are rendered completely, but their common prompt is encoded once.
:mod:`steps.data.tokens.encoding` explains why this gives the same tokens as encoding each side
completely.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steps.data.images.finding import images_of
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Messages, PreferenceRow
from steps.data.tokens.config import TrainOn
from steps.data.tokens.encoding import Encoder, Pieces
from steps.data.tokens.rendering import Chat
from steps.data.tokens.tokenizing import (
    Answered,
    Findings,
    Tokenization,
    Tokens,
    check_words,
    fitted,
    headers_of,
    ids_and_masks,
    in_one_batch,
    render_answered,
    tokens_id,
)
from steps.shared.common_prefix import shared_length


@dataclass(frozen=True)
class TokenizedPair:
    """A pair as tokens. A side's full sequence is the prompt's tokens and then its own.

    images: the sha256 of each image that the prompt has placeholders for, in order.
    """

    row: str
    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    findings: Findings
    images: tuple[str, ...] = ()

    @property
    def pair_id(self) -> str:
        """What pairs share that have equal tokens, equal masks of their sides, and equal images."""
        sides = ((side.ids, side.mask) for side in (self.chosen, self.rejected))
        found = tokens_id(self.prompt.ids, *ids_and_masks(*sides))
        if self.images:
            found = hashlib.sha256(" ".join([found, *self.images]).encode()).hexdigest()[:16]
        return found

    @property
    def shared_prefix(self) -> int:
        """The number of tokens with which both full sequences start."""
        return len(self.prompt) + shared_length(self.chosen.ids, self.rejected.ids)


def tokenize_pairs(
    tokenization: Tokenization, rows: Sequence[PreferenceRow]
) -> list[TokenizedPair | MalformedRow]:
    """For every row, in order, the tokenised pair, or the reason why the row is dropped.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """

    def render_row(row: PreferenceRow) -> _Sides:
        prompt = Chat(row.prompt, row.tools, row.template_kwargs)
        headers = headers_of(tokenization, prompt)
        chosen, rejected = row.chosen, row.rejected
        return (
            render_answered(tokenization, prompt, chosen, headers, _unlike(chosen, rejected)),
            render_answered(tokenization, prompt, rejected, headers, _unlike(rejected, chosen)),
        )

    def encode(pairs: Sequence[_Sides]) -> list[_PairIds]:
        return _encode_pairs(tokenization.encoder, pairs)

    def finish(row: PreferenceRow, text: _Sides, ids: _PairIds) -> TokenizedPair:
        return _finish_pair(tokenization, row, text, ids)

    return in_one_batch(rows, render_row, encode, finish)


def _unlike(side: Messages, other: Messages) -> list[int]:
    """The indices of a side's messages that differ from the other side's at the same place."""
    same = zip(side, other, strict=False)
    shared = {index for index, (own, theirs) in enumerate(same) if own == theirs}
    return [index for index in range(len(side)) if index not in shared]


_Sides = tuple[Answered, Answered]
"""Chosen and rejected as text."""


# --- tokens --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PairIds:
    """A pair as tokens, before limits of length are applied."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    merged: int


def _encode_pairs(encoder: Encoder, pairs: Sequence[_Sides]) -> list[_PairIds]:
    """Encode all pairs in few calls of the tokenizer: common prompts, tails, and the pairs that
    must be encoded completely. One pair of every batch is also encoded completely, as a check that
    the tokenizer splits at special tokens, and words, as assumed."""
    plans = [_tail_start(encoder, chosen, rejected) for chosen, rejected in pairs]
    planned = [(pair, at) for pair, at in zip(pairs, plans, strict=True) if at is not None]
    prompts = iter(encoder.ids([chosen.before for (chosen, _), _ in planned]))
    tails = iter(encoder.ids([side.text[at:] for pair, at in planned for side in pair]))
    encoded = [
        None
        if at is None
        else _join(encoder, chosen.text[at:], next(prompts), (next(tails), next(tails)))
        for (chosen, _), at in zip(pairs, plans, strict=True)
    ]
    if not _as_whole(encoder, pairs, encoded):
        encoded = [None] * len(pairs)
    left = [pair for pair, ids in zip(pairs, encoded, strict=True) if ids is None]
    whole = iter(encoder.pieces([side.text for pair in left for side in pair]))
    return [
        ids or _divide(pair, (next(whole), next(whole)))
        for pair, ids in zip(pairs, encoded, strict=True)
    ]


def _tail_start(encoder: Encoder, chosen: Answered, rejected: Answered) -> int | None:
    """Where the tails of a pair begin: at the last anchor of their common text; None if the pair
    must be encoded completely."""
    simple = chosen.is_one_span and rejected.is_one_span and not chosen.own
    if not simple or chosen.before != rejected.before:
        return None
    starts = (side.text[len(side.before) :][:1] for side in (chosen, rejected))
    if any(map(str.isspace, starts)) and encoder.greedy_pattern.search(chosen.before):
        return None  # a token of the prompt reaches into a response
    if encoder.drops_end(chosen.before):
        return None  # the prompt alone would lack a token of the header
    return encoder.last_anchor(chosen.before)


def _join(
    encoder: Encoder, tail: str, prompt: list[int], tails: tuple[list[int], list[int]]
) -> _PairIds | None:
    """The pair, if the tokens of both sides begin with the prompt's tokens; else None."""
    match = encoder.anchor_pattern.match(tail)
    assert match is not None
    anchor = encoder.anchors[match.group()]
    if anchor not in prompt or prompt[-1] == encoder.unknown:
        return None
    start = len(prompt) - 1 - prompt[::-1].index(anchor)
    end = len(prompt) - start
    if any(ids[:end] != prompt[start:] or len(ids) == end for ids in tails):
        return None
    sides = (Tokens(ids[end:], [True] * (len(ids) - end)) for ids in tails)
    return _PairIds(Tokens(prompt, [False] * len(prompt)), *sides, merged=0)


def _as_whole(
    encoder: Encoder, pairs: Sequence[_Sides], encoded: Sequence[_PairIds | None]
) -> bool:
    """Whether the first joined pair has the same tokens as its sides encoded completely."""
    for sides, ids in zip(pairs, encoded, strict=True):
        if ids is not None:
            joined = [ids.prompt.ids + ids.chosen.ids, ids.prompt.ids + ids.rejected.ids]
            return joined == encoder.whole_ids([side.text for side in sides])
    return True


def _divide(pair: _Sides, whole: tuple[Pieces, Pieces]) -> _PairIds:
    """Make a pair from its completely encoded sides."""
    limits, masks, merged = [], [], 0
    for side, pieces in zip(pair, whole, strict=True):
        mask, straddling = pieces.mask(side.text, side.spans)
        limits.append(pieces.until(len(side.before)))
        masks.append(mask)
        merged += straddling
    shared = min(*limits, shared_length(whole[0].ids, whole[1].ids))
    prompt = Tokens(whole[0].ids[:shared], masks[0][:shared])
    sides = (Tokens(p.ids[shared:], m[shared:]) for p, m in zip(whole, masks, strict=True))
    return _PairIds(prompt, *sides, merged=merged)


# --- lengths -------------------------------------------------------------------------------------


def _finish_pair(
    tokenization: Tokenization, row: PreferenceRow, text: _Sides, ids: _PairIds
) -> TokenizedPair:
    sides = (ids.chosen, ids.rejected)
    if ids.chosen.ids == ids.rejected.ids:
        raise MalformedRow("identical responses", f"both are the same {len(ids.chosen)} tokens")
    unknown = sum(
        check_words(tokenization, side.rendered, len(side.before), tokens)
        for side, tokens in zip(text, sides, strict=True)
    )
    prompt, (chosen, rejected), findings = fitted(tokenization, row.row, ids.prompt, sides)
    if chosen.ids == rejected.ids:
        raise MalformedRow(
            "identical after truncation", f"both are cut to the same {len(chosen)} tokens"
        )
    found = findings.of_text(ids.merged, [side.rendered for side in text])
    several = tokenization.config.train_on == TrainOn.answer and any(
        len(side.spans) > 1 for side in text
    )
    if unknown or several:
        found = replace(found, unknown=unknown, several_turns=several)
    images = tuple(image["sha256"] for image in images_of(row.prompt))
    if images and tokenization.images is not None:
        _check_placeholders(tokenization.images.token_id, ids.prompt, prompt, chosen, rejected)
    return TokenizedPair(row.row, prompt, chosen, rejected, found, images)


def _check_placeholders(token: int, whole: Tokens, prompt: Tokens, *sides: Tokens) -> None:
    """Refuse a pair whose images were cut off, or that is trained to write one."""
    if whole.ids.count(token) != prompt.ids.count(token):
        raise MalformedRow("prompt too long", "cut to the limits, the prompt would lose an image")
    if any(token in side.ids for side in sides):
        raise MalformedRow("images not matched", "a response holds placeholders of an image")
