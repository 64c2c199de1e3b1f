"""Find the assistant's turns in a rendered conversation, with a proof for each conversation.

A *span* begins where generation would begin, after the header at the end of the prompt, and ends
with the tokens that end the turn. Between them is the text that the model must write: its words,
its reasoning and calls as the template writes them, and text that the template inserts before the
words (Qwen 3's empty thought), unless `reads_inserted` is set. A span is found in one of two ways,
both of which are verified for the conversation at hand. If both fail, the row is dropped.

1. *Marks*: the template has `{% generation %}` blocks, one for each assistant turn, each with all
   text of its turn and no text of another message. (A template whose blocks are empty is refused,
   because the mask would be all zero.)
2. *Traces* (`tracing`): every character of the rendering is assigned to the template or to one
   message. The template's text before the turn's first own character ends with the header; its text
   after the last own character begins with the end of the turn.

**The end of a turn** is the text after its words if it is the last turn: up to the first token that
ends a plain answer, or else up to the last special token before another header. If another turn
follows and the template ends the turn differently there (gpt-oss), the end is the run of special
tokens at that place, without the next header.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, ChatFormat, Span, render, render_marked
from steps.data.tokens.tracing import (
    CALL,
    CONTENT,
    REASONING,
    TOOL,
    Form,
    Shape,
    Slot,
    Tracer,
    shape_of,
)
from steps.shared.common_prefix import shared_length

Place = tuple[int, int]
"""A position in a form: the index of a piece, and an offset in it."""


@dataclass(frozen=True)
class Rendered:
    """A chat as text, up to the end of its last span.

    Attributes:
        spans: the requested assistant turns, in order.
        extends: whether every span begins exactly after the prompt that generation would use.
        shows_tools: whether the template writes every tool; some templates do not support tools.
        shows_messages: whether the template writes every message.
        shows_calls: whether the template writes every call of every message.
        shows_reasoning: whether the template writes the reasoning of the requested turns.
        spells_special: whether a message or tool contains the text of a special token.
        closes: whether every span ends with a token that ends a turn.
    """

    text: str
    spans: tuple[Span, ...]
    extends: bool = True
    shows_tools: bool = True
    shows_messages: bool = True
    shows_calls: bool = True
    shows_reasoning: bool = True
    spells_special: bool = False
    closes: bool = True


def assistant_turns(messages: Sequence[Message]) -> list[int]:
    """The positions of messages that an assistant wrote."""
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


@dataclass(frozen=True)
class SpanFinder:
    """Finds spans in chats of one format.

    Args:
        end_of_turn: the token that ends turns to which the template gives no end.
        reads_inserted: whether text that a template inserts between header and words is left out of
            the span.
    """

    format: ChatFormat
    end_of_turn: str = ""
    reads_inserted: bool = False

    @cached_property
    def tracer(self) -> Tracer:
        return Tracer(self.format)

    @cached_property
    def ends(self) -> list[str]:
        """The texts of the tokens that end a turn, or everything."""
        return sorted({*self.format.ends, *([self.end_of_turn] if self.end_of_turn else [])})

    def render(
        self, chat: Chat, turns: Sequence[int], headers: Mapping[int, str] | None = None
    ) -> Rendered:
        """Render `chat`, which ends with an assistant's message, and find the spans of `turns`.

        Args:
            turns: indices of assistant messages, ascending; the last is the chat's last message.
            headers: renderings with generation prompt that the caller has already, by their number
                of messages.

        Raises:
            MalformedRow: the template refuses the chat, or a span cannot be derived.
        """
        chat = self.format.fitted(chat)
        self._refuse_spelled_out_ends([chat.messages[turn] for turn in turns])
        text, blocks = self._rendered(chat)
        trace = self._trace(chat, turns, text)
        marked = self._marked(trace, text, blocks, turns)
        found = marked or [self._span(trace, turn) for turn in turns]
        text, spans = self._closed(text, found)
        if is_doubled(self.format, text):
            bos = self.format.special_tokens["bos_token"]
            raise MalformedRow("doubled special token", f"the text starts with {bos} twice")
        last = turns[-1]
        if headers is None:
            headers = {last: render(self.format, chat.until(last), header=True)}
        self._refuse_lost_messages(trace, headers)
        return Rendered(
            text[: spans[-1][1]],
            tuple(spans),
            extends=self._extends(trace, turns, spans, headers, text),
            shows_tools=not trace.said.loses(TOOL),
            shows_messages=not trace.said.changed and not trace.said.loses(CONTENT),
            shows_calls=not trace.said.loses(CALL),
            shows_reasoning=not trace.said.loses(REASONING, turns),
            spells_special=any(map(self.format.special.search, _strings(chat))),
            closes=all(text[:end].endswith(tuple(self.ends)) for _, end in spans),
        )

    # --- what the template writes ----------------------------------------------------------------

    def _rendered(self, chat: Chat) -> tuple[str, list[Span] | None]:
        if not self.format.marks_generation:
            return render(self.format, chat), None
        text, blocks = render_marked(self.format, chat)
        if not any(end > start for start, end in blocks):
            raise MalformedRow(
                "template marks no assistant turn",
                "it has {% generation %} blocks, but none is written for this conversation",
            )
        return text, blocks

    def _trace(self, chat: Chat, turns: Sequence[int], text: str) -> "_Trace":
        """Assign every character of the text to the template or to a message.

        Raises:
            MalformedRow: this fails, even for the messages `turns` only.
        """
        whole = shape_of(self.format, chat, text)
        said = _Said(whole, self._lost(whole), changed=False)
        if found := self._traced(whole, said, text):
            return self._checked(found, chat, turns)
        # Some templates depend on the names of functions, or change white space.
        for words in (False, True):
            shape = shape_of(self.format, chat, text, names=words, words=words)
            tools = {name: slot for name, slot in said.lost.items() if slot.kind == TOOL}
            lost = self._lost(shape) | ({} if words else tools)
            if found := self._traced(shape, _Said(shape, lost, changed=False), text):
                return self._checked(found, chat, turns)
        # Others change messages that are not trained on.
        shape = shape_of(self.format, chat, text, turns)
        if found := self._traced(shape, replace(said, changed=True), text):
            return self._checked(found, chat, turns)
        raise _not_found(turns[-1])

    def _lost(self, shape: Shape) -> dict[str, Slot]:
        """The slots that the template does not write."""
        form = self.tracer.form(shape)
        written = set(shape.slots if form is None else form.names)
        return {name: slot for name, slot in shape.slots.items() if name not in written}

    def _traced(self, shape: Shape, said: "_Said", text: str) -> "_Trace | None":
        form = self.tracer.form(shape)
        starts = None if form is None else form.starts(shape.texts, text)
        return None if form is None or starts is None else _Trace(shape, form, starts, said)

    def _checked(self, trace: "_Trace", chat: Chat, turns: Sequence[int]) -> "_Trace":
        """Refuse a trace in which a trained turn lacks words or calls."""
        slots, written = trace.shape.slots, set(trace.form.names)
        for turn in turns:
            calls = chat.messages[turn].get("tool_calls") or ()
            own = {name: slot.kind for name, slot in slots.items() if slot.message == turn}
            lost = {kind for name, kind in own.items() if name not in written}
            if CALL in lost or (calls and CALL not in own.values()):
                raise _not_found(turn)
            if CONTENT in lost and not calls:
                raise _not_found(turn)
        return trace

    # --- marks -----------------------------------------------------------------------------------

    def _marked(
        self, trace: "_Trace", text: str, blocks: list[Span] | None, turns: Sequence[int]
    ) -> list[Span]:
        """The spans from the template's blocks; empty if there are none or if they are wrong."""
        every = assistant_turns(trace.shape.chat.messages)
        if blocks is None or len(blocks) != len(every):
            return []
        marked = dict(zip(every, blocks, strict=True))
        for name, (start, end) in zip(trace.form.names, trace.covers(), strict=True):
            owner = trace.shape.slots[name].message
            for turn, (first, last) in marked.items():
                if (first <= start and end <= last) != (owner == turn) and start < end:
                    return []
        spans = [
            (self._after_prompt(trace, text, turn, start), end)
            for turn in turns
            for start, end in [self._without_trailing_space(text, marked[turn])]
        ]
        return spans if all(start < end for start, end in spans) else []

    def _after_prompt(self, trace: "_Trace", text: str, turn: int, start: int) -> int:
        """The start of generation, if a block begins before it, or after it with only white space
        between; else the start of the block."""
        place = self._given(trace, turn)
        given = start if place is None else trace.at(place)
        return given if start < given or text[given:start].isspace() else start

    def _without_trailing_space(self, text: str, span: Span) -> Span:
        """The span without white space at the end of its block, after the end-of-turn token."""
        start, end = span
        trimmed = start + len(text[start:end].rstrip())
        ends = [match.end() for match in self.format.special.finditer(text, start, end)]
        return (start, trimmed) if ends and ends[-1] == trimmed else span

    # --- traces ----------------------------------------------------------------------------------

    def _span(self, trace: "_Trace", turn: int) -> Span:
        key = (trace.shape.key, turn)
        if key not in self.tracer.places:
            self.tracer.places[key] = self._found(trace, turn)
        start, end = self.tracer.places[key]
        return trace.at(start), trace.at(end)

    def _found(self, trace: "_Trace", turn: int) -> tuple[Place, Place]:
        """Where a turn begins and ends, which depends on the shape, and on no text."""
        own = trace.own(turn)
        if own and turn < len(trace.shape.chat.messages) - 1:
            own = self._without_echo(trace, turn, own)
        start = None if own is None else self._start(trace, turn, own)
        if start is None or own is None:
            raise _not_found(turn)
        return start, self._end(trace, turn, own, start)

    def _without_echo(self, trace: "_Trace", turn: int, own: range) -> range | None:
        """The slots of a turn without those at its end that belong to the next message and repeat
        some of its own, as the name of a called function before its result (Gemma 4). None if words
        of the turn come only after that message."""
        alone = self.tracer.form(trace.shape, turn + 1)
        said = Counter(n for n in (alone.names if alone else ()) if trace.owner(n) == turn)
        names, stop = trace.form.names, own.start
        for index in own:
            if said[names[index]] or names[index] not in names[own.start : index]:
                said[names[index]] -= 1
                stop = index + 1
        if any(name in names[own.stop :] and name not in names[: own.stop] for name in +said):
            return None
        return range(own.start, stop) if stop > own.start else own

    def _start(self, trace: "_Trace", turn: int, own: range) -> Place | None:
        """Where generation of the turn would begin."""
        place = self._given(trace, turn)
        if place and (not own or place[0] == own[0]):
            found = self._after_late_header(trace, place)
            return self._after_inserted(trace, turn, found) if own else found
        if not own:
            return None
        header = self.tracer.form(trace.shape, turn, header=True)
        asked = self.tracer.form(trace.shape, turn)
        added = self.format.header
        if header and asked:
            added = self.format.added(str(header), str(asked))
        piece = trace.form.pieces[own[0]]
        offset = _after_header(piece, added)
        if offset is None:
            offset = len(piece.removesuffix(self.format.opening))
        return self._after_inserted(trace, turn, (own[0], offset))

    def _given(self, trace: "_Trace", turn: int) -> Place | None:
        """The end of the turn's generation prompt, if the text before the turn equals it."""
        header = self.tracer.form(trace.shape, turn, header=True)
        if trace.form.after(header) is None:
            return None
        return trace.form.place(len(str(header)))

    def _after_late_header(self, trace: "_Trace", place: Place) -> Place:
        """`place`; or the end of a header that the template writes there, where the generation
        prompt has none: in all cases, or in some, as after a tool's result."""
        index, offset = place
        late = self.format.late_header or self.format.header
        begins = bool(late) and trace.form.pieces[index].startswith(late, offset)
        return (index, offset + len(late)) if begins else place

    def _after_inserted(self, trace: "_Trace", turn: int, place: Place) -> Place:
        """`place`; with `reads_inserted`, the end of the text that the template inserts there
        before any plain answer."""
        index, offset = place
        own = (slot.kind for slot in trace.shape.slots.values() if slot.message == turn)
        if not self.reads_inserted or REASONING in own:
            return place
        before = trace.form.pieces[index][offset:]
        plain = trace.plain_answer(self.tracer, turn)
        inserted = before[: shared_length(before, plain)] if plain is not None else ""
        inserted = inserted.removesuffix(self.format.opening)
        return (index, offset + len(inserted)) if inserted.strip() else place

    def _end(self, trace: "_Trace", turn: int, own: range, start: Place) -> Place:
        """The end of the turn with the slots `own`."""
        index = own[-1] + 1 if own else start[0]
        offset = 0 if own else start[1]
        after = trace.form.pieces[index][offset:]
        tail = after
        if turn < len(trace.shape.chat.messages) - 1:
            tail = self._tail(trace, turn, own)
        end = "" if tail is None else tail[: self._end_in(tail)]
        if not after.startswith(end):
            end = self._end_between(end, after)
        if not end.endswith(tuple(self.format.final)):
            end += self._end_after(after[len(end) :])
        return index, offset + len(end)

    def _tail(self, trace: "_Trace", turn: int, own: range) -> str | None:
        """The template's text after the turn's words if the turn is the last one."""
        alone = self.tracer.form(trace.shape, turn + 1)
        if alone is None:
            return None
        if own:
            names = [i for i, name in enumerate(alone.names) if trace.owner(name) == turn]
            return alone.pieces[names[-1] + 1] if names else None
        after = alone.after(self.tracer.form(trace.shape, turn, header=True))
        late = self.format.late_header or self.format.header
        return None if after is None else after.removeprefix(late)

    def _end_in(self, tail: str) -> int:
        """Where a turn ends in the template's text after the turn's last own character."""
        shape = self.format
        if shape.closing and not shape.special.search(shape.closing):
            return len(shape.closing if tail.startswith(shape.closing) else tail)
        final = [at + len(end) for end in shape.final if (at := tail.find(end)) >= 0]
        if final:
            return min(final)
        own = self._before_next(tail)
        ends = [match.end() for match in shape.special.finditer(own)]
        return ends[-1] if ends else len(own.rstrip())

    def _end_between(self, alone: str, after: str) -> str:
        """The end of a turn before another turn, if it differs from `alone`, the end of a last
        turn."""
        shared = alone[: shared_length(alone, after)]
        ends = [match.end() for match in self.format.special.finditer(shared)]
        if ends:
            return shared[: ends[-1]]
        own = self._before_next(after)
        return own[: self.format.run_of_special(own)]

    def _end_after(self, text: str) -> str:
        """The run of special tokens at the start of `text`, if it ends with the end of sequence."""
        run = text[: self.format.run_of_special(text)]
        first = self.format.special.match(text.lstrip())
        return run if first and run.endswith(self.format.eos) else ""

    def _before_next(self, text: str) -> str:
        opener = self.format.opener
        return text.partition(opener)[0] if opener else text

    # --- the ends that templates lack ------------------------------------------------------------

    def _closed(self, text: str, spans: list[Span]) -> tuple[str, list[Span]]:
        """Text and spans with the configured end of turn where the template writes none."""
        if not self.end_of_turn:
            return text, spans
        closed = [self._with_end(text, span) for span in spans]
        start, end = closed[-1]
        if not text[:end].endswith(tuple(self.ends)):
            text = text[:end] + self.end_of_turn
            closed[-1] = (start, len(text))
        return text, closed

    def _with_end(self, text: str, span: Span) -> Span:
        start, end = span
        is_open = not text[:end].endswith(tuple(self.ends))
        follows = text.startswith(self.end_of_turn, end)
        return (start, end + len(self.end_of_turn)) if is_open and follows else span

    # --- checks ----------------------------------------------------------------------------------

    def _extends(
        self,
        trace: "_Trace",
        turns: Sequence[int],
        spans: Sequence[Span],
        headers: Mapping[int, str],
        text: str,
    ) -> bool:
        """Whether each span begins exactly after the prompt that generation would use."""
        if self.format.late_header:
            return False
        for turn, (start, _) in zip(turns, spans, strict=True):
            place = self._given(trace, turn)
            if place is None or trace.at(place) != start:
                return False
        return all(text.startswith(header) for header in headers.values())

    def _refuse_spelled_out_ends(self, messages: Sequence[Message]) -> None:
        """Refuse responses that contain the text of a token that ends turns: the turn would end
        early or twice."""
        for message in messages:
            texts = list(_strings(message))
            for end in self.ends:
                if any(end in text for text in texts):
                    raise MalformedRow(
                        "end-of-turn inside the response", f"the text contains {end}"
                    )

    def _refuse_lost_messages(self, trace: "_Trace", headers: Mapping[int, str]) -> None:
        """Refuse a template that leaves out a message of the prompt once the prompt is answered.
        Other changes of the prompt are allowed."""
        shape = trace.said.shape
        for name, slot in trace.said.lost.items():
            role = shape.chat.messages[slot.message]["role"]
            if slot.kind != CONTENT or role == "assistant":
                continue
            for count in headers:
                header = self.tracer.form(shape, count, header=True)
                if slot.message < count and header and name in header.names:
                    raise MalformedRow(
                        "template does not extend the prompt",
                        f"once answered, the chat template leaves out a {role} message",
                    )


@dataclass(frozen=True)
class _Said:
    """The texts of a conversation; those that the template does not write (`lost`); and whether the
    template has `changed` a message."""

    shape: Shape
    lost: Mapping[str, Slot]
    changed: bool

    def loses(self, kind: str, turns: Sequence[int] | None = None) -> bool:
        slots = self.lost.values()
        return any(s.kind == kind and (turns is None or s.message in turns) for s in slots)


@dataclass(frozen=True)
class _Trace:
    """A rendering as its form with texts; `starts` are the positions of the pieces."""

    shape: Shape
    form: Form
    starts: list[int]
    said: _Said

    def owner(self, name: str) -> int:
        return self.shape.slots[name].message

    def covers(self) -> list[Span]:
        """The positions of the slots' texts."""
        ends = [start + len(p) for start, p in zip(self.starts, self.form.pieces, strict=True)]
        return list(zip(ends, self.starts[1:], strict=False))

    def at(self, place: Place) -> int:
        return self.starts[place[0]] + place[1]

    def own(self, turn: int) -> range | None:
        """The consecutive slots of a message; empty if the message has none, None if slots of other
        messages are between them."""
        owners = [self.owner(name) for name in self.form.names]
        if turn not in owners:
            return range(0)
        first = owners.index(turn)
        later = (at for at in range(first, len(owners)) if owners[at] > turn)
        stop = next(later, len(owners))
        while owners[stop - 1] != turn:  # a message may be echoed in a later one, not before it
            stop -= 1
        return range(first, stop) if set(owners[first:stop]) == {turn} else None

    def plain_answer(self, tracer: Tracer, turn: int) -> str | None:
        """The template's text between the header and the words, for a plain answer."""
        shape, name = self.shape, "Slot0xplain"
        said = Message(role="assistant", content=name)
        messages = (*shape.chat.messages[:turn], said)
        chat = replace(shape.chat, messages=messages)

        form = tracer.form(replace(shape, chat=chat))
        after = form and form.after(tracer.form(shape, turn, header=True))
        return None if after is None else after.partition(name)[0]


_SEGMENT = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\w+|.", re.DOTALL)


def _after_header(piece: str, header: str) -> int | None:
    """Where in `piece` the header ends, or the longest beginning of the header found there."""
    ends = [match.end() for match in _SEGMENT.finditer(header)]
    for end in reversed(ends):
        if header[:end].strip() and (at := piece.rfind(header[:end])) >= 0:
            return at + end
    return None


def _strings(value: Any) -> Iterator[str]:
    """Every text within a JSON value or a chat, keys included."""
    left = [value]  # no recursion, because a value may be nested too deeply for it
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Chat(messages, tools):
                left += [messages, tools]
            case Mapping() as within:
                left += [*within, *within.values()]
            case list() | tuple() as within:
                left += within


def is_doubled(chat_format: ChatFormat, text: str) -> bool:
    """Whether a text starts with two BOS."""
    bos = str(chat_format.special_tokens.get("bos_token") or "")
    return bool(bos) and text.startswith(bos) and text[len(bos) :].lstrip().startswith(bos)


def _not_found(turn: int) -> MalformedRow:
    return MalformedRow(
        "assistant turn not found in the rendered text",
        f"message {turn + 1}: the chat template changes it in a way that cannot be traced",
    )
