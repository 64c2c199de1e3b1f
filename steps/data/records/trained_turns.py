"""Read which of the assistant's messages are trained on, where a data set says so of each.

OpenAI, Mistral and many ShareGPT files write `weight`, 0 or 1; axolotl's users `train`, ms-swift's
`loss`, true or false. A message without such a key is trained on if another one of its conversation
has it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from steps.data.readers import Cell
from steps.data.records.one_message import is_answer
from steps.data.records.record_fields import is_object, parsed_json, show
from steps.data.rows.reasons import MalformedRow
from steps.data.rows.rows import Message, Messages

TRAINED = "train"
_USUALLY = (TRAINED, "weight", "loss")


def told_by(key: str) -> tuple[str, ...]:
    """The keys of messages that tell; `train` stands for that or another usual name."""
    return _USUALLY if key == TRAINED else (key,)


def with_trained(listed: Messages, given: Sequence[Any], field: str, key: str) -> Messages:
    """Messages with `trained` on each of the assistant's, if the record tells it of one of them.

    Args:
        given: the record's messages, from which `listed` was read.

    Raises:
        MalformedRow: a value is neither true nor false, or two keys of a message contradict.
    """
    if len(given) != len(listed):  # questions with their answers
        return listed
    named = (f"{field}[{index}]" for index in range(len(given)))
    told = [
        _told(item, name, key) if message["role"] == "assistant" else None
        for message, item, name in zip(listed, given, named, strict=True)
    ]
    if all(trained is None for trained in told):
        return listed
    return tuple(map(_marked, listed, told))


def tells(name: Any, turn: Mapping[Any, Any], names: Sequence[str]) -> bool:
    """Whether `name`, of the keys `names`, is one of an answer, or says of another message what
    holds: that it is not trained on."""
    value = turn[name]
    return name in names and (is_answer(turn) or not value or _is_missing(value))


def _told(item: Any, name: str, key: str) -> bool | None:
    if not is_object(item) or len(item) == 2:
        return None
    told = dict(_values(item, name, key))
    if len(set(told.values())) > 1:
        raise MalformedRow(
            "trained not a boolean", f"{name} has {' and '.join(told)}, which contradict each other"
        )
    return next(iter(told.values()), None)


def _values(item: Mapping[str, Any], name: str, key: str) -> Iterator[tuple[str, bool]]:
    for told in told_by(key):
        value = item.get(told)
        value = parsed_json(value) if isinstance(value, Cell) else value
        if _is_missing(value):
            continue
        if value not in (0, 1):
            raise MalformedRow(
                "trained not a boolean",
                f"{name}.{told} is {show(value)}, expected 1 or 0: a message is trained on or "
                "not; if that is not what it means, name another key with data.fields.trained",
            )
        yield told, bool(value)


def _is_missing(value: object) -> bool:
    return value is None or value != value  # NaN, as tables spell a missing number


def _marked(message: Message, trained: bool | None) -> Message:
    if message["role"] != "assistant":
        return message
    return Message(**{**message, "trained": trained is not False})
