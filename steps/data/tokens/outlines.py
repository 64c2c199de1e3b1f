"""Render conversations of one shape by filling in their contents, where that is exact.

The *shape* of a conversation is its roles, with the white space at the ends of each content. Where
`steps.data.templates.flow` proves that the template only writes contents, the text and the spans of
one conversation of a shape are those of another with the contents exchanged. So each shape is
rendered once with words that stand for contents. This is its *outline*, and a row fills it in.

The proof is also tried. The first rows of a shape, and then one in `CHECKED_ONE_IN`, are rendered
by the template, and a difference is an error: it never changes a row in silence.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.templates.flow import looked_for_in_contents
from steps.data.templates.programs import program_of
from steps.data.tokens.rendering import Chat, ChatFormat, added_tokens, any_of, render
from steps.data.tokens.spans import Rendered, SpanFinder, is_doubled
from steps.data.tokens.tracing import Form

CHECKED_ONE_IN = 256
_MOST_OUTLINES = 1024
_MOST_SPACE = 16
"""The most white space at an end of a content; conversations with more are rendered."""

Headers = Callable[[], Mapping[int, str] | None]
"""The renderings with generation prompt, by their number of messages, made when they are needed; or
None, if the finder shall make that of the last turn."""


@dataclass(frozen=True)
class _Cores:
    """The shape of a chat, and its contents without the white space at their ends."""

    shape: tuple[str | tuple[str, str, str], ...]
    cores: tuple[str, ...]


@dataclass
class _Outline:
    """A rendering in which words stand for contents.

    Attributes:
        flags: the other fields of the rendering.
        parts: the text, cut at these words; the word after each part is left out.
        slots: for each of these words, the index of its message.
        edges: for each end of a span, the number of slots before it and its place without them.
        filled: the number of rows.
    """

    flags: Mapping[str, Any]
    parts: list[str]
    slots: list[int]
    edges: list[tuple[int, int]]
    filled: int = 0

    def fill(self, cores: Sequence[str]) -> Rendered:
        texts = [cores[index] for index in self.slots]
        pieces = chain.from_iterable(zip(self.parts, [*texts, ""], strict=True))
        reached = [0, *accumulate(map(len, texts))]
        edges = [reached[before] + place for before, place in self.edges]
        spans = tuple(zip(edges[::2], edges[1::2], strict=True))
        return Rendered(**{**self.flags, "text": "".join(pieces), "spans": spans})


class Outlines:
    """Renders the chats of one format, with their spans: by outlines, and else by the finder."""

    def __init__(self, finder: SpanFinder) -> None:
        self.finder = finder
        self._known: dict[object, _Outline | None] = {}
        self._seen: set[object] = set()

    def render(
        self, chat: Chat, turns: Sequence[int], asked: Sequence[int], headers: Headers
    ) -> Rendered:
        """What `SpanFinder.render` gives.

        Args:
            asked: the numbers of messages after which there is a generation prompt in `headers`.

        Raises:
            MalformedRow: the template refuses the chat, or a span cannot be derived.
            RuntimeError: an outline is wrong.
        """
        found = self._cores(chat)
        if found is None:
            return self.finder.render(chat, turns, headers())
        key = (found.shape, tuple(turns), tuple(asked))
        if key not in self._known and key not in self._seen:  # many shapes come only once
            self._remember(key)
            return self.finder.render(chat, turns, headers())
        if key not in self._known:
            self._known[key] = self._outline(found, turns, asked)
        outline = self._known[key]
        if outline is None:
            return self.finder.render(chat, turns, headers())
        rendered = outline.fill(found.cores)
        if outline.filled % CHECKED_ONE_IN == 0:
            _check(rendered, self.finder.render(chat, turns, headers()))
        outline.filled += 1
        if is_doubled(self.finder.format, rendered.text):
            return self.finder.render(chat, turns, headers())  # it says why
        return rendered

    def _remember(self, key: object) -> None:
        if len(self._seen) >= _MOST_OUTLINES:
            self._seen.clear()
            self._known.clear()
        self._seen.add(key)

    # --- which chats -----------------------------------------------------------------------------

    @cached_property
    def _refused(self) -> re.Pattern[str] | None:
        """Matches what no content may have in it; None if nothing is proven of the template."""
        looked_for = _looked_for(self.finder.format)
        if looked_for is None:
            return None
        marks = self.finder.format.looked_for.pattern[1:-1]
        return re.compile(f"{any_of({*looked_for, *_special(self.finder)})}|{marks}")

    def _cores(self, chat: Chat) -> _Cores | None:
        """None if a chat has more than roles and contents, or a content that is not proven of."""
        refused = self._refused
        if refused is None or chat.tools is not None or chat.template_kwargs:
            return None
        shape: list[str | tuple[str, str, str]] = []
        cores: list[str] = []
        for message in chat.messages:
            content = message["content"]
            core = content.strip()
            if len(message) != 2 or not core or _NAME.format("") in core or refused.search(content):
                return None
            role = message["role"]
            if len(core) == len(content):
                shape.append(role)
            else:
                before, _, after = content.partition(core)
                if max(len(before), len(after)) > _MOST_SPACE:
                    return None
                shape.append((role, before, after))
            cores.append(core)
        return _Cores(tuple(shape), tuple(cores))

    # --- outlines --------------------------------------------------------------------------------

    def _outline(
        self, found: _Cores, turns: Sequence[int], asked: Sequence[int]
    ) -> _Outline | None:
        names = [_NAME.format(f"{index}x") for index in range(len(found.cores))]
        chat = Chat(tuple(_message(*made) for made in zip(found.shape, names, strict=True)))
        if self._refused is None or any(self._refused.search(m["content"]) for m in chat.messages):
            return None
        finder = self.finder
        try:
            headers = {n: render(finder.format, chat.until(n), header=True) for n in asked}
            rendered = finder.render(chat, turns, headers)
        except MalformedRow:
            return None
        cut = re.split(f"{_NAME.format('')}([0-9]+)x", rendered.text)
        parts, slots = cut[::2], [int(index) for index in cut[1::2]]
        form = Form(tuple(parts), tuple(names[index] for index in slots))
        places = [form.place(place) for span in rendered.spans for place in span]
        if any(self._crosses(before, after) for before, after in pairwise(parts)):
            return None
        if not rendered.closes or None in places:
            return None
        reached = [0, *accumulate(map(len, parts))]
        edges = [(place[0], reached[place[0]] + place[1]) for place in places if place is not None]
        return _Outline(vars(rendered), parts, slots, edges)

    @cached_property
    def _cuts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The beginnings of special tokens, and their ends."""
        texts = _special(self.finder)
        cuts = [(text[:at], text[at:]) for text in texts for at in range(1, len(text))]
        return tuple({start for start, _ in cuts}), tuple({end for _, end in cuts})

    def _crosses(self, before: str, after: str) -> bool:
        """Whether a special token could begin in the template's text and end in the content between
        these two, or the other way round."""
        starts, ends = self._cuts
        return (
            before.endswith(starts)
            or after.startswith(ends)
            or any(start.endswith(before) for start in starts if len(before) < len(start))
            or any(end.startswith(after) for end in ends if len(after) < len(end))
        )


_NAME = "TemperOutline{}"


def _looked_for(chat_format: ChatFormat) -> frozenset[str] | None:
    if chat_format.in_parts:
        return None
    try:
        program = program_of(chat_format.tokenizer.get_chat_template(tools=None))
    except ValueError:  # there is none without tools, which every row says
        return None
    return None if program is None else looked_for_in_contents(program)


def _special(finder: SpanFinder) -> list[str]:
    """The texts of all added tokens, of which the special ones are some."""
    tokenizer = finder.format.tokenizer
    special = map(str, tokenizer.all_special_tokens)
    return sorted({*added_tokens(tokenizer), *special, *finder.ends} - {""})


def _message(kept: str | tuple[str, str, str], name: str) -> Message:
    role, before, after = (kept, "", "") if isinstance(kept, str) else kept
    return Message(role=role, content=before + name + after)


def _check(filled: Rendered, rendered: Rendered) -> None:
    if filled != rendered:
        raise RuntimeError(
            "the chat template writes a conversation otherwise than the reading of its program "
            "says, so no row of it can be relied on; please report the template"
        )
