"""Preference pairs and conversations become token ids with masks, a batch at a time.

A pair is `prompt_ids`, the tokens that both sides share before the first trained one, and two
sides, which start where the prompt ends. A mask is True exactly on the tokens of assistant text
and end-of-turn tokens. A token that a tokenizer merged across the edge of such a text stays with
its side, is not trained on (no half of it could be), and is counted.

Both sides of a pair are rendered whole, but what they share is encoded once; see
:mod:`steps.data.encoding` for why that gives the tokens of encoding each side whole.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from steps.data.encoding import Encoder, Pieces, encoder
from steps.data.ledger import check_max_dropped
from steps.data.lengths import LengthLimits, RowTooLong, fit
from steps.data.reasons import MalformedRow
from steps.data.rendering import Chat, ChatFormat, Span, chat_format, render
from steps.data.rows import ConversationRow, Messages, PreferenceRow
from steps.data.spans import Rendered, assistant_turns, render_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TrainOn(StrEnum):
    """Which assistant turns are trained on; for preferences, only turns after the prompt differ."""

    last_turn = "last_turn"
    all_turns = "all_turns"


@dataclass(frozen=True)
class TokenizeConfig(LengthLimits):
    """How rows become tokens: limits, and

    Args:
        train_on: the last assistant turn only, or every one.
        max_dropped: more dropped rows than this are an error: below 1 a fraction, else a number.
        workers: processes to use; 0: one for each core. The result does not depend on it.
    """

    train_on: TrainOn = field(default=TrainOn.last_turn, metadata={"before": TrainOn.last_turn})
    max_dropped: float | None = field(default=None, metadata={"before": None})
    workers: int = field(default=1, metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_dropped is not None:
            check_max_dropped(self.max_dropped)
        if self.workers < 0:
            raise ValueError(f"workers must be 0 (one for each core) or more, got {self.workers}")


@dataclass(frozen=True)
class Tokens:
    """Token ids, and which of them are trained on."""

    ids: list[int]
    mask: list[bool]

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, stop: int) -> "Tokens":
        if start == 0 and stop >= len(self):
            return self
        return Tokens(self.ids[start:stop], self.mask[start:stop])


@dataclass(frozen=True)
class Findings:
    """What was noticed about a kept row.

    Attributes:
        prompt_cut, response_cut: a limit cost it tokens.
        merged: tokens that lie across the edge of an assistant's text; none is trained on.
        rewritten: the template writes the prompt otherwise once it is answered, so that the model
            is trained on another prompt than it would be given.
    """

    prompt_cut: bool = False
    response_cut: bool = False
    merged: int = 0
    rewritten: bool = False


@dataclass(frozen=True)
class TokenizedPair:
    """A pair as tokens. A side's full sequence is the prompt's tokens and then its own."""

    row: str
    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    findings: Findings

    @property
    def pair_id(self) -> str:
        return pair_id(self.prompt.ids, self.chosen.ids, self.rejected.ids)

    @property
    def shared_prefix(self) -> int:
        """The number of tokens with which both full sequences start."""
        return len(self.prompt) + _common(self.chosen.ids, self.rejected.ids)


@dataclass(frozen=True)
class TokenizedConversation:
    """A conversation as tokens, from its start to the end of its last turn."""

    row: str
    tokens: Tokens
    findings: Findings


@dataclass(frozen=True)
class Tokenization:
    """A tokenizer, its template, and what is wanted of them."""

    format: ChatFormat
    encoder: Encoder
    config: TokenizeConfig


def tokenization(
    tokenizer: "PreTrainedTokenizerBase", config: TokenizeConfig = TokenizeConfig()
) -> Tokenization:
    """Make a tokenizer ready; see `rendering.chat_format` for what is refused."""
    return Tokenization(chat_format(tokenizer), encoder(tokenizer), config)


def tokenize_pairs(
    tokenization: Tokenization, rows: Sequence[PreferenceRow]
) -> list[TokenizedPair | MalformedRow]:
    """Every row in its place as a pair, or as the reason why it is dropped.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """
    drafts = [_attempt(_render_pair, tokenization, row) for row in rows]
    good = [draft for draft in drafts if isinstance(draft, tuple)]
    encoded = iter(_encode_pairs(tokenization.encoder, good))
    return [
        _attempt(_finish_pair, tokenization, row, draft, next(encoded))
        if isinstance(draft, tuple)
        else draft
        for row, draft in zip(rows, drafts, strict=True)
    ]


def tokenize_conversations(
    tokenization: Tokenization, rows: Sequence[ConversationRow]
) -> list[TokenizedConversation | MalformedRow]:
    """Every row in its place as tokens, or as the reason why it is dropped.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """
    drafts = [_attempt(_render_conversation, tokenization, row) for row in rows]
    good = [draft for draft in drafts if isinstance(draft, Rendered)]
    pieces = iter(tokenization.encoder.pieces([draft.text for draft in good]))
    return [
        _attempt(_finish_conversation, tokenization, row, draft, next(pieces))
        if isinstance(draft, Rendered)
        else draft
        for row, draft in zip(rows, drafts, strict=True)
    ]


def pair_id(
    prompt_ids: Sequence[int], chosen_ids: Sequence[int], rejected_ids: Sequence[int]
) -> str:
    """16 hex digits that two pairs share when, and but for hash collisions only when, they hold
    the same tokens: sha256 over the three lengths and then the ids."""
    parts = (prompt_ids, chosen_ids, rejected_ids)
    lengths = struct.pack("<3q", *map(len, parts))
    ids = struct.pack(f"<{sum(map(len, parts))}i", *chain(*parts))
    return hashlib.sha256(lengths + ids).hexdigest()[:16]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _attempt(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **keywords: Arguments.kwargs
) -> Result | MalformedRow:
    try:
        return work(*arguments, **keywords)
    except MalformedRow as problem:
        return problem


# --- text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """Prompt and one response as text; `own` is the first of its spans that is the response's."""

    rendered: Rendered
    own: int

    @property
    def text(self) -> str:
        return self.rendered.text

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.rendered.spans

    @property
    def before(self) -> str:
        """The text before the first response character that is trained on."""
        return self.text[: self.spans[self.own][0]]

    @property
    def is_one_span(self) -> bool:
        return self.own == len(self.spans) - 1


def _render_pair(tokenization: Tokenization, row: PreferenceRow) -> tuple[_Side, _Side]:
    prompt = Chat(row.prompt, row.tools, row.template_kwargs)
    headers = {len(row.prompt): render(tokenization.format, prompt, header=True)}

    def side(response: Messages) -> _Side:
        chat = replace(prompt, messages=(*row.prompt, *response))
        turns = _turns(tokenization, chat)
        rendered = render_spans(tokenization.format, chat, turns, headers)
        return _Side(rendered, sum(turn < len(row.prompt) for turn in turns))

    return side(row.chosen), side(row.rejected)


def _render_conversation(tokenization: Tokenization, row: ConversationRow) -> Rendered:
    chat = Chat(row.messages, row.tools, row.template_kwargs)
    return render_spans(tokenization.format, chat, _turns(tokenization, chat))


def _turns(tokenization: Tokenization, chat: Chat) -> list[int]:
    turns = assistant_turns(chat.messages)
    return turns[-1:] if tokenization.config.train_on == TrainOn.last_turn else turns


# --- tokens --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _PairIds:
    """A pair as tokens of any length."""

    prompt: Tokens
    chosen: Tokens
    rejected: Tokens
    merged: int


def _encode_pairs(encoder: Encoder, pairs: Sequence[tuple[_Side, _Side]]) -> list[_PairIds]:
    """All pairs, in few calls of the tokenizer: shared prompts, tails, what needs more; and one
    pair of every batch whole, lest a tokenizer breaks the rule that this rests on."""
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


def _tail_start(encoder: Encoder, chosen: _Side, rejected: _Side) -> int | None:
    """Where the tails of a pair may begin: at the last anchor of the text that both share."""
    simple = chosen.is_one_span and rejected.is_one_span and not chosen.own
    if not simple or chosen.before != rejected.before:
        return None
    return encoder.last_anchor(chosen.before)


def _join(
    encoder: Encoder, tail: str, prompt: list[int], tails: tuple[list[int], list[int]]
) -> _PairIds | None:
    """The pair, if the prompt's tokens are the first ones of both sides; else nothing."""
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
    encoder: Encoder, pairs: Sequence[tuple[_Side, _Side]], encoded: Sequence[_PairIds | None]
) -> bool:
    """Whether the first pair that was put together has the tokens of its sides encoded whole."""
    for sides, ids in zip(pairs, encoded, strict=True):
        if ids is not None:
            joined = [ids.prompt.ids + ids.chosen.ids, ids.prompt.ids + ids.rejected.ids]
            return joined == encoder.ids([side.text for side in sides])
    return True


def _divide(pair: tuple[_Side, _Side], whole: tuple[Pieces, Pieces]) -> _PairIds:
    """A pair from its sides encoded whole."""
    limits, masks, merged = [], [], 0
    for side, pieces in zip(pair, whole, strict=True):
        mask, straddling = pieces.mask(side.spans)
        limits.append(pieces.until(len(side.before)))
        masks.append(mask)
        merged += straddling
    shared = min(*limits, _common(whole[0].ids, whole[1].ids))
    prompt = Tokens(whole[0].ids[:shared], masks[0][:shared])
    sides = (Tokens(p.ids[shared:], m[shared:]) for p, m in zip(whole, masks, strict=True))
    return _PairIds(prompt, *sides, merged=merged)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many items two sequences share at their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


# --- lengths -------------------------------------------------------------------------------------


def _finish_pair(
    tokenization: Tokenization, row: PreferenceRow, text: tuple[_Side, _Side], ids: _PairIds
) -> TokenizedPair:
    sides = (ids.chosen, ids.rejected)
    if ids.chosen.ids == ids.rejected.ids:
        raise MalformedRow("identical responses", f"both are the same {len(ids.chosen)} tokens")
    prompt, (chosen, rejected), findings = _fitted(tokenization, row.row, ids.prompt, sides)
    if chosen.ids == rejected.ids:
        raise MalformedRow(
            "identical after truncation", f"both are cut to the same {len(chosen)} tokens"
        )
    rewritten = not all(side.rendered.extends for side in text)
    found = replace(findings, merged=ids.merged, rewritten=rewritten)
    return TokenizedPair(row.row, prompt, chosen, rejected, found)


def _finish_conversation(
    tokenization: Tokenization, row: ConversationRow, text: Rendered, pieces: Pieces
) -> TokenizedConversation:
    mask, merged = pieces.mask(text.spans)
    every = Tokens(pieces.ids, mask)
    first = pieces.until(text.spans[0][0])
    prompt, (rest,), findings = _fitted(
        tokenization, row.row, every.cut(0, first), [every.cut(first, len(every))]
    )
    tokens = Tokens(prompt.ids + rest.ids, prompt.mask + rest.mask)
    found = replace(findings, merged=merged, rewritten=not text.extends)
    return TokenizedConversation(row.row, tokens, found)


def _fitted(
    tokenization: Tokenization, row: str, prompt: Tokens, responses: Sequence[Tokens]
) -> tuple[Tokens, list[Tokens], Findings]:
    """Prompt and responses within the limits, each with something left to train on."""
    if not len(prompt):
        raise MalformedRow("no prompt token", "no token comes before the first trained one")
    if not all(any(response.mask) for response in responses):
        raise MalformedRow("no trained token", "a response has no token of its own")
    try:
        kept = fit(len(prompt), [len(response) for response in responses], tokenization.config)
    except RowTooLong as problem:
        raise RowTooLong(f"row {row}: {problem}") from None
    fitted = [response.cut(0, kept.room) for response in responses]
    if not all(any(response.mask) for response in fitted):
        raise MalformedRow(
            "no room for the response",
            f"cut to max_length={tokenization.config.max_length}, a response has no trained token",
        )
    findings = Findings(
        prompt_cut=kept.stop - kept.start < len(prompt),
        response_cut=any(len(response) > kept.room for response in responses),
    )
    return prompt.cut(kept.start, kept.stop), fitted, findings
