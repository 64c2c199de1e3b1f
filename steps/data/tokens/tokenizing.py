"""Conversations become token ids with masks, a batch at a time: the words that all rows share.

A mask is True exactly on the tokens of what an assistant writes, and on those that end its turns. A
token that a tokenizer merged across the edge of such a text is counted, and not trained on (no half
of it could be), unless it is the text's first word that took in white space of the header.

Here are whole conversations, and single completions of a prompt; :mod:`steps.data.tokens.pairs` has
pairs and :mod:`steps.data.tokens.texts` texts without turns.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from steps.data.images.finding import images_of
from steps.data.images.placeholders import Placeholders, reads_images
from steps.data.rows.ledger import check_max_dropped
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import ConversationRow, Messages, UnpairedRow
from steps.data.tokens.encoding import Encoder, Pieces, encoder
from steps.data.tokens.lengths import LengthLimits, RowTooLong, fit
from steps.data.tokens.rendering import Chat, ChatFormat, Span, chat_format, render
from steps.data.tokens.spans import Rendered, SpanFinder, assistant_turns
from steps.shared.execution_detail import kept

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TrainOn(StrEnum):
    """Which assistant turns are trained on.

    `answer`: of a pair, every turn in which its sides differ; of a completion, every turn that
    comes after the prompt; of a conversation, the last one.
    """

    answer = "answer"
    last_turn = "last_turn"
    all_turns = "all_turns"


class Inserted(StrEnum):
    """What becomes of text that a template puts between an answer's header and its words."""

    trained = "trained"
    read = "read"


class Lost(StrEnum):
    """What becomes of a row of which the template leaves out a message or a call."""

    kept = "kept"
    dropped = "dropped"


@dataclass(frozen=True)
class TokenizeConfig(LengthLimits):
    """How rows become tokens: which are trained on, and how long they may be.

    Args:
        train_on: the answer, the last assistant turn only, or every one.
        inserted: whether what the template puts before an answer's words, such as an empty
            thought, is trained on, or read as part of the prompt.
        end_of_turn: a token that ends the turns to which the template gives no end.
        lost: rows of which the template leaves out a message or a call are counted, or dropped.
        max_dropped: more dropped rows than this are an error: below 1 a fraction, else a number.
        workers: processes to use; 0: one for each core. The result does not depend on it.
    """

    train_on: TrainOn = field(default=TrainOn.answer, metadata={"before": TrainOn.last_turn})
    inserted: Inserted = field(default=Inserted.trained, metadata={"before": Inserted.read})
    end_of_turn: str | None = field(default=None, metadata={"before": None})
    lost: Lost = field(default=Lost.kept, metadata={"before": Lost.kept})
    max_dropped: float | None = field(default=None, metadata={"before": None})
    workers: int = field(default=1, metadata={"identity": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_work(self.max_dropped, self.workers)


def check_work(max_dropped: float | None, workers: int) -> None:
    """Refuse settings of the work on files that say nothing.

    Raises:
        ValueError: as it says.
    """
    if max_dropped is not None:
        check_max_dropped(max_dropped)
    if workers < 0:
        raise ValueError(f"workers must be 0 (one for each core) or more, got {workers}")


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
        merged: tokens that lie across the edge of an assistant's text; only those that took in
            white space before its first word are trained on.
        rewritten: the template writes the prompt otherwise once it is answered, so that the model
            is trained on another prompt than it would be given.
        tools_lost: the template does not write the row's tools.
        messages_lost: the template does not write one of its messages.
        calls_lost: it does not write a call of an earlier turn.
        reasoning_lost: it does not write the reasoning of a turn that is trained on.
        several_turns: each side of the pair is trained on in more turns than its last.
        spelled: its own text spells out special tokens, which become just those.
        unended: a turn that is trained on ends without an end-of-turn token.
        unknown: trained tokens that stand for text outside the vocabulary.
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
    spelled: bool = False
    unended: bool = False
    unknown: int = 0

    def of_text(self, merged: int, texts: Iterable[Rendered]) -> "Findings":
        """These, with what was noticed of the text."""
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
    """A prompt and its completion as tokens; the whole sequence is the one and then the other."""

    row: str
    prompt: Tokens
    completion: Tokens
    findings: Findings

    @property
    def completion_id(self) -> str:
        return tokens_id(self.prompt.ids, self.completion.ids)


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
        """The tokens that end a turn, or everything."""
        found = (self.encoder.core.token_to_id(end) for end in self.finder.ends)
        return frozenset(index for index in found if index is not None)

    def says_nothing(self, tokens: Iterable[int]) -> bool:
        """Whether they are nothing but ends of turns and white space."""
        said = set(tokens) - self.ends
        few = len(said) <= _MOST_KINDS_OF_SPACE
        return few and not self.encoder.core.decode(list(said), skip_special_tokens=False).strip()


_MOST_KINDS_OF_SPACE = 4


def tokenization(
    tokenizer: "PreTrainedTokenizerBase",
    config: TokenizeConfig = TokenizeConfig(),
    images: Placeholders | None = None,
) -> Tokenization:
    """Make a tokenizer ready; see `rendering.chat_format` for what is refused.

    Raises:
        ValueError: `config.end_of_turn` is no token of the tokenizer.
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
    """Every row in its place as tokens, or as the reason why it is dropped.

    Raises:
        RowTooLong: a row is over a limit whose policy is `error`.
    """

    def render_row(row: ConversationRow) -> Rendered:
        chat = Chat(row.messages, row.tools, row.template_kwargs)
        turns = assistant_turns(chat.messages)
        everything = tokenization.config.train_on == TrainOn.all_turns
        return _rendered(tokenization, chat, turns if everything else turns[-1:])

    def finish(row: ConversationRow, text: Rendered, pieces: Pieces) -> TokenizedConversation:
        start = text.spans[0][0]
        prompt, rest, found = _finished(tokenization, row.row, text, start, pieces)
        tokens = Tokens(prompt.ids + rest.ids, prompt.mask + rest.mask)
        return TokenizedConversation(row.row, tokens, found)

    def encode(texts: Sequence[Rendered]) -> list[Pieces]:
        return tokenization.encoder.pieces([text.text for text in texts])

    return in_one_batch(rows, render_row, encode, finish)


def tokenize_completions(
    tokenization: Tokenization, rows: Sequence[UnpairedRow]
) -> list[TokenizedCompletion | MalformedRow]:
    """Every row in its place as prompt and completion, or as the reason why it is dropped.

    The prompt ends where the completion's first trained token begins, as that of a pair.

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

    def encode(texts: Sequence[Answered]) -> list[Pieces]:
        return tokenization.encoder.pieces([text.text for text in texts])

    return in_one_batch(rows, render_row, encode, finish)


def tokenize_prompts(
    tokenization: Tokenization, prompts: Sequence[Chat]
) -> list[list[int] | MalformedRow]:
    """Every prompt in its place as the ids that a model is given to answer it, of any length; or
    the reason why the template refuses it."""

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
    """16 hex digits that two sequences of parts share when, and but for hash collisions only when,
    they hold the same tokens: sha256 over the lengths of the parts and then the ids."""
    lengths = struct.pack(f"<{len(parts)}q", *map(len, parts))
    ids = struct.pack(f"<{sum(map(len, parts))}i", *chain(*parts))
    return hashlib.sha256(lengths + ids).hexdigest()[:16]


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
    """Each row rendered, all that could be encoded together, each finished; a row that one of
    these refuses has the reason in its place."""
    drafts = [_attempt(render, row) for row in rows]
    encoded = iter(
        _encode_all(encode, [draft for draft in drafts if not isinstance(draft, MalformedRow)])
    )

    def finished(row: Row, draft: Draft) -> Finished | MalformedRow:
        ids = next(encoded)
        return ids if isinstance(ids, MalformedRow) else _attempt(finish, row, draft, ids)

    return [
        draft if isinstance(draft, MalformedRow) else finished(row, draft)
        for row, draft in zip(rows, drafts, strict=True)
    ]


def _encode_all(
    encode: Callable[[Sequence[Draft]], Iterable[Encoded]], drafts: Sequence[Draft]
) -> list[Encoded | MalformedRow]:
    """All drafts together; each by itself if the tokenizer cannot do them all."""
    try:
        return list(encode(drafts))
    except Exception as error:
        refusal = kept(error)  # people read its text, in the list of dropped rows
        if type(refusal) is not Exception:  # what tokenizers raises of a text is of no other type
            raise
        if len(drafts) == 1:
            return [MalformedRow("tokenizer refuses the text", str(refusal))]
    return [ids for draft in drafts for ids in _encode_all(encode, [draft])]


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
class Answered:
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


def headers_of(tokenization: Tokenization, prompt: Chat) -> dict[int, str]:
    """What a model is given to answer `prompt`, by the number of messages."""
    return {len(prompt.messages): render(tokenization.format, prompt, header=True)}


def render_answered(
    tokenization: Tokenization,
    prompt: Chat,
    response: Messages,
    headers: Mapping[int, str],
    answer: Collection[int],
) -> Answered:
    """`prompt` with one response to it, of which the messages `answer` are the answer; `headers`
    as of `headers_of`."""
    before = len(prompt.messages)
    chat = replace(prompt, messages=(*prompt.messages, *response))
    turns = assistant_turns(chat.messages)
    match tokenization.config.train_on:
        case TrainOn.last_turn:
            turns = turns[-1:]
        case TrainOn.answer:
            turns = [turn for turn in turns if turn - before in answer] or turns[-1:]
    rendered = _rendered(tokenization, chat.until(turns[-1] + 1), turns, headers)
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
    """Prompt and responses within the limits, each with something left to train on."""
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
    """How many of the trained `tokens`, the text's from the character `start` on, stand for text
    outside the vocabulary.

    Raises:
        MalformedRow: of the text of a response, the tokenizer leaves nothing but its end.
    """
    trained = [
        index for index, is_trained in zip(tokens.ids, tokens.mask, strict=True) if is_trained
    ]
    if trained and tokenization.says_nothing(trained):
        words = "".join(text.text[first:last] for first, last in text.spans if first >= start)
        for end in tokenization.finder.ends:
            words = words.replace(end, "")
        if words.strip():
            raise MalformedRow("no trained token", "the tokenizer leaves no token of a response")
    return sum(token == tokenization.encoder.unknown for token in trained)


def _finished(
    tokenization: Tokenization, row: str, text: Rendered, start: int, pieces: Pieces
) -> tuple[Tokens, Tokens, Findings]:
    """What comes before the character `start` and what follows it, within the limits."""
    mask, merged = pieces.mask(text.text, text.spans)
    every, first = Tokens(pieces.ids, mask), pieces.until(start)
    after = every.cut(first, len(every))
    unknown = check_words(tokenization, text, start, after)
    prompt, (rest,), findings = fitted(tokenization, row, every.cut(0, first), [after])
    return prompt, rest, replace(findings.of_text(merged, [text]), unknown=unknown)
