"""Read a conversation of a record: its prompt, its response, its history, its system prompt.

Each is a text or a list of messages. A list may also hold questions with their answers (`input` and
`output`), or texts that the user and the assistant write in turn.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from steps.data.records.one_message import (
    READ_KEYS,
    content_text,
    is_message,
    is_second,
    no_speakers,
    read_message,
)
from steps.data.records.record_fields import (
    are_texts,
    as_written,
    found,
    is_list,
    is_object,
    parsed_json,
    show,
    text,
)
from steps.data.records.trained_turns import tells, with_trained
from steps.data.rows.reasons import MalformedRow, Reason
from steps.data.rows.rows import Message, Messages
from steps.data.rows.turn_order import FOLLOWERS

_SYSTEMS = ("system", "system_prompt", "system_message", "systemInstruction")
INPUTS = ("input", "context")

_EXCHANGES = (
    ("input", "output"),
    ("human", "assistant"),
    ("user", "assistant"),
    ("question", "answer"),
    ("prompt", "response"),
)
"""Names under which one object of a list holds a question and its answer."""

_EXCHANGED_KEYS = frozenset({"system", *(key for keys in _EXCHANGES for key in keys)})
"""The keys of a question with its answer that are read."""

_DIALOGUE = re.compile(
    r"\r?\n\r?\nHuman:"
    r"|\s*(?:Human:.*\n\s*Assistant:|### ?Human:.*### ?Assistant:|USER:.*\bASSISTANT:|prompter:)",
    re.DOTALL,
)
HH_MARKER = re.compile(r"(?:\A\s*|\r?\n\r?\n)(Human|Assistant):")
_MARKERS = (
    HH_MARKER,
    re.compile(r"### ?(Human|Assistant):"),  # Guanaco
    re.compile(r"(?<![^\s>])(USER|ASSISTANT|FUNCTION RESPONSE):"),  # Vicuna, Glaive
)
_MARK_LEFT = re.compile(
    r"^[^\w\n]*(?:Human|Assistant|User|System|Function Response)\s?:|### ?(?:Human|Assistant):"
    r"|(?-i:\b(?:USER|ASSISTANT|FUNCTION RESPONSE):)",
    re.IGNORECASE | re.MULTILINE,
)
"""What may be a mark, where none was read as one; `user:` within a line is none."""
_HH_LEFT = re.compile(r"^(?:Human|Assistant):", re.MULTILINE)
_SPEAKERS = {
    **dict.fromkeys(("Human", "USER"), "user"),
    **dict.fromkeys(("Assistant", "ASSISTANT"), "assistant"),
    "FUNCTION RESPONSE": "tool",
}
_OPENS = re.compile(r"\s*[\[{]")
_END = re.compile(r"\s*(?:<\|endoftext\|>|</s>)\s*\Z")

THOUGHTS = re.compile("think|reasoning|trajector|rationale|(?:^|_)cot(?:_|$)", re.IGNORECASE)
"""Names of columns with the thoughts of an answer."""

_WRITTEN_OUT = re.compile(
    r"""\s*(?:array\()?\[\s*\{(?=.*["'](?:content|value)["']\s*:)(?:[^{}]*,)?\s*"""
    r"""["'](?:role|from)["']\s*:\s*["'](?:system|user|human|assistant|gpt|tool)["']""",
    re.DOTALL | re.IGNORECASE,
)
"""How messages begin that were written as text, by Python or by a broken JSON writer: the first has
a speaker, and there is a content."""

_RENDERED = re.compile(
    r"\s*(?:<s>|<bos>|<\|begin_of_text\|>)?\s*"
    r"(?:<\|(?:im_start|start_header_id|header_start|system|user|START_OF_TURN_TOKEN)\|>"
    r"|<start_of_turn>|\[INST\]|<｜(?:begin▁of▁sentence|User)｜>|<\|start\|>(?:system|developer|user))"
)
"""How a text begins that a chat template has written already."""


def conversation(
    record: Mapping[str, Any], field: str, trained: str, system_field: str | None
) -> Messages:
    """A whole conversation: messages, texts in turn, or one text with the marks of the speakers."""
    value = unpacked(found(record, field))
    if value is None:
        raise MalformedRow("no messages", f"{field} is missing")
    if isinstance(value, str) and (told := dialogue(value, field)):
        system = read_system(record, system_field)
        return with_system(told, system and system.removeprefix("SYSTEM:").strip())
    if is_written_out(value):
        raise written_out(value, field)
    if not is_list(value):
        how = (
            "; a text must begin with a speaker's mark, as in '### Human: … ### Assistant: …', "
            "'Human:' with 'Assistant:' after a blank line, or 'USER: … ASSISTANT: …' (what "
            "stands before the first belongs in the column that data.fields.system_field names)"
        )
        how = how if isinstance(value, str) else ", expected messages"
        raise MalformedRow("content not a string", f"{field} is {show(value)}{how}")
    if not value:
        raise MalformedRow("empty conversation", f"{field} is an empty list")
    listed = (in_turn if are_texts(value) else messages)(value, field)
    listed = with_trained(listed, value, field, trained)
    return with_system(listed, read_system(record, system_field))


def messages(value: Sequence[Any], field: str) -> Messages:
    """Read a list of messages, or of questions with answers, without a check of their order."""
    if value and (keys := _exchange(value[0])) is not None:
        named = ((f"{field}[{index}]", item) for index, item in enumerate(value))
        return tuple(said for name, item in named for said in _exchanged(item, keys, name))
    return tuple([read_message(item, f"{field}[{index}]") for index, item in enumerate(value)])


def _exchange(item: Any) -> tuple[str, str] | None:
    """The names under which an object holds a question and its answer, if it is no message."""
    if not is_object(item) or "role" in item or "from" in item:
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


def unread_keys(
    record: Mapping[str, Any], names: Iterable[str], told: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The columns of messages, of `names`, with each key of a message that is not read; without
    `told`, which say what is trained on."""
    listed = ((name, turns) for name in names if is_list(turns := record.get(name)))
    for name, turn in ((name, turn) for name, turns in listed for turn in turns):
        if not isinstance(turn, Mapping) or (len(turn) <= 2 and turn.keys() <= READ_KEYS):
            continue
        exchanged = () if "role" in turn or "from" in turn else _EXCHANGED_KEYS
        for key, value in turn.items():
            is_read = (key in READ_KEYS and not is_second(key, turn)) or key in exchanged
            if not is_read and value is not None and not tells(key, turn, told):
                yield from ((name, key),) if str(key).isprintable() else ()


def dialogue(value: Any, field: str) -> Messages:
    """The turns of a dialogue in one text; none if it does not begin with a speaker's mark. `USER:`
    and `### Human:` alone are no dialogue.

    Raises:
        MalformedRow: a mark may be part of what somebody says.
    """
    whole = text(value, field).removeprefix("\ufeff")
    for marker in _MARKERS:
        before, *pieces = marker.split(whole)
        if len(pieces) > (0 if marker is HH_MARKER else 2) and not before.strip():
            marks = [whole[: found.start(1)] for found in marker.finditer(whole)]
            said = list(zip(pieces[::2], pieces[1::2], strict=True))
            if marker is not HH_MARKER:
                _refuse_quoted(said, marks, field)
                said = _without_ends(said)
            elif any(_HH_LEFT.search(what) for _, what in said):
                raise _uncertain(field, "a turn has what may be another mark in it")
            return tuple(Message(role=_SPEAKERS[who], content=what.strip()) for who, what in said)
    return ()


def _without_ends(said: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The turns without a model's mark of the end, if all of the assistant's have it."""
    if all(_END.search(what) for who, what in said if _SPEAKERS[who] == "assistant"):
        return [(who, _END.sub("", what)) for who, what in said]
    return said


def _refuse_quoted(said: Sequence[tuple[str, str]], before: Sequence[str], field: str) -> None:
    """Refuse a dialogue of which a mark may be quoted in a turn.

    Args:
        said: each mark with the text after it.
        before: the whole text before each mark.
    """
    found = ""
    for (one, what), (next_one, _) in pairwise(said):
        if _SPEAKERS[next_one] not in FOLLOWERS[_SPEAKERS[one]]:
            found = f"{next_one}: comes after {one}:"
        elif what.count("```") % 2:
            found = f"{next_one}: stands in a block of code"
    if any(_MARK_LEFT.search(what) for _, what in said):
        found = "a turn has what may be another mark in it"
    places = zip([who for who, _ in said[1:]], map(_place, before[1:]), strict=True)
    if len(set(places)) > len({who for who, _ in said[1:]}):
        found = "a mark does not stand as the others of its speaker do"
    if any(who == "USER" and not _place(at) for (who, _), at in zip(said, before, strict=True)):
        found = "USER: stands within a line"
    if found:
        raise _uncertain(field, found)


def _uncertain(field: str, why: str) -> MalformedRow:
    return MalformedRow(
        "dialogue in one string",
        f"{field}: {why}, so it is not certain who says what; write messages with role and "
        "content, and name their column with data.fields",
    )


def _place(before: str) -> str:
    """What a mark stands after: the ends of lines, at most two, or else the end of a turn."""
    before = before.rstrip("# ")
    lines = before[len(before.rstrip()) :].count("\n")
    ended = _END.search(before)
    return "\n" * min(lines, 2) or (
        ended[0].strip() if ended else "" if before.strip() else "start"
    )


def in_turn(texts: Sequence[Any], field: str) -> Messages:
    """Texts that the user and the assistant write in turn, the user first."""
    return tuple(
        Message(role=("user", "assistant")[index % 2], content=text(said, f"{field}[{index}]"))
        for index, said in enumerate(texts)
    )


def prompt_messages(value: Any, field: str) -> Messages:
    """A prompt: a string stands for one user message."""
    if isinstance(value, str) and value.startswith('["') and is_list(parsed_json(value)):
        raise no_speakers(field)
    return _turns(value, field, "user", "no prompt", "no prompt")


def question(record: Mapping[str, Any], field: str, more: str | None) -> Messages:
    """The prompt in `field`, with the text of the field `more` after a line break, or after it if
    that is a list of messages. `input` stands for that or another usual name."""
    value, before = said_in(found(record, field)), ()
    for name in INPUTS if more == "input" else () if more is None else (more,):
        added = None if name == field else unpacked(said_in(found(record, name)))
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


def response_messages(value: Any, field: str, missing: Reason) -> Messages:
    """A response, or a conversation that ends in one: a string stands for one message, and so does
    an object."""
    if are_texts(value := said_in(value)):
        if len(value) > 1:
            raise MalformedRow(
                "content not a string",
                f"{field} holds {len(value)} texts; if they are answers, name one: {field}.0",
            )
        return ({"role": "assistant", "content": _one_turn(value[0], f"{field}[0]")},)
    return _turns(value, field, "assistant", missing, "empty conversation")


def _turns(value: Any, field: str, role: str, missing: Reason, empty: Reason) -> Messages:
    """Messages, or the only turn of `role` as one text."""
    value = unpacked(said_in(value))
    if value is None:
        raise MalformedRow(missing, f"{field} is missing")
    if is_message(value):
        return messages([value], field)
    if not is_list(value):
        return ({"role": role, "content": _one_turn(value, field)},)
    if not value:
        raise MalformedRow(empty, f"{field} is an empty list")
    return messages(value, field)


def _one_turn(value: Any, field: str) -> str:
    found = text(value, field)
    if _DIALOGUE.match(found):
        raise MalformedRow(
            "dialogue in one string",
            f"{field} holds turns of a dialogue, such as 'Human:' and 'Assistant:'; give messages, "
            "or the format hh_rlhf, whose chosen and rejected are whole dialogues",
        )
    if is_written_out(found):
        raise written_out(found, field)
    if _RENDERED.match(found):
        raise MalformedRow(
            "dialogue in one string",
            f"{field} holds what a chat template wrote ({found.strip()[:20]!r}); give messages "
            "without its markers, for the template of the model will be put around them",
        )
    return found


def is_written_out(value: Any) -> bool:
    """Whether a value is a text of messages as Python writes them, which is no JSON."""
    return isinstance(value, str) and _WRITTEN_OUT.match(value) is not None


def written_out(value: str, field: str) -> MalformedRow:
    """Of such a text, what to do."""
    return MalformedRow(
        "content not a string",
        f"{field} holds messages as a text that is no JSON ({value.strip()[:20]!r}); write "
        "them with json.dumps, or as JSON Lines or Parquet",
    )


def is_dialogue(prompt: Any) -> bool:
    """Whether a prompt is a text of turns, as in HH-RLHF, in which the assistant speaks next."""
    if not isinstance(prompt, str) or not _DIALOGUE.match(prompt):
        return False
    return prompt.rstrip().replace("\r\n", "\n").endswith("\n\nAssistant:")


def history(value: Any, field: str) -> Messages:
    """What was said before a prompt: messages, or pairs of a question and its answer."""
    value = parsed_json(value)
    if value is None or (is_list(value) and not value):
        return ()
    if not is_list(value):
        raise MalformedRow("content not a string", f"{field} is {show(value)}, expected a list")
    pairs = [pair for pair in value if are_texts(pair) and len(pair) == 2]
    if len(pairs) < len(value):
        return messages(value, field)
    return in_turn([said for pair in pairs for said in pair], field)


def unpacked(value: Any) -> Any:
    """The messages of a JSON text; other values, and texts that are no messages, unchanged."""
    if not isinstance(value, str) or not _OPENS.match(value):
        return value
    decoded = parsed_json(value)
    return decoded if _are_messages(decoded) else value


def said_in(value: Any) -> Any:
    """The text of a cell that spells JSON and holds no messages, for what somebody said may be
    JSON; other values unchanged."""
    return value if _are_messages(value) else as_written(value)


def _are_messages(value: Any) -> bool:
    listed = value if is_list(value) else [value]
    return bool(listed) and all(map(is_message, listed))


def read_system(record: Mapping[str, Any], field: str | None) -> str | None:
    """The system prompt that a record keeps in a field of its own, if the format names one."""
    for name in systems_of(field):
        value = found(record, name)
        if value is not None and value != "":
            return content_text(
                value.get("parts", value) if isinstance(value, Mapping) else value, name
            )
    return None


def systems_of(field: str | None) -> tuple[str, ...]:
    """The columns of system prompts; `system` stands for that or another usual name."""
    return _SYSTEMS if field == "system" else () if field is None else (field,)


def with_system(conversation: Messages, system: str | None) -> Messages:
    """`conversation` under the system prompt `system`, if it has none of its own."""
    if system is None or conversation[0]["role"] == "system":
        return conversation
    return ({"role": "system", "content": system}, *conversation)
