"""Who wrote which character of a rendered conversation: seen through a template, not searched for.

Every text of a conversation is replaced by a *slot*, a word that occurs nowhere else: message
contents, reasoning, names and arguments of calls, names of tools. White space at a text's ends and
the marks that the template itself looks for (`<think>`) stay, so that the template does to slots
what it does to texts. What it writes is a *form*: its own pieces with slots between them. If the
pieces with the true texts between them make up the true rendering exactly, then every character is
accounted for: that is the proof, and it is made for each conversation.

Forms depend on the shape of a conversation alone, so they are kept: thousands of rows share one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message
from steps.data.tokens.rendering import Chat, ChatFormat, render

TOOLS = -1
"""Stands for the message that a tool's name belongs to."""

CONTENT, REASONING, CALL, TOOL = "crft"
"""What a slot stands for."""

END_OF_REASONING = "</think>"
_KEPT = 8 * 2**20
"""Characters of forms that are kept."""


@dataclass(frozen=True)
class Slot:
    """A text's place: the message it belongs to, and what it is of it."""

    message: int
    kind: str


@dataclass(frozen=True)
class Shape:
    """A chat whose texts are slots, by name; `texts` are what they stand for."""

    chat: Chat
    slots: Mapping[str, Slot]
    texts: Mapping[str, str]
    pattern: re.Pattern[str]

    @property
    def key(self) -> str:
        return repr((self.chat.messages, self.chat.tools, self.chat.template_kwargs))


@dataclass(frozen=True)
class Form:
    """What a template writes of a shape: `pieces[0] names[0] pieces[1] … pieces[-1]`."""

    pieces: tuple[str, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        paired = zip(self.pieces, (*self.names, ""), strict=True)
        return "".join(part for pair in paired for part in pair)

    def place(self, length: int) -> "tuple[int, int] | None":
        """Which piece the first `length` characters end in, and how far; None: in a slot."""
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
        """Where the pieces start in `rendering`, if they with `texts` make it up; else None."""
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
    """The forms that a template gives to shapes, each asked for once."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self.format = chat_format
        self._forms: dict[tuple[str, bool], Form | None] = {}
        self._kept = 0

    def form(self, shape: Shape, count: int | None = None, *, header: bool = False) -> Form | None:
        """Of the first `count` messages; None where the template refuses them."""
        chat = shape.chat if count is None else shape.chat.until(count)
        key = (repr((chat.messages, chat.tools, chat.template_kwargs)), header)
        if key not in self._forms:
            if self._kept > _KEPT:
                self._forms.clear()
                self._kept = 0
            form = self._forms[key] = self._ask(shape.pattern, chat, header)
            self._kept += len(key[0]) + sum(map(len, form.pieces if form else ()))
        return self._forms[key]

    def _ask(self, pattern: re.Pattern[str], chat: Chat, header: bool) -> Form | None:
        try:
            text = render(self.format, chat, header=header)
        except MalformedRow:
            return None
        parts = pattern.split(text)
        return Form(tuple(parts[::2]), tuple(parts[1::2]))


def shape_of(
    chat_format: ChatFormat,
    chat: Chat,
    rendering: str,
    only: Sequence[int] | None = None,
    *,
    names: bool = True,
    words: bool = False,
) -> Shape:
    """`chat` with slots for its texts.

    Args:
        rendering: holds none of the names of slots.
        only: of these messages alone, and no tool.
        names: of functions, too; some templates know what certain functions are called.
        words: each word has a slot of its own; some templates change the space between them.
    """
    salt = _salt(rendering)
    slots = _Slots(salt, _or_space(chat_format.looked_for) if words else chat_format.looked_for)
    messages = tuple(
        _shaped(slots, index, message, names) if only is None or index in only else message
        for index, message in enumerate(chat.messages)
    )
    tools = chat.tools
    if tools and only is None and names:
        tools = tuple(_named(slots, tool, TOOLS, TOOL) for tool in tools)
    pattern = re.compile(rf"({salt}-?\d+[{CONTENT}{REASONING}{CALL}{TOOL}]\d+x)")
    return Shape(replace(chat, messages=messages, tools=tools), slots.slots, slots.texts, pattern)


def _or_space(marks: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(rf"{marks.pattern[:-1]}|\s+)")


class _Slots:
    """Names for texts, in order."""

    def __init__(self, salt: str, marks: re.Pattern[str]) -> None:
        self.salt, self.marks = salt, marks
        self.slots: dict[str, Slot] = {}
        self.texts: dict[str, str] = {}

    def put(self, text: str, message: int, kind: str) -> str:
        """`text` with a slot for every stretch between marks and white space at its ends."""
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
    """The part of a tool, or of a call of one, that names it; their shape is up to the template."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _with_slots(slots: _Slots, value: Any, index: int) -> Any:
    """A JSON value with slots for its texts; keys, numbers and the like stay."""
    if isinstance(value, str):
        return slots.put(value, index, CALL)
    if isinstance(value, Mapping):
        return {key: _with_slots(slots, item, index) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_slots(slots, item, index) for item in value]
    return value


def _written(text: str) -> Iterator[str]:
    """The ways in which a template may write a text: as it is, or within JSON or Python."""
    yield text
    if not (text.isascii() and text.isalnum()):
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield json.dumps(text)[1:-1]
        yield repr(text)[1:-1]


def _salt(text: str) -> str:
    """The beginning of words of which the text holds none."""
    salt = 0
    while f"Slot{salt}x" in text:
        salt += 1
    return f"Slot{salt}x"
