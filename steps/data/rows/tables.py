"""The Parquet schema of each kind of row, and conversions from and to rows.

Messages have role and content as columns. Their other keys are JSON text (`extra`), because the
content of a tool call has no schema; so are `tools` and `template_kwargs`. The order of keys is
kept, because chat templates write keys in this order.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import pyarrow as pa

from steps.data.rows.rows import (
    ConversationRow,
    Message,
    Messages,
    PreferenceRow,
    PromptRow,
    Row,
    TaughtPromptRow,
    TextRow,
    UnpairedRow,
)

ROWS_PER_SHARD = 2048
"""The most rows in one file."""


def required(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Columns without nulls."""
    return [pa.field(name, kind, nullable=False) for name in names]


def _may_be_null(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind) for name in names]


_TEXT = pa.string()
_MESSAGE = [*required(_TEXT, "role", "content"), *_may_be_null(_TEXT, "extra")]
MESSAGES = pa.list_(pa.field("element", pa.struct(_MESSAGE), nullable=False))
"""A column of conversations."""

(ROW,) = required(_TEXT, "row")
SCORES = _may_be_null(pa.float64(), "score_chosen", "score_rejected")
WEIGHT = _may_be_null(pa.float64(), "weight")
"""The weight of a row; null means 1."""
FOR_TEMPLATE = _may_be_null(_TEXT, "tools", "template_kwargs")
"""The arguments of a chat template besides the messages."""

_SIDES = required(MESSAGES, "prompt", "chosen", "rejected")
PAIRS = pa.schema([ROW, *_SIDES, *FOR_TEMPLATE, *SCORES, *WEIGHT])
CONVERSATIONS = pa.schema([ROW, *required(MESSAGES, "messages"), *FOR_TEMPLATE])
PROMPTS = pa.schema(
    [ROW, *required(MESSAGES, "prompt"), *_may_be_null(_TEXT, "answer"), *FOR_TEMPLATE]
)
TEACHER = "teacher"
"""A column that prompts have only if one of a file names its teacher."""
_LABELLED = [*required(MESSAGES, "prompt", "completion"), *required(pa.bool_(), "label")]
UNPAIRED = pa.schema([ROW, *_LABELLED, *FOR_TEMPLATE, *WEIGHT])
TEXTS = pa.schema([ROW, *required(_TEXT, "text")])

LEDGER = pa.schema(
    [
        *required(_TEXT, "split", "source", "row", "outcome"),
        *_may_be_null(_TEXT, "reason", "detail"),
    ]
)
"""One line for every row that was read; the fields of `ledger.Entry`."""

SCHEMAS: Mapping[type, pa.Schema] = {
    PreferenceRow: PAIRS,
    ConversationRow: CONVERSATIONS,
    PromptRow: PROMPTS,
    TaughtPromptRow: PROMPTS.append(*_may_be_null(_TEXT, TEACHER)),
    UnpairedRow: UNPAIRED,
    TextRow: TEXTS,
}
STEMS: Mapping[type, str] = {
    PreferenceRow: "pairs",
    ConversationRow: "conversations",
    PromptRow: "prompts",
    UnpairedRow: "completions",
    TextRow: "texts",
}
"""The file name of each kind of row: `pairs-00000.parquet` and so on."""

_CONVERSATIONS = frozenset({"prompt", "chosen", "rejected", "messages", "completion"})
_JSON = frozenset({"tools", "template_kwargs"})

_Row = TypeVar("_Row", bound=Row)


def shard_name(kind: type, number: int) -> str:
    """The name of file `number`, from zero, of a kind of row."""
    return f"{STEMS[kind]}-{number:05d}.parquet"


def to_record(row: Row, label: str | None = None) -> dict[str, Any]:
    """`row` as a record of its schema, under another label if one is given."""
    record = dict(vars(row))
    for name in _converted(type(row)):
        record[name] = _to_column(name, record[name])
    return record if label is None else record | {"row": label}


def schema_of(kind: type, columns: Collection[str]) -> pa.Schema:
    """The schema of a file of rows whose records have these columns."""
    taught = kind is PromptRow and TEACHER in columns
    return SCHEMAS[TaughtPromptRow if taught else kind]


def from_record(kind: type[_Row], record: Mapping[str, Any]) -> _Row:
    """The row that `to_record` wrote; columns that the kind does not have are ignored."""
    values = {name: record[name] for name in _names(kind)}
    for name in _converted(kind):
        values[name] = _from_column(name, values[name])
    return kind(**values)


@cache
def _names(kind: type[Row]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _converted(kind: type[Row]) -> tuple[str, ...]:
    return tuple(name for name in _names(kind) if name in _CONVERSATIONS | _JSON)


def messages_to_column(messages: Iterable[Message]) -> list[dict[str, str | None]]:
    """A conversation as a value of a `MESSAGES` column."""
    return [
        {
            "role": message["role"],
            "content": message["content"],
            "extra": _extra(message) if len(message) > 2 else None,
        }
        for message in messages
    ]


def messages_from_column(value: Iterable[Mapping[str, Any]]) -> Messages:
    """The conversation that `messages_to_column` wrote."""
    return tuple(map(_message, value))


def _message(turn: Mapping[str, Any]) -> Message:
    found: Message = {"role": turn["role"], "content": turn["content"]}
    if turn["extra"]:
        found.update(json.loads(turn["extra"]))
    return found


def _to_json(value: Any) -> str:
    """JSON text; keys in their own order."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _extra(message: Message) -> str:
    return _to_json({k: value for k, value in message.items() if k not in ("role", "content")})


def _to_column(name: str, value: Any) -> Any:
    if name in _CONVERSATIONS:
        return messages_to_column(value)
    return None if value is None else _to_json(value)


def _from_column(name: str, value: Any) -> Any:
    if name in _CONVERSATIONS:
        return messages_from_column(value)
    if value is None:
        return None
    decoded = json.loads(value)
    return tuple(decoded) if name == "tools" else decoded
