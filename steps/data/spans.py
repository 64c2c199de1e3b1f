"""Where in a rendered conversation the assistant's own words lie: derived, verified, not guessed.

A span is exactly an assistant's text, as the template writes it, and the token that ends its turn;
not the header before it and not the line break after it. It is found in one of four ways, each of
which proves what it finds about this very conversation; where all fail, the row is refused.

1. *Marks*: the template has `{% generation %}` blocks, one for each assistant turn, that hold the
   turns' texts. (A template whose marks mark nothing is refused: its mask would be all zero.)
2. *Header*: the messages before the turn, rendered with the generation prompt, are a prefix of the
   text, and what follows is the turn's text (perhaps trimmed) and the closing of a turn.
3. *Remainder*: for a turn with tool calls or reasoning, which a template spells its own way: what
   the turn adds after its header, up to the last special token in it. Calls with other names and
   arguments must come out in it, every one.
4. *Sentinels*: templates rewrite: they strip reasoning from earlier turns (Qwen 3), write an empty
   one into the last, merge or move system prompts. The conversation is rendered with sentinels
   for the texts; the pieces between the sentinels must then make up the true text exactly, with
   each message's own text between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steps.data.reasons import MalformedRow
from steps.data.rendering import Chat, ChatFormat, Span, render, render_marked
from steps.data.rows import Message

END_OF_REASONING = "</think>"


@dataclass(frozen=True)
class Rendered:
    """A chat as text, up to the end of its last span.

    Attributes:
        spans: the assistant turns that were asked for, in order.
        extends: what the model would be given to write the last turn is a prefix of the text.
        shows_tools: the template writes every tool; those made for models without tools do not.
        shows_messages: it writes every message.
        spells_special: a message or tool spells out a special token.
        closes: every span ends with a token that ends a turn.
    """

    text: str
    spans: tuple[Span, ...]
    extends: bool = True
    shows_tools: bool = True
    shows_messages: bool = True
    spells_special: bool = False
    closes: bool = True


def assistant_turns(messages: Sequence[Message], start: int = 0) -> list[int]:
    """The positions from `start` on of messages that an assistant wrote."""
    return [
        index
        for index, message in enumerate(messages)
        if index >= start and message["role"] == "assistant"
    ]


def render_spans(
    chat_format: ChatFormat,
    chat: Chat,
    turns: Sequence[int],
    headers: Mapping[int, str] | None = None,
) -> Rendered:
    """`chat`, which ends with an assistant's message, and the spans of the messages `turns`.

    Args:
        turns: positions of assistant messages, ascending; the last is the chat's last message.
        headers: renderings with generation prompt of the first so many messages, where the caller
            has them already.

    Raises:
        MalformedRow: the template refuses the chat or a span cannot be derived.
    """
    _refuse_spelled_out_ends(chat_format, [chat.messages[turn] for turn in turns])
    text, spans = _marked_spans(chat_format, chat, turns)
    shown = {turns[-1], *(headers or ())}
    headers = dict(headers or {})
    if not spans:
        for turn in turns:
            if turn not in headers:
                headers[turn] = render(chat_format, chat.until(turn), header=True)
        spans = _derived_spans(chat_format, chat, text, turns, headers)
    _refuse_doubled(chat_format, text)
    rewritten = [count for count, header in headers.items() if not text.startswith(header)]
    for count in rewritten:
        _refuse_lost_messages(chat.until(count), headers[count], text[: spans[-1][0]])
    return Rendered(
        text[: spans[-1][1]],
        tuple(spans),
        extends=shown.isdisjoint(rewritten) and not chat_format.headless,
        shows_tools=_shows_tools(chat_format, chat, text),
        shows_messages=_shows_messages(chat_format, chat, text),
        spells_special=any(map(chat_format.special.search, _strings((chat.messages, chat.tools)))),
        closes=all(text[:end].endswith(tuple(chat_format.ends)) for _, end in spans),
    )


def _marked_spans(
    chat_format: ChatFormat, chat: Chat, turns: Sequence[int]
) -> tuple[str, list[Span]]:
    """The text, and the spans that the template marks: none where it marks none, or wrongly."""
    if not chat_format.marks_generation:
        return render(chat_format, chat), []
    text, blocks = render_marked(chat_format, chat)
    if not any(end > start for start, end in blocks):
        raise MalformedRow(
            "template marks no assistant turn",
            "it has {% generation %} blocks, but none is written for this conversation",
        )
    every = assistant_turns(chat.messages)
    if len(blocks) != len(every):
        return text, []
    for turn, (start, end) in zip(every, blocks, strict=True):
        if not _holds(text[start:end], chat.messages[turn]):
            return text, []
    if not _marks_hold_calls(chat_format, chat, text, every):
        return text, []
    marked = dict(zip(every, blocks, strict=True))
    return text, [_without_trailing_space(chat_format, text, marked[turn]) for turn in turns]


def _holds(block: str, message: Message) -> bool:
    words = [form for form in _forms(message) if form.strip()]
    called = all(name in block for name in _called(message))
    return called and (not words or any(form in block for form in words))


def _marks_hold_calls(chat_format: ChatFormat, chat: Chat, text: str, turns: Sequence[int]) -> bool:
    """Whether each block holds all that its turn calls, seen by renaming it."""
    renamed = {turn: _renamed(text, chat.messages[turn], turn) for turn in turns}
    if not any(words for _, words in renamed.values()):
        return True
    changed = _with_messages(chat, {turn: message for turn, (message, _) in renamed.items()})
    shown, blocks = render_marked(chat_format, changed)
    return len(blocks) == len(turns) and all(
        word in shown[start:end]
        for (start, end), (_, words) in zip(blocks, renamed.values(), strict=True)
        for word in words
    )


def _without_trailing_space(chat_format: ChatFormat, text: str, span: Span) -> Span:
    """The span without white space that its block writes after the end-of-turn token."""
    start, end = span
    trimmed = start + len(text[start:end].rstrip())
    ends = [match.end() for match in chat_format.special.finditer(text, start, end)]
    return (start, trimmed) if ends and ends[-1] == trimmed else span


def _derived_spans(
    chat_format: ChatFormat,
    chat: Chat,
    text: str,
    turns: Sequence[int],
    headers: Mapping[int, str],
) -> list[Span]:
    found = {turn: _after_header(chat_format, chat, text, turn, headers[turn]) for turn in turns}
    missing = [turn for turn, span in found.items() if span is None]
    if missing:
        found |= _between_sentinels(chat_format, chat, text, missing)
    return [span for span in found.values() if span is not None]


def _after_header(
    chat_format: ChatFormat, chat: Chat, text: str, turn: int, header: str
) -> Span | None:
    if not text.startswith(header):
        return None
    message, start = chat.messages[turn], len(header)
    if not _has_more_than_content(message):
        for form in _forms(message):
            whole = chat_format.opening + form + chat_format.closing
            if text.startswith(whole, start):
                return start, start + len(whole)
        if END_OF_REASONING not in message["content"]:
            return None
    return _remainder(chat_format, chat, text, turn, start)


def _remainder(
    chat_format: ChatFormat, chat: Chat, text: str, turn: int, start: int
) -> Span | None:
    """What the turn adds from `start` on, but for what the template writes before any content."""
    message = chat.messages[turn]
    renamed, called = _renamed(text, message, turn)
    if called and not _writes(chat_format, chat.until(turn + 1), {turn: renamed}, called):
        return None
    if not _has_reasoning(message):
        (sentinel,) = _sentinels(text, 1)
        marked = render(
            chat_format, _with_messages(chat, {turn: Message(**{**renamed, "content": sentinel})})
        )
        before = marked.partition(sentinel)[0].removesuffix(chat_format.opening)
        if sentinel in marked and text.startswith(before) and start <= len(before):
            start = len(before)  # which calls that are written before the content never let it be
    end = _end_of_turn(chat_format, chat, text, turn, start)
    if end is None or not all(name in text[start:end] for name in _called(message)):
        return None
    return (start, end) if start < end else None


def _called(message: Message) -> list[str]:
    """The names of the functions that a message calls: some templates leave calls out."""
    return [str(_function(call).get("name")) for call in message.get("tool_calls") or ()]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a tool, or of a call of one, that names it; their shape is up to the template."""
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _renamed(text: str, message: Message, turn: int) -> tuple[Message, list[str]]:
    """A message that calls other functions with other arguments, and what it says there: words
    of which the text holds none, so that they show what a template writes of a call."""
    calls = message.get("tool_calls") or ()
    words: list[str] = []

    def word() -> str:
        words.append(f"{_salt(text)}call{turn}x{len(words)}x")
        return words[-1]

    def arguments(given: Any) -> Any:
        if isinstance(given, Mapping):
            return {name: word() for name in given}
        return word() if isinstance(given, str) else given

    def renamed(call: Mapping[str, Any]) -> dict[str, Any]:
        function = {**_function(call), "name": word()}
        if "arguments" in function:
            function["arguments"] = arguments(function["arguments"])
        return _with_function(call, function)

    changed = [renamed(call) for call in calls]
    return Message(**{**message, "tool_calls": changed}) if calls else message, words


def _shows_tools(chat_format: ChatFormat, chat: Chat, text: str) -> bool:
    """Whether the template writes every tool, seen by giving them other names."""
    tools = chat.tools or ()
    names = [str(_function(tool).get("name")) for tool in tools]
    if not all(name in text for name in names):
        return False
    words = _sentinels(text, len(tools))
    renamed = tuple(
        _with_function(tool, {**_function(tool), "name": word})
        for tool, word in zip(tools, words, strict=True)
    )
    shown = render(chat_format, replace(chat, tools=renamed)) if tools else ""
    return all(word in shown for word in words)


def _shows_messages(chat_format: ChatFormat, chat: Chat, text: str) -> bool:
    """Whether the template writes every message: its words are there, one after the other, or it
    writes a sentinel in their place."""
    missing, at = [], 0
    for index, message in enumerate(chat.messages):
        found = [(form, text.find(form, at)) for form in _forms(message) if form.strip()]
        first = next(((form, start) for form, start in found if start >= 0), None)
        if first:
            at = first[1] + len(first[0])
        elif found:
            missing.append(index)
    if not missing:
        return True
    marks = dict(zip(missing, _sentinels(text, len(missing)), strict=True))
    try:
        shown = render(chat_format, _with_contents(chat, marks))
    except MalformedRow:  # it wants to know the words, so it cannot be seen whether it writes them
        return False
    return all(sentinel in shown for sentinel in marks.values())


def _with_function(tool: Mapping[str, Any], function: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": function} if _function(tool) is not tool else function


def _writes(
    chat_format: ChatFormat, chat: Chat, messages: Mapping[int, Message], words: Sequence[str]
) -> bool:
    shown = render(chat_format, _with_messages(chat, messages))
    return all(word in shown for word in words)


def _end_of_turn(
    chat_format: ChatFormat, chat: Chat, text: str, turn: int, start: int
) -> int | None:
    """Where the last special token of a turn ends, or the turn, if it has none."""
    so_far = text
    if turn < len(chat.messages) - 1:
        so_far = render(chat_format, chat.until(turn + 1))
    ends = [match.end() for match in chat_format.special.finditer(so_far, start)]
    so_far = so_far[: ends[-1]] if ends else so_far
    if text.startswith(so_far):
        return len(so_far)
    # Written otherwise when it comes last, as with Qwen 3's empty reasoning: then what it has here
    # must be the end of what it has there, and it must close once.
    stop = text.find(chat_format.closing, start) + len(chat_format.closing)
    once = so_far.count(chat_format.closing, start) == 1
    return stop if once and len(text[start:stop]) and so_far.endswith(text[start:stop]) else None


def _between_sentinels(
    chat_format: ChatFormat, chat: Chat, text: str, turns: Sequence[int]
) -> dict[int, Span]:
    sentinels = _sentinels(text, len(turns))
    marks = dict(zip(turns, sentinels, strict=True))
    marked = render(chat_format, _with_contents(chat, marks))
    spans: dict[int, Span] = {}
    position = 0
    for turn, sentinel in marks.items():
        before, once, marked = marked.partition(sentinel)
        if not once or sentinel in marked or not text.startswith(before, position):
            raise _not_found(turn)
        position += len(before)
        after = _next_piece(marked, sentinels)
        form = next(
            (f for f in _forms(chat.messages[turn]) if text.startswith(f + after, position)), None
        )
        closed = after.startswith(chat_format.closing)
        if form is None or not closed or chat.messages[turn].get("tool_calls"):
            raise _not_found(turn)
        opened = len(chat_format.opening) if before.endswith(chat_format.opening) else 0
        end = position + len(form) + len(chat_format.closing)
        spans[turn] = (position - opened, end)
        position += len(form)
    if text[position:] != marked:
        raise _not_found(turns[-1])
    return spans


def _with_contents(chat: Chat, contents: Mapping[int, str]) -> Chat:
    changed = {
        index: Message(**{**chat.messages[index], "content": content})
        for index, content in contents.items()
    }
    return _with_messages(chat, changed)


def _with_messages(chat: Chat, changed: Mapping[int, Message]) -> Chat:
    messages = (changed.get(index, message) for index, message in enumerate(chat.messages))
    return replace(chat, messages=tuple(messages))


def _next_piece(marked: str, sentinels: Sequence[str]) -> str:
    starts = [at for sentinel in sentinels if (at := marked.find(sentinel)) >= 0]
    return marked[: min(starts, default=len(marked))]


def _sentinels(text: str, count: int) -> list[str]:
    """Words that survive trimming and splitting, of which the text holds none."""
    return [f"{_salt(text)}{index}x" for index in range(count)]


def _salt(text: str) -> str:
    salt = 0
    while f"Sentinel{salt}x" in text:
        salt += 1
    return f"Sentinel{salt}x"


def _forms(message: Message) -> list[str]:
    """The ways in which templates write a message's text: whole, trimmed of white space or of
    line breaks, without its reasoning; the longest first."""
    content = message["content"]
    texts = [content]
    if END_OF_REASONING in content:
        texts.append(content.rpartition(END_OF_REASONING)[2])
    trimmed = (
        form
        for text in texts
        for trim in (None, "\n")
        for form in (text, text.lstrip(trim), text.rstrip(trim), text.strip(trim))
    )
    return sorted(dict.fromkeys(trimmed), key=len, reverse=True)


def _has_more_than_content(message: Message) -> bool:
    return bool(message.get("tool_calls") or message.get("reasoning_content"))


def _has_reasoning(message: Message) -> bool:
    return bool(message.get("reasoning_content")) or END_OF_REASONING in message["content"]


def _refuse_spelled_out_ends(chat_format: ChatFormat, messages: Sequence[Message]) -> None:
    """Written out in a response, these tokens would end the turn early, or end it twice."""
    for message in messages:
        for end in chat_format.ends:
            if any(end in text for text in _strings(message)):
                raise MalformedRow("end-of-turn inside the response", f"the text contains {end}")


def _strings(value: Any) -> Iterator[str]:
    """Every text within a JSON value, keys included."""
    left = [value]  # and no recursion: a value may be nested deeper than that goes
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as within:
                left += [*within, *within.values()]
            case list() | tuple() as within:
                left += within


def _refuse_doubled(chat_format: ChatFormat, text: str) -> None:
    """A BOS at the start of a text must be its only one there."""
    bos = str(chat_format.special_tokens.get("bos_token") or "")
    if bos and text.startswith(bos) and text[len(bos) :].lstrip().startswith(bos):
        raise MalformedRow("doubled special token", f"the text starts with {bos} twice")


def _refuse_lost_messages(prompt: Chat, header: str, before: str) -> None:
    """The text before a response may be rewritten once it is answered, but may lose no message."""
    for message in prompt.messages:
        content: Any = message["content"].strip()
        if message["role"] != "assistant" and content in header and content not in before:
            raise MalformedRow(
                "template does not extend the prompt",
                f"once answered, the chat template leaves out a {message['role']} message",
            )


def _not_found(turn: int) -> MalformedRow:
    return MalformedRow(
        "assistant turn not found in the rendered text",
        f"message {turn + 1}: the chat template changes it in a way that cannot be traced",
    )
