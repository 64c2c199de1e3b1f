"""Read one message of a record.

A message is an object with `role` and `content`, or with ShareGPT's `from` and `value`, or Gemini's
`parts`. It may call tools.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from steps.data.readers import ListCell
from steps.data.records.record_fields import is_list, is_object, parsed_json, plain, show, text
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import EXTRA_KEYS, ROLES, Message

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
_REASONINGS = ("reasoning_content", "reasoning", "thinking")

READ_KEYS = frozenset({"role", "from", "function_call", *_CONTENTS, *_REASONINGS, *EXTRA_KEYS})
"""The keys of a message that are read."""


def read_message(item: Any, field: str) -> Message:
    if isinstance(item, dict) and len(item) == 2 and item.get("role") in ROLES:  # most messages
        content = item.get("content")
        if type(content) is str:
            return {"role": item["role"], "content": text(content, field)}
    if isinstance(item, str):
        raise no_speakers(field)
    if not isinstance(item, Mapping):
        raise MalformedRow(
            "content not a string", f"{field} is {show(item)}, expected role and content"
        )
    role, calls = item.get("role", item.get("from")), _calls(item, field)
    there = [key for key in _CONTENTS if item.get(key) is not None]
    key = next((key for key in there if item[key] != ""), next(iter(there), "content"))
    content = item.get(key)
    if role in _CALLS:
        role, content, calls = "assistant", None, _call_in(content, f"{field}.{key}")
    if isinstance(role, str) and role not in ROLES:
        role = _OTHER_ROLES.get(role.lower(), role.lower())
    if role is None:
        told = [repr(key) for key, value in item.items() if value is not None][:5]
        keys = ", ".join(told) or "no keys"
        raise MalformedRow(
            "unknown role",
            f"{field} has {keys} and no role; call them role and content, or from and value",
        )
    if role not in ROLES:
        expected = ", ".join(ROLES)
        raise MalformedRow(
            "unknown role", f"{field}.role is {show(role)}, expected one of {expected}"
        )
    if content is None and calls:
        content = ""  # how a message that only calls tools is spelled
    message: Message = {"role": role, "content": content_text(content, f"{field}.{key}")}
    for name in EXTRA_KEYS:
        value = calls if name == "tool_calls" else item.get(name)
        if name == "reasoning_content":
            value = next((found for n in _REASONINGS if (found := item.get(n))), None)
        if value is not None and value != []:
            message[name] = _extra(value, name, f"{field}.{name}")
    return message


def is_second(key: Any, item: Mapping[Any, Any]) -> bool:
    """Whether a key holds another content than the one that is read, or other thoughts."""
    names = next((names for names in (_CONTENTS, _REASONINGS) if key in names), ())
    said = [item[name] for name in names if item.get(name)]
    return bool(said) and bool(item[key]) and item[key] != said[0]


def is_message(value: Any) -> bool:
    if not is_object(value) or ("role" not in value and "from" not in value):
        return False
    return any(key in value for key in (*_CONTENTS, "tool_calls", "function_call"))


def is_bare(side: Any) -> bool:
    """Whether a side of a pair is an answer without its prompt, or missing."""
    if side is None or isinstance(side, str | Mapping):
        return True
    return is_list(side) and bool(side) and is_answer(side[0])


def is_answer(item: Any) -> bool:
    """Whether an item of a record's messages is one of the assistant's, calls included."""
    role = item.get("role", item.get("from")) if isinstance(item, Mapping) else None
    known = isinstance(role, str) and _OTHER_ROLES.get(role.lower(), role)
    return known == "assistant"


def _calls(item: Mapping[str, Any], field: str) -> Any:
    """The tool calls of a message; the older `function_call` is one of them."""
    calls, call = parsed_json(item.get("tool_calls")), item.get("function_call")
    if call is None or calls:
        return calls
    return _call_in(call, f"{field}.function_call")


def listed_calls(value: Any) -> list[dict[str, Any]] | None:
    """The tool calls of a list of objects with `name` and `arguments`, or of its JSON text."""
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return None
    called = parsed_json(value)
    if not is_list(called) or not called:
        return None
    if not all(isinstance(c, Mapping) and {"name", "arguments"} == c.keys() for c in called):
        return None
    return _call_in(called, "calls")


def _call_in(value: Any, field: str) -> list[dict[str, Any]]:
    """The tool call in an object with `name` and `arguments`, or in its JSON text, or in a list."""
    call = parsed_json(value)
    called = call if is_list(call) else [call]
    if not called or not all(isinstance(one, Mapping) and "name" in one for one in called):
        raise MalformedRow(
            "tools not a list of objects", f"{field} is {show(value)}, expected name and arguments"
        )
    return [{"type": "function", "function": dict(one)} for one in called]


def content_text(content: Any, field: str) -> str:
    is_cell = isinstance(content, ListCell)  # it may be a text that spells a list
    if is_cell and not all(is_object(p) and ("type" in p or _is_text(p)) for p in content):
        return text(content, field)
    return _parts(content, field) if is_list(content) else text(content, field)


def _parts(content: Sequence[Any], field: str) -> str:
    """The text of a message that is given in parts."""
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            part = {"text": part}
        if not isinstance(part, Mapping) or not _is_text(part):
            what = f"of type {part.get('type')}" if isinstance(part, Mapping) else show(part)
            raise MalformedRow(
                "content not a string",
                f"{field}[{index}] is {what}, not a text (data.images names the column with the "
                "images of preference pairs)",
            )
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
    for call in value:
        function = call.get("function")
        arguments = (function if is_object(function) else call).get("arguments")
        if is_object(held := parsed_json(arguments)):  # a template may get what a text holds
            plain(held, f"{field}.arguments")
    return plain([dict(call) for call in value], field)


def no_speakers(field: str) -> MalformedRow:
    return MalformedRow(
        "content not a string",
        f"{field}: a list of texts does not tell who speaks; give objects with role and content, "
        "or one text",
    )
