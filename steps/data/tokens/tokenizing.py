"""Tokenise conversations and completions, with masks, in batches; and code for all kinds of rows.

A mask is True exactly on the tokens that an assistant writes, including those that end its turns. A
token that the tokenizer merged across the edge of such a text is counted but not trained on, unless
it is the text's first word merged with white space of the header.

This module tokenises whole conversations and single completions of a prompt.
:mod:`steps.data.tokens.pairs` tokenises pairs, and :mod:`steps.data.tokens.texts` plain texts.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from steps.data.images.finding import images_of
from steps.data.images.placeholders import Placeholders, reads_images
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, Messages, UnpairedRow
from steps.data.tokens.config import Inserted, Lost, TokenizeConfig, TrainOn
from steps.data.tokens.encoding import Encoder, Pieces, encoder
from steps.data.tokens.lengths import RowTooLong, fit
from steps.data.tokens.rendering import Chat, ChatFormat, Span, chat_format, render
from steps.data.tokens.spans import Rendered, SpanFinder, assistant_turns
from steps.shared.execution_detail import kept

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    """Findings about a kept row.

    Attributes:
        prompt_cut, response_cut: whether a limit has cut the prompt or a response.
        merged: the number of tokens across the edge of an assistant's text. Only those that merged
            white space with its first word are trained on.
        rewritten: whether the template changes the prompt once it is answered, so that training
            uses another prompt than generation.
        tools_lost: whether the template does not write the row's tools.
        messages_lost: whether the template does not write one of the messages.
        calls_lost: whether the template does not write a call of an earlier turn.
        reasoning_lost: whether the template does not write the reasoning of a trained turn.
        several_turns: whether a side of the pair has other trained turns besides its last.
        read_only: whether earlier answers of a conversation are not trained on, by default.
        spelled: whether the row's own text contains special tokens, which become real ones.
        unended: whether a trained turn ends without an end-of-turn token.
        unknown: the number of trained tokens for text outside the vocabulary.
    """

    prompt_cut: bool = False
    response_cut: bool = False
    merged: int = 0
    rewritten: bool = False
    tools_lost: bool = False
    messages_lost: bool = False
    calls_lost: bool = False
    reasoning_lost: bool = False
    several_turns: bool = False
    read_only: bool = False
    spelled: bool = False
    unended: bool = False
    unknown: int = 0

    def of_text(self, merged: int, texts: Iterable[Rendered]) -> "Findings":
        """These findings, with those about the rendered texts."""
        seen = list(texts)
        return replace(
            self,
            merged=merged,
            rewritten=not all(text.extends for text in seen),
            tools_lost=not all(text.shows_tools for text in seen),
            messages_lost=not all(text.shows_messages for text in seen),
            calls_lost=not all(text.shows_calls for text in seen),
            reasoning_lost=not all(text.shows_reasoning for text in seen),
            spelled=any(text.spells_special for text in seen),
            unended=not all(text.closes for text in seen),
        )


@dataclass(frozen=True)
class TokenizedConversation:
    """A conversation as tokens, from its start to the end of its last turn."""

    row: str
    tokens: Tokens
    findings: Findings


@dataclass(frozen=True)
class TokenizedCompletion:
    """A prompt and its completion as tokens; the full sequence is their concatenation."""

    row: str
    prompt: Tokens
    completion: Tokens
    findings: Findings

    @property
    def completion_id(self) -> str:
        return tokens_id(
            self.prompt.ids, *ids_and_masks((self.completion.ids, self.completion.mask))
        )


@dataclass(frozen=True)
class Tokenization:
    """A tokenizer, its template, and what is wanted of them; `images`: what stands for those."""

    format: ChatFormat
    encoder: Encoder
    config: TokenizeConfig
    finder: SpanFinder
    images: Placeholders | None = None

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a turn or the whole text."""
        found = (self.encoder.core.token_to_id(end) for end in self.finder.ends)
        return frozenset(index for index in found if index is not None)

    @property
    def unknown(self) -> int:
        """The token for text outside the vocabulary; -1 if there is none."""
        unknown = self.encoder.unknown
        return -1 if unknown is None else unknown

    def all_of(self, ids: list[int]) -> Tokens:
        """A sequence of which all is trained on, but its first token and what stands for images."""
        image = None if self.images is None else self.images.token_id
        return Tokens(ids, [False, *(index != image for index in ids[1:])])

    def says_nothing(self, tokens: Iterable[int]) -> bool:
        """Whether the tokens are only ends of turns and white space."""
        said = set(tokens) - self.ends
        few = len(said) <= _MOST_KINDS_OF_SPACE
        return few and not self.encoder.core.decode(list(said), skip_special_tokens=False).strip()


_MOST_KINDS_OF_SPACE = 4


def tokenization(
    tokenizer: "PreTrainedTokenizerBase",
    config: TokenizeConfig = TokenizeConfig(),
    images: Placeholders | None = None,
) -> Tokenization:
    """Prepare a tokenizer; `rendering.chat_format` describes which tokenizers are refused.

    Raises:
        ValueError: `config.end_of_turn` is not a special token of the tokenizer.
    """
    in_parts = images is not None or reads_images(Path(tokenizer.name_or_path))
    found, core = chat_format(tokenizer, in_parts=in_parts), encoder(tokenizer)
    end = config.end_of_turn or ""
    if end and not found.special.fullmatch(end):
        raise ValueError(
            f"tokenize.end_of_turn={end!r} is no special token of {tokenizer.name_or_path}; name "
            "one that the model stops at"
        )
    finder = SpanFinder(found, end, config.inserted == Inserted.read)
    return Tokenization(found, core, config, finder, images)


def tokenize_conversations(
    tokenization: Tokenization, rows: Sequence[ConversationRow]
) -> list[TokenizedConversation | MalformedRow]:
    """For every row, in order, its tokens, or the reason why it is dropped.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """

    def render_row(row: ConversationRow) -> Rendered:
        turns = _trained_turns(row.messages, tokenization.config.train_on)
        chat = Chat(_without_trained(row.messages), row.tools, row.template_kwargs)
        return _rendered(tokenization, chat.until(turns[-1] + 1), turns)

    def finish(row: ConversationRow, text: Rendered, pieces: Pieces) -> TokenizedConversation:
        start = text.spans[0][0]
        prompt, rest, found = _finished(tokenization, row.row, text, start, pieces)
        tokens = Tokens(prompt.ids + rest.ids, prompt.mask + rest.mask)
        if tokenization.config.train_on == TrainOn.everything:
            tokens = tokenization.all_of(tokens.ids)
            unknown = list(compress(tokens.ids, tokens.mask)).count(tokenization.unknown)
            found = replace(found, merged=0, unknown=unknown)
        by_default = tokenization.config.train_on == TrainOn.answer and not _is_told(row.messages)
        earlier = by_default and len(assistant_turns(row.messages)) > 1
        return TokenizedConversation(row.row, tokens, replace(found, read_only=earlier))

    return in_one_batch(rows, render_row, partial(_pieces, tokenization), finish)


def _trained_turns(messages: Messages, train_on: TrainOn) -> list[int]:
    """The answers of a conversation that are trained on: those of which it says so, if it says it
    of any.

    Raises:
        MalformedRow: there is none.
    """
    turns = assistant_turns(messages)
    one = train_on == TrainOn.last_turn or (train_on == TrainOn.answer and not _is_told(messages))
    if one and turns[-1] < len(messages) - 1:
        raise MalformedRow(
            "no trained token",
            f"the last message is the {messages[-1]['role']}'s, so that the last turn is no "
            "answer; tokenize.train_on=all_turns trains on the answers before it",
        )
    wanted = [turn for turn in turns[-1 if one else 0 :] if messages[turn].get("trained", True)]
    if train_on == TrainOn.everything and wanted != turns:
        raise MalformedRow(
            "no trained token",
            "the row says of an answer that it is not trained on, and tokenize.train_on=everything "
            "trains on all; all_turns leaves it out",
        )
    if not wanted:
        which = "its last answer" if one else "every answer"
        raise MalformedRow("no trained token", f"the row says of {which} that it is not trained on")
    return wanted


def _is_told(messages: Messages) -> bool:
    """Whether a conversation says itself which of its turns are trained on."""
    return any("trained" in message for message in messages)


def _without_trained(messages: Messages) -> Messages:
    """The messages as a template gets them."""
    if not _is_told(messages):
        return messages
    plain = tuple(message.copy() for message in messages)
    for message in plain:
        message.pop("trained", None)
    return plain


def tokenize_completions(
    tokenization: Tokenization, rows: Sequence[UnpairedRow]
) -> list[TokenizedCompletion | MalformedRow]:
    """For every row, in order, prompt and completion, or the reason why the row is dropped.

    As in a pair, the prompt ends where the completion's first trained token begins.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """

    def render_row(row: UnpairedRow) -> Answered:
        prompt = Chat(row.prompt, row.tools, row.template_kwargs)
        headers = headers_of(tokenization, prompt)
        every = range(len(row.completion))
        return render_answered(tokenization, prompt, row.completion, headers, every)

    def finish(row: UnpairedRow, text: Answered, pieces: Pieces) -> TokenizedCompletion:
        start = len(text.before)
        parts = _finished(tokenization, row.row, text.rendered, start, pieces)
        return TokenizedCompletion(row.row, *parts)

    return in_one_batch(rows, render_row, partial(_pieces, tokenization), finish)


def _pieces(tokenization: Tokenization, texts: "Sequence[Rendered | Answered]") -> list[Pieces]:
    return tokenization.encoder.pieces([text.text for text in texts])


def tokenize_prompts(
    tokenization: Tokenization, prompts: Sequence[Chat]
) -> list[list[int] | MalformedRow]:
    """For every prompt, in order, the token ids with generation prompt, without a limit of length;
    or the reason why the template refuses it."""

    def render_prompt(prompt: Chat) -> str:
        if images_of(prompt.messages):
            raise MalformedRow(
                "template refuses the conversation", "prompts with images are not answered"
            )
        return render(tokenization.format, prompt, header=True)

    return in_one_batch(
        prompts, render_prompt, tokenization.encoder.ids, lambda prompt, text, ids: ids
    )


def tokens_id(*parts: Sequence[int]) -> str:
    """A digest of several sequences of tokens, as 16 hex digits: sha256 over their lengths and
    ids."""
    lengths = struct.pack(f"<{len(parts)}q", *map(len, parts))
    ids = struct.pack(f"<{sum(map(len, parts))}i", *chain(*parts))
    return hashlib.sha256(lengths + ids).hexdigest()[:16]


def ids_and_masks(*responses: tuple[Sequence[int], Sequence[bool]]) -> list[Sequence[int]]:
    """The ids of responses; and their masks, where not all of them is trained on."""
    ids, masks = zip(*responses, strict=True)
    return [*ids, *([] if all(map(all, masks)) else masks)]


# --- a batch -------------------------------------------------------------------------------------

Row = TypeVar("Row")
Draft = TypeVar("Draft")
Encoded = TypeVar("Encoded")
Finished = TypeVar("Finished")


def in_one_batch(
    rows: Sequence[Row],
    render: Callable[[Row], Draft],
    encode: Callable[[Sequence[Draft]], Iterable[Encoded]],
    finish: Callable[[Row, Draft, Encoded], Finished],
) -> list[Finished | MalformedRow]:
    """Render each row, encode all of them together, and finish each. For a row that one of these
    functions refuses, the result is the reason."""
    drafts = [_attempt(partial(render, row)) for row in rows]
    encoded = iter(
        _encode_all(encode, [draft for draft in drafts if not isinstance(draft, MalformedRow)])
    )

    def finished(row: Row, draft: Draft) -> Finished | MalformedRow:
        ids = next(encoded)
        return ids if isinstance(ids, MalformedRow) else _attempt(partial(finish, row, draft, ids))

    return [
        draft if isinstance(draft, MalformedRow) else finished(row, draft)
        for row, draft in zip(rows, drafts, strict=True)
    ]


def _encode_all(
    encode: Callable[[Sequence[Draft]], Iterable[Encoded]], drafts: Sequence[Draft]
) -> list[Encoded | MalformedRow]:
    """Encode all drafts together; if the tokenizer fails, encode each by itself."""
    try:
        return list(encode(drafts))
    except Exception as error:
        refusal = kept(error)  # its text appears in the list of dropped rows
        if type(refusal) is not Exception:  # tokenizers raises plain Exception for bad texts
            raise
        if len(drafts) == 1:
            return [MalformedRow("tokenizer refuses the text", str(refusal))]
    return [ids for draft in drafts for ids in _encode_all(encode, [draft])]


def _attempt(work: Callable[[], Finished]) -> Finished | MalformedRow:
    try:
        return work()
    except MalformedRow as problem:
        return problem


# --- text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answered:
    """Prompt and one response as text; `own` is the index of the first span in the response."""

    rendered: Rendered
    own: int

    @property
    def text(self) -> str:
        return self.rendered.text

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.rendered.spans

    @cached_property
    def before(self) -> str:
        """The text before the first trained character of the response."""
        return self.text[: self.spans[self.own][0]]

    @property
    def is_one_span(self) -> bool:
        return self.own == len(self.spans) - 1


def headers_of(tokenization: Tokenization, prompt: Chat) -> Mapping[int, str]:
    """The rendering of `prompt` with generation prompt, by its number of messages."""
    return {len(prompt.messages): render(tokenization.format, prompt, header=True)}


def render_answered(
    tokenization: Tokenization,
    prompt: Chat,
    response: Messages,
    headers: Mapping[int, str],
    answer: Collection[int],
) -> Answered:
    """Render `prompt` with one response, whose messages `answer` are the answer; `headers` comes
    from `headers_of`."""
    before = len(prompt.messages)
    messages = (*prompt.messages, *response)
    chat = Chat(messages, prompt.tools, prompt.template_kwargs)
    turns = assistant_turns(chat.messages)
    match tokenization.config.train_on:
        case TrainOn.last_turn:
            turns = turns[-1:]
        case TrainOn.answer:
            turns = [turn for turn in turns if turn - before in answer] or turns[-1:]
    until = chat.until(turns[-1] + 1)
    rendered = _rendered(tokenization, until, turns, headers)
    return Answered(rendered, sum(turn < before for turn in turns))


def _rendered(
    tokenization: Tokenization,
    chat: Chat,
    turns: Sequence[int],
    headers: Mapping[int, str] | None = None,
) -> Rendered:
    rendered = tokenization.finder.render(chat, turns, headers)
    is_whole = rendered.shows_messages and rendered.shows_calls
    if tokenization.config.lost == Lost.dropped and not is_whole:
        what = "a call" if rendered.shows_messages else "a message"
        raise MalformedRow(
            "template leaves out a message", f"the chat template does not write {what} as it is"
        )
    if tokenization.images is None:
        return rendered
    sizes = [(image["width"], image["height"]) for image in images_of(chat.messages)]
    text, spans = tokenization.images.expanded(rendered.text, rendered.spans, sizes)
    return replace(rendered, text=text, spans=spans)


# --- lengths -------------------------------------------------------------------------------------


def fitted(
    tokenization: Tokenization, row: str, prompt: Tokens, responses: Sequence[Tokens]
) -> tuple[Tokens, list[Tokens], Findings]:
    """Cut prompt and responses to the limits; each response keeps at least one trained token."""
    if not len(prompt):
        raise MalformedRow("no prompt token", "no token comes before the first trained one")
    if not all(any(response.mask) for response in responses):
        raise MalformedRow("no trained token", "a response has no token of its own")
    try:
        kept = fit(len(prompt), [len(response) for response in responses], tokenization.config)
    except RowTooLong as problem:
        raise RowTooLong(f"row {row}: {problem}") from None
    fitting = [response.cut(0, kept.room) for response in responses]
    if not all(any(response.mask) for response in fitting):
        raise MalformedRow(
            "no room for the response",
            f"cut to max_length={tokenization.config.max_length}, a response has no trained token",
        )
    findings = Findings(
        prompt_cut=kept.stop - kept.start < len(prompt),
        response_cut=any(len(response) > kept.room for response in responses),
    )
    return prompt.cut(kept.start, kept.stop), fitting, findings


def check_words(tokenization: Tokenization, text: Rendered, start: int, tokens: Tokens) -> int:
    """The number of trained `tokens` that stand for text outside the vocabulary; `tokens` encode
    the text from the character `start` on.

    Raises:
        MalformedRow: the tokenizer encodes nothing of a response's text but its end.
    """
    trained = list(compress(tokens.ids, tokens.mask))
    if trained and tokenization.says_nothing(trained):
        words = "".join(text.text[first:last] for first, last in text.spans if first >= start)
        for end in tokenization.finder.ends:
            words = words.replace(end, "")
        if words.strip():
            raise MalformedRow("no trained token", "the tokenizer leaves no token of a response")
    return trained.count(tokenization.unknown)


def _finished(
    tokenization: Tokenization, row: str, text: Rendered, start: int, pieces: Pieces
) -> tuple[Tokens, Tokens, Findings]:
    """The tokens before and after the character `start`, cut to the limits."""
    mask, merged = pieces.mask(text.text, text.spans)
    every, first = Tokens(pieces.ids, mask), pieces.until(start)
    after = every.cut(first, len(every))
    unknown = check_words(tokenization, text, start, after)
    prompt, (rest,), findings = fitted(tokenization, row, every.cut(0, first), [after])
    return prompt, rest, replace(findings.of_text(merged, [text]), unknown=unknown)
