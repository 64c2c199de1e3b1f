"""Read messages from records, and check that a sequence of messages is a conversation.

A message is an object with `role` and `content`, or with ShareGPT's `from` and `value`, or Gemini's
`parts`. A list may also hold questions with their answers (`input` and `output`), or texts that the
user and the assistant write in turn. A conversation is an optional system message, then turns: the
assistant answers a user message. It may call tools, whose results come before its next message.
"""

import json
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from steps.data.readers import Cell
from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import EXTRA_KEYS, ROLES, Message, Messages, Tools

_OTHER_ROLES = {
    "developer": "system",
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "model", "bot", "chatbot", "ai"), "assistant"),
    **dict.fromkeys(
        ("function", "function_response", "tool_response", "observation", "ipython"), "tool"
    ),
}
"""Other names of roles, in any case."""

_CALLS = ("function_call", "tool_call")
"""Roles of messages that are a tool call of the assistant, as JSON text."""

_CONTENTS = ("content", "value", "parts", "text")
_SYSTEMS = ("system", "system_prompt", "system_message", "systemInstruction")
INPUTS = ("input", "context")
_REASONINGS = ("reasoning_content", "reasoning", "thinking")
_EXCHANGES = (
    ("input", "output"),
    ("human", "assistant"),
    ("user", "assistant"),
    ("question", "answer"),
    ("prompt", "response"),
)
"""Names under which one object of a list holds a question and its answer."""

TURNS = ("alternating", "merged", "any")
"""How turns out of order are handled: drop the row; merge consecutive turns of one role; or accept
any order that ends with the assistant."""

_DECIMAL = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?")
_DIALOGUE = re.compile(
    r"\n\nHuman:"
    r"|\s*(?:Human:.*\n\nAssistant:|### ?Human:.*### ?Assistant:|USER:.*\bASSISTANT:)",
    re.DOTALL,
)
_RENDERED = re.compile(
    r"\s*(?:<s>|<bos>|<\|begin_of_text\|>)?\s*"
    r"(?:<\|(?:im_start|start_header_id|system|user)\|>|<start_of_turn>|\[INST\])"
)
"""How a text begins that a chat template has written already."""

_FOLLOWERS = {
    "system": {"user"},
    "user": {"assistant"},
    "assistant": {"user", "tool"},
    "tool": {"assistant", "tool"},
}
"""The roles that may follow each role."""

READ_KEYS = frozenset({"role", "from", "function_call", *_CONTENTS, *_REASONINGS, *EXTRA_KEYS})
"""The keys of a message that are read."""

EXCHANGED_KEYS = frozenset({"system", *(key for keys in _EXCHANGES for key in keys)})
"""The keys of a question with its answer that are read."""

MOST_NESTED = 100
"""How deep tools, tool calls and template arguments may be nested. Later code (templates, JSON,
comparisons) is recursive, and Python's own recursion limit depends on the caller."""


def messages(value: Sequence[Any], field: str) -> Messages:
    """Read a list of messages, or of questions with answers, without a check of their order."""
    if value and (keys := _exchange(value[0])) is not None:
        named = ((f"{field}[{index}]", item) for index, item in enumerate(value))
        return tuple(said for name, item in named for said in _exchanged(item, keys, name))
    return tuple(_message(item, f"{field}[{index}]") for index, item in enumerate(value))


def _exchange(item: Any) -> tuple[str, str] | None:
    """The names under which an object holds a question and its answer, if it is no message."""
    if type(item) is dict and ("role" in item or "from" in item):  # most messages
        return None
    if not isinstance(item, Mapping) or "role" in item or "from" in item:
        return None
    found = [keys for keys in _EXCHANGES if all(isinstance(item.get(key), str) for key in keys)]
    return found[0] if len(found) == 1 else None


def _exchanged(item: Any, keys: tuple[str, str], field: str) -> Messages:
    """The messages of one question and its answer, with a system prompt if the object has one."""
    if _exchange(item) != keys:
        raise MalformedRow("content not a string", f"{field} has no {' and '.join(keys)}")
    roles = {"system": "system", keys[0]: "user", keys[1]: "assistant"}
    texts = ((role, item.get(key), f"{field}.{key}") for key, role in roles.items())
    return tuple(
        Message(role=role, content=text(said, name))
        for role, said, name in texts
        if said or role != "system"
    )


def in_turn(texts: Sequence[Any], field: str) -> Messages:
    """Texts that the user and the assistant write in turn, the user first."""
    return tuple(
        Message(role=("user", "assistant")[index % 2], content=text(said, f"{field}[{index}]"))
        for index, said in enumerate(texts)
    )


def are_texts(value: Any) -> TypeGuard[Sequence[str]]:
    """Whether a value is a list of texts."""
    return is_list(value) and bool(value) and all(isinstance(item, str) for item in value)


def found(record: Mapping[str, Any], field: str) -> Any:
    """The value of a field. `a.b` is the field `b` of the object in `a`, which may be JSON text,
    and `a.0` the first element of a list, unless the record has a field with the name `a.b`."""
    if field in record or "." not in field:
        return record.get(field)
    outer, _, inner = field.partition(".")
    within = _decoded(record.get(outer))
    if is_list(within):
        within = {str(index): item for index, item in enumerate(within)}
    return found(within, inner) if isinstance(within, Mapping) else None


def merged(conversation: Messages) -> Messages:
    """A conversation in which consecutive turns of one role, but for tools, are one."""
    turns: list[Message] = []
    for message in conversation:
        last = turns[-1] if turns else None
        alike = last is not None and last["role"] == message["role"] != "tool"
        if last is None or not alike or set(last) | set(message) != {"role", "content"}:
            turns.append(message)
            continue
        texts = (text for text in (last["content"], message["content"]) if text)
        turns[-1] = Message(role=message["role"], content="\n\n".join(texts))
    return tuple(turns)


def prompt_messages(value: Any, field: str) -> Messages:
    """A prompt: a string stands for one user message."""
    value = unpacked(value)
    if value is None:
        raise MalformedRow("no prompt", f"{field} is missing")
    if _is_message(value):
        return messages([value], field)
    if not is_list(value):
        if isinstance(value, str) and value.startswith('["') and is_list(_decoded(value)):
            raise _no_speakers(field)
        return ({"role": "user", "content": _one_turn(value, field)},)
    if not value:
        raise MalformedRow("no prompt", f"{field} is an empty list")
    return messages(value, field)


def question(record: Mapping[str, Any], field: str, more: str | None) -> Messages:
    """The prompt in `field`, with the text of the field `more` after a line break, or after it if
    that is a list of messages. `input` stands for that or another usual name."""
    value, before = found(record, field), ()
    for name in INPUTS if more == "input" else () if more is None else (more,):
        added = None if name == field else unpacked(found(record, name))
        if is_list(added) and added:
            before = messages(added, name)
        elif added and text(added, name).strip():
            if not isinstance(value, str):
                raise MalformedRow(
                    "content not a string",
                    f"{name} is a text beside {field}, which is {show(value)}",
                )
            value = f"{value}\n{added}"
    return (*before, *prompt_messages(value, field))


def unpacked(value: Any) -> Any:
    """The messages of a JSON text; other values, and texts that are no messages, unchanged."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    decoded = _decoded(value)
    listed = decoded if is_list(decoded) else [decoded]
    return decoded if listed and all(map(_is_message, listed)) else value


def texts_in(value: Any) -> Sequence[str] | None:
    """The texts of a list, or of its JSON text; else None."""
    listed = _decoded(value) if isinstance(value, str) and value[:1] == "[" else value
    return listed if are_texts(listed) else None


def is_dialogue(prompt: Any) -> bool:
    """Whether a prompt is a text of turns, as in HH-RLHF, in which the assistant speaks next."""
    if not isinstance(prompt, str) or not _DIALOGUE.match(prompt):
        return False
    return prompt.rstrip().endswith("\n\nAssistant:")


def is_bare(side: Any) -> bool:
    """Whether a side of a pair is an answer without its prompt, or missing."""
    if side is None or isinstance(side, str | Mapping):
        return True
    first = side[0] if is_list(side) and side else None
    role = first.get("role", first.get("from")) if isinstance(first, Mapping) else None
    return isinstance(role, str) and _OTHER_ROLES.get(role.lower(), role) == "assistant"


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping) or ("role" not in value and "from" not in value):
        return False
    return any(key in value for key in (*_CONTENTS, "tool_calls", "function_call"))


def response_messages(value: Any, field: str, missing: Reason) -> Messages:
    """A response, or a conversation that ends in one: a string stands for one message, and so does
    an object."""
    value = unpacked(value)
    if value is None:
        raise MalformedRow(missing, f"{field} is missing")
    if _is_message(value):
        return messages([value], field)
    if not is_list(value):
        return ({"role": "assistant", "content": _one_turn(value, field)},)
    if not value:
        raise MalformedRow("empty conversation", f"{field} is an empty list")
    if are_texts(value):
        return _one_of(value, field)
    return messages(value, field)


def history(value: Any, field: str) -> Messages:
    """What was said before a prompt: messages, or pairs of a question and its answer."""
    value = _decoded(value)
    if value is None or (is_list(value) and not value):
        return ()
    if not is_list(value):
        raise MalformedRow("content not a string", f"{field} is {show(value)}, expected a list")
    pairs = [pair for pair in value if are_texts(pair) and len(pair) == 2]
    if len(pairs) < len(value):
        return messages(value, field)
    return in_turn([said for pair in pairs for said in pair], field)


def listed_calls(value: Any) -> list[dict[str, Any]] | None:
    """The tool calls of a list of objects with `name` and `arguments`, or of its JSON text."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return None
    called = _decoded(value)
    if not is_list(called) or not called:
        return None
    if not all(isinstance(c, Mapping) and {"name", "arguments"} == c.keys() for c in called):
        return None
    return _call_in(called, "calls")


def _one_of(texts: Sequence[str], field: str) -> Messages:
    """The only text of a list, as a message of the assistant."""
    if len(texts) > 1:
        raise MalformedRow(
            "content not a string",
            f"{field} holds {len(texts)} texts; if they are answers, name one: {field}.0",
        )
    return ({"role": "assistant", "content": _one_turn(texts[0], f"{field}[0]")},)


def ordered(conversation: Messages, field: str, turns: str) -> Messages:
    """A conversation that ends in a response, with turns out of order treated as `turns` says.

    Raises:
        MalformedRow: turns are out of order, or there is no response.
    """
    conversation = merged(conversation) if turns == "merged" else conversation
    check_conversation(conversation, field, turns)
    return conversation


def check_conversation(conversation: Messages, field: str, turns: str = TURNS[0]) -> None:
    """Refuse messages out of order, and a conversation that does not end in a response."""
    roles = [message["role"] for message in conversation]
    if roles in (["assistant"], ["system", "assistant"]):
        raise MalformedRow("no prompt", f"{field} holds no user message, and there is no prompt")
    _check_order(roles, field, turns)
    if roles[-1] != "assistant":
        raise _wrong_order(roles, field, "the last message must be the assistant's")
    if is_blank(conversation[-1]):
        raise MalformedRow("empty response", f"{field}: the last message is blank")
    check_question(conversation[:-1], field)


def check_prompt(prompt: Messages, field: str, turns: str = TURNS[0]) -> None:
    """Refuse messages out of order, and a prompt that the assistant could not answer."""
    roles = [message["role"] for message in prompt]
    if "user" not in roles:
        raise MalformedRow("no prompt", f"{field} holds no user message")
    _check_order(roles, field, turns)
    if "assistant" not in _FOLLOWERS[roles[-1]]:
        raise _wrong_order(roles, field, "the last message must be the user's or a tool's")
    check_question(prompt, field)


def check_question(prompt: Messages, field: str) -> None:
    """Refuse a prompt whose last user message is blank."""
    asked = [message for message in prompt if message["role"] == "user"]
    if not asked or is_blank(asked[-1]):
        raise MalformedRow("no prompt", f"{field}: the last user message is blank")


def read_system(record: Mapping[str, Any], field: str | None) -> str | None:
    """The system prompt that a record keeps in a field of its own, if the format names one.
    `system` stands for that or another usual name."""
    names = _SYSTEMS if field == "system" else () if field is None else (field,)
    for name in names:
        value = found(record, name)
        if value is not None and value != "":
            return _said(value.get("parts") if isinstance(value, Mapping) else value, name)
    return None


def with_system(conversation: Messages, system: str | None) -> Messages:
    """`conversation` under the system prompt `system`, if it has none of its own."""
    if system is None or conversation[0]["role"] == "system":
        return conversation
    return ({"role": "system", "content": system}, *conversation)


def text(value: Any, field: str, reason: Reason = "content not a string") -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise MalformedRow(reason, f"{field} is {show(value)}, expected a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise MalformedRow("not valid Unicode", f"{field}: {error}") from None
    return value


def score(record: Mapping[str, Any], field: str) -> float | None:
    """A number that may be absent."""
    return _number(found(record, field), field, "score not a number")


def weight(record: Mapping[str, Any], field: str | None) -> float | None:
    """A row's weight, a number of at least 0; `None` if the format has no such field."""
    if field is None:
        return None
    value = _number(found(record, field), field, "weight not a number")
    if value is None or value < 0:
        said = "missing" if value is None else f"{value}, which is below 0"
        raise MalformedRow("weight not a number", f"{field} is {said}")
    return value


def _number(value: Any, field: str, reason: Reason) -> float | None:
    if value is None:
        return None
    if isinstance(value, Cell) and (not value.strip() or _DECIMAL.fullmatch(value)):
        value = float(value) if value.strip() else None
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedRow(reason, f"{field} is {show(value)}")
    try:
        number = float(value)
    except OverflowError:
        raise MalformedRow(reason, f"{field} is out of range") from None
    if math.isnan(number):  # how tables written from data frames spell a missing number
        return None
    if math.isinf(number):
        raise MalformedRow(reason, f"{field} is infinite")
    return number


def tools(record: Mapping[str, Any], field: str) -> Tools | None:
    """Tool descriptions: a list of objects, or that as JSON text; absent or empty: `None`."""
    value = _decoded(found(record, field))
    if value is None or (is_list(value) and not value):
        return None
    if is_list(value):
        value = [_decoded(tool) for tool in value]
    if not is_list(value) or not all(isinstance(tool, Mapping) for tool in value):
        raise MalformedRow("tools not a list of objects", f"{field} is {show(value)}")
    return tuple(plain(value, field))


def template_kwargs(record: Mapping[str, Any], field: str) -> Mapping[str, Any] | None:
    """Arguments for the chat template: an object, or that as JSON text; absent or empty: `None`."""
    value = _decoded(record.get(field))
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise MalformedRow("template arguments not an object", f"{field} is {show(value)}")
    # In a table every row has every key; a key that a row does not set is null.
    return plain({key: item for key, item in value.items() if item is not None}, field) or None


def plain(value: Any, field: str) -> Any:
    """`value` as JSON that can be written: no dates, no NaN, no lone surrogates, no deep nest."""
    if _is_deeper(value, MOST_NESTED):
        raise MalformedRow("unreadable value", f"{field} is nested over {MOST_NESTED} deep")
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False)
        written.encode()
    except UnicodeEncodeError as error:
        raise MalformedRow("not valid Unicode", f"{field}: {error}") from None
    except (TypeError, ValueError) as error:
        raise MalformedRow("unreadable value", f"{field}: {error}") from None
    return json.loads(written)


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [inner for item in level for inner in _held_by(item)]
    return bool(level)


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if is_list(value) else ()


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    if type(value) in (list, str, dict):  # asking an abstract class takes longer
        return type(value) is list
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def is_blank(message: Message) -> bool:
    """Whether a message says nothing and calls no tool."""
    return not message["content"].strip() and not message.get("tool_calls")


def show(value: Any) -> str:
    """A short description that survives being written to a file, whatever the value holds."""
    return f"{type(value).__name__} {reprlib.repr(value)}" if value is not None else "missing"


def _message(item: Any, field: str) -> Message:
    if type(item) is dict and len(item) == 2 and item.get("role") in ROLES:  # most messages
        content = item.get("content")
        if type(content) is str:
            return {"role": item["role"], "content": text(content, field)}
    if isinstance(item, str):
        raise _no_speakers(field)
    if not isinstance(item, Mapping):
        raise MalformedRow(
            "content not a string", f"{field} is {show(item)}, expected role and content"
        )
    role, calls = item.get("role", item.get("from")), _calls(item, field)
    key = next((key for key in _CONTENTS if item.get(key) is not None), "content")
    content = item.get(key)
    if role in _CALLS:
        role, content, calls = "assistant", None, _call_in(content, f"{field}.{key}")
    if isinstance(role, str) and role not in ROLES:
        role = _OTHER_ROLES.get(role.lower(), role.lower())
    if role not in ROLES:
        expected = ", ".join(ROLES)
        raise MalformedRow(
            "unknown role", f"{field}.role is {show(role)}, expected one of {expected}"
        )
    if content is None and calls:
        content = ""  # how a message that only calls tools is spelled
    message: Message = {"role": role, "content": _said(content, f"{field}.{key}")}
    for name in EXTRA_KEYS:
        value = calls if name == "tool_calls" else item.get(name)
        if name == "reasoning_content":
            value = next((found for n in _REASONINGS if (found := item.get(n))), None)
        if value is not None and value != []:
            message[name] = _extra(value, name, f"{field}.{name}")
    return message


def _calls(item: Mapping[str, Any], field: str) -> Any:
    """The tool calls of a message; the older `function_call` is one of them."""
    calls, call = _decoded(item.get("tool_calls")), item.get("function_call")
    if call is None or calls:
        return calls
    return _call_in(call, f"{field}.function_call")


def _call_in(value: Any, field: str) -> list[dict[str, Any]]:
    """The tool call in an object with `name` and `arguments`, or in its JSON text, or in a list."""
    call = _decoded(value)
    called = call if is_list(call) else [call]
    if not called or not all(isinstance(one, Mapping) and "name" in one for one in called):
        raise MalformedRow(
            "tools not a list of objects", f"{field} is {show(value)}, expected name and arguments"
        )
    return [{"type": "function", "function": dict(one)} for one in called]


def _no_speakers(field: str) -> MalformedRow:
    return MalformedRow(
        "content not a string",
        f"{field}: a list of texts does not tell who speaks; give objects with role and content, "
        "or one text",
    )


def _said(content: Any, field: str) -> str:
    return _parts(content, field) if is_list(content) else text(content, field)


def _parts(content: Sequence[Any], field: str) -> str:
    """The text of a message that is given in parts."""
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            part = {"text": part}
        if not isinstance(part, Mapping) or not _is_text(part):
            what = f"of type {part.get('type')}" if isinstance(part, Mapping) else show(part)
            raise MalformedRow("content not a string", f"{field}[{index}] is {what}, not a text")
        texts.append(text(part["text"], f"{field}[{index}].text"))
    return "".join(texts)


def _is_text(part: Mapping[str, Any]) -> bool:
    if "type" in part:
        return part["type"] in ("text", "input_text", "output_text") and "text" in part
    return [key for key, value in part.items() if value is not None] == ["text"]


def _extra(value: Any, name: str, field: str) -> Any:
    if name != "tool_calls":
        return text(value, field)
    if not is_list(value) or not all(isinstance(call, Mapping) for call in value):
        raise MalformedRow("tools not a list of objects", f"{field} is {show(value)}")
    return plain(value, field)


def _one_turn(value: Any, field: str) -> str:
    found = text(value, field)
    if _DIALOGUE.match(found):
        raise MalformedRow(
            "dialogue in one string",
            f"{field} holds turns of a dialogue, such as 'Human:' and 'Assistant:'; give messages, "
            "or the format hh_rlhf, whose chosen and rejected are whole dialogues",
        )
    if _RENDERED.match(found):
        raise MalformedRow(
            "dialogue in one string",
            f"{field} holds what a chat template wrote ({found.strip()[:20]!r}); give messages "
            "without its markers, for the template of the model will be put around them",
        )
    return found


def _decoded(value: Any) -> Any:
    """The value of a JSON text; other values and other texts are returned unchanged."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _check_order(roles: Sequence[str], field: str, turns: str) -> None:
    if turns == "any":
        return
    first = "user" if roles[0] != "system" else "system"
    pairs = zip((None, *roles), roles, strict=False)
    for before, role in pairs:
        if role not in ({first} if before is None else _FOLLOWERS[before]):
            how = "data.turns=merged joins them" if role == before else "data.turns=any takes them"
            raise _wrong_order(roles, field, f"{role} comes after {before or 'nothing'}; {how}")


def _wrong_order(roles: Sequence[str], field: str, found: str) -> MalformedRow:
    listed = ", ".join(roles if len(roles) <= 12 else [*roles[:6], "…", *roles[-5:]])
    return MalformedRow("wrong role order", f"{field} has {listed}: {found}")
