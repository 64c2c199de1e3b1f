"""Assign every character of a rendered conversation to the template or to a message, with a proof.

Every text of a conversation (message contents, reasoning, names and arguments of calls, names of
tools) is replaced by a *slot*, a word that occurs nowhere else. White space at a text's ends and
the marks that the template itself searches for (`<think>`) stay, so that the template treats slots
like texts. The rendering with slots is a *form*: the template's own pieces with slots between them.
If the pieces, joined by the true texts, equal the true rendering exactly, then every character is
accounted for. This proof is made for each conversation.

A form depends only on the shape of a conversation, so forms are cached: thousands of rows share
one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, ChatFormat, render

TOOLS = -1
"""The message index of slots for tools' names."""

CONTENT, REASONING, CALL, TOOL = "crft"
"""The kinds of slots."""

END_OF_REASONING = "</think>"
_KEPT = 8 * 2**20
"""The size of the cache of forms, in characters."""


@dataclass(frozen=True)
class Slot:
    """The message to which a text belongs, and the kind of text."""

    message: int
    kind: str


@dataclass(frozen=True)
class Shape:
    """A chat with slots in place of texts; `texts` maps the names of slots to the true texts."""

    chat: Chat
    slots: Mapping[str, Slot]
    texts: Mapping[str, str]
    pattern: re.Pattern[str]

    @cached_property
    def key(self) -> str:
        """What determines the forms of the shape, and the places of turns in them."""
        return _key(self.chat)


@dataclass(frozen=True)
class Form:
    """A template's rendering of a shape: `pieces[0] names[0] pieces[1] … pieces[-1]`."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        paired = zip(self.pieces, (*self.names, ""), strict=True)
        return "".join(part for pair in paired for part in pair)

    def after(self, header: "Form | None") -> str | None:
        """The text after that of `header`; None if there is none, or this begins otherwise."""
        begins = header is not None and self._text.startswith(header._text)
        return self._text[len(header._text) :] if header is not None and begins else None

    def place(self, length: int) -> "tuple[int, int] | None":
        """The piece and the offset at which the first `length` characters end; None in a slot."""
        for index, piece in enumerate(self.pieces):
            if length <= len(piece):
                return index, length
            length -= len(piece)
            if index < len(self.names):
                if length < len(self.names[index]):
                    return None
                length -= len(self.names[index])
        return None

    def starts(self, texts: Mapping[str, str], rendering: str) -> list[int] | None:
        """The positions of the pieces in `rendering`, if pieces and `texts` together equal it; else
        None."""
        starts, position = [0], 0
        for index, name in enumerate(self.names):
            position += len(self.pieces[index])
            after = self.pieces[index + 1]
            written = (
                w for w in _written(texts[name]) if rendering.startswith(w + after, position)
            )
            if (found := next(written, None)) is None:
                return None
            position += len(found)
            starts.append(position)
        whole = rendering.startswith(self.pieces[0])
        return starts if whole and position + len(self.pieces[-1]) == len(rendering) else None


class Tracer:
    """Renders the forms of shapes with a template, and caches them.

    Attributes:
        places: what the caller found in the forms of a shape, by its key and a turn.
    """

    def __init__(self, chat_format: ChatFormat) -> None:
        self.format = chat_format
        self._forms: dict[tuple[str, bool], Form | None] = {}
        self._asked: dict[tuple[str, int | None, bool], Form | None] = {}
        self.places: dict[tuple[str, int], Any] = {}
        self._kept = 0

    def form(self, shape: Shape, count: int | None = None, *, header: bool = False) -> Form | None:
        """The form of the first `count` messages; None if the template refuses them."""
        asked = (shape.key, count, header)
        if asked not in self._asked:
            chat = shape.chat if count is None else shape.chat.until(count)
            self._asked[asked] = self._form(shape.pattern, chat, header)
            self._kept += len(shape.key)
        return self._asked[asked]

    def _form(self, pattern: re.Pattern[str], chat: Chat, header: bool) -> Form | None:
        key = (_key(chat), header)
        if key not in self._forms:
            if self._kept > _KEPT:
                self._forms.clear()
                self._asked.clear()
                self.places.clear()
                self._kept = 0
            form = self._forms[key] = self._ask(pattern, chat, header)
            self._kept += len(key[0]) + sum(map(len, form.pieces if form else ()))
        return self._forms[key]

    def _ask(self, pattern: re.Pattern[str], chat: Chat, header: bool) -> Form | None:
        try:
            text = render(self.format, chat, header=header)
        except MalformedRow:
            return None
        parts = pattern.split(text)
        return Form(tuple(parts[::2]), tuple(parts[1::2]))


def _key(chat: Chat) -> str:
    return repr((chat.messages, chat.tools, chat.template_kwargs))


def shape_of(
    chat_format: ChatFormat,
    chat: Chat,
    rendering: str,
    only: Sequence[int] | None = None,
    *,
    names: bool = True,
    words: bool = False,
) -> Shape:
    """Replace the texts of `chat` by slots.

    Args:
        rendering: a text in which no name of a slot may occur.
        only: replace only the texts of these messages, and no tools.
        names: also replace the names of functions. Some templates depend on certain names.
        words: give each word its own slot. Some templates change the space between words.
    """
    salt = _salt(rendering)
    marks = chat_format.looked_for
    slots = _Slots(salt, re.compile(rf"{marks.pattern[:-1]}|\s+)") if words else marks)
    messages = tuple(
        _shaped(slots, index, message, names) if only is None or index in only else message
        for index, message in enumerate(chat.messages)
    )
    tools = chat.tools
    if tools and only is None and names:
        tools = tuple(_named(slots, tool, TOOLS, TOOL) for tool in tools)
    pattern = re.compile(rf"({salt}-?\d+[{CONTENT}{REASONING}{CALL}{TOOL}]\d+x)")
    return Shape(replace(chat, messages=messages, tools=tools), slots.slots, slots.texts, pattern)


class _Slots:
    """Names for texts, in order."""

    def __init__(self, salt: str, marks: re.Pattern[str]) -> None:
        self.salt, self.marks = salt, marks
        self.slots: dict[str, Slot] = {}
        self.texts: dict[str, str] = {}

    def put(self, text: str, message: int, kind: str) -> str:
        """`text` with a slot for every part between marks, without white space at its ends."""
        parts = self.marks.split(text) if self.marks.search(text) else [text]
        last = max((i for i, part in enumerate(parts) if part == END_OF_REASONING), default=-1)
        return "".join(
            part if index % 2 else self._slot(part, message, kind if index > last else REASONING)
            for index, part in enumerate(parts)
        )

    def _slot(self, text: str, message: int, kind: str) -> str:
        core = text.strip()
        if not core:
            return text
        name = f"{self.salt}{message}{kind}{len(self.slots)}x"
        self.slots[name], self.texts[name] = Slot(message, kind), core
        before, _, after = text.partition(core)
        return before + name + after


def _shaped(slots: _Slots, index: int, message: Message, names: bool) -> Message:
    changed: dict[str, Any] = {**message}
    if reasoning := message.get("reasoning_content"):
        changed["reasoning_content"] = slots.put(reasoning, index, REASONING)
    changed["content"] = slots.put(message["content"], index, CONTENT)
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_called(slots, index, call, names) for call in calls]
    return Message(**changed)


def _called(slots: _Slots, index: int, call: Mapping[str, Any], names: bool) -> Mapping[str, Any]:
    call = _named(slots, call, index, CALL) if names else call
    function = dict(function_of(call))
    if "arguments" in function:
        function["arguments"] = _with_slots(slots, function["arguments"], index)
    return {**call, "function": function} if function_of(call) is not call else function


def _named(slots: _Slots, tool: Mapping[str, Any], index: int, kind: str) -> Mapping[str, Any]:
    """A tool, or a call of one, with a slot for its name."""
    function = function_of(tool)
    name = function.get("name")
    if not isinstance(name, str):
        return tool
    named = {**function, "name": slots.put(name, index, kind)}
    return {**tool, "function": named} if function is not tool else named


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a tool, or of a call, that has its name; the structure varies by template."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _with_slots(slots: _Slots, value: Any, index: int) -> Any:
    """A JSON value with slots in place of its texts; keys, numbers and other values stay."""
    if isinstance(value, str):
        return slots.put(value, index, CALL)
    if isinstance(value, Mapping):
        return {key: _with_slots(slots, item, index) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_slots(slots, item, index) for item in value]
    return value


def _written(text: str) -> Iterator[str]:
    """The ways in which a template may write a text: unchanged, or escaped as in JSON or Python."""
    yield text
    if not (text.isascii() and text.isalnum()):
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield json.dumps(text)[1:-1]
        yield repr(text)[1:-1]


def _salt(text: str) -> str:
    """A prefix for names of slots that does not occur in the text."""
    salt = 0
    while f"Slot{salt}x" in text:
        salt += 1
    return f"Slot{salt}x"
