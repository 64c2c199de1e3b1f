"""The Parquet files that lie between steps: their schemas, and how they are written and read.

Artifacts are addressed by content, so equal rows must give equal bytes: the schema, the row-group
size and the compression are fixed here, and nothing about the writer's machine or clock goes in.
(The library's version does, in the file's footer, as the format asks.) A file appears under its
name only when it is complete.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_GROUP = 1024


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


_ROW = _required("row", pa.string())
_MESSAGES = _list_of(pa.struct([_required("role", pa.string()), _required("content", pa.string())]))
_PROMPT = _required("prompt", _MESSAGES)
_TOKEN_IDS = _list_of(pa.int32())

PAIRS = pa.schema(
    [
        _ROW,
        _PROMPT,
        _required("chosen", pa.string()),
        _required("rejected", pa.string()),
        pa.field("score_chosen", pa.float64()),
        pa.field("score_rejected", pa.float64()),
    ]
)
"""Preference pairs as text; the fields of `preferences.PreferencePair`."""

PAIR_TOKENS = pa.schema(
    [
        _ROW,
        _required("pair_id", pa.string()),
        _required("prompt_ids", _TOKEN_IDS),
        _required("chosen_ids", _TOKEN_IDS),
        _required("rejected_ids", _TOKEN_IDS),
        _PROMPT,
        _required("chosen", pa.string()),
        _required("rejected", pa.string()),
    ]
)
"""Preference pairs as tokens, their text kept beside them for evaluation and reading."""

CONVERSATIONS = pa.schema([_ROW, _PROMPT, _required("response", pa.string())])
"""Demonstrations for supervised fine-tuning, as text."""

RESPONSE_TOKENS = pa.schema(
    [_ROW, _required("prompt_ids", _TOKEN_IDS), _required("response_ids", _TOKEN_IDS)]
)
"""Demonstrations as tokens."""

DROPPED = pa.schema([_required(name, pa.string()) for name in ("split", "row", "reason", "detail")])
"""Rows left out and why; the fields of `preferences.DroppedRow`."""


def write_rows(path: str | Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write `rows` to the local file `path` (folders are made) and return how many there were.

    Rows are taken as they come, `ROWS_PER_GROUP` in memory at a time. On any error nothing is
    left at `path` that was not there before.

    Raises:
        ValueError: a row's fields are not those of `schema`, or its values do not fit; the message
            names the file, the row's position and the field.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with pq.ParquetWriter(unfinished, schema, compression="zstd", store_schema=False) as writer:
            for group in _groups(rows):
                writer.write_table(_table(group, schema, path, count), row_group_size=len(group))
                count += len(group)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def read_rows(path: str | Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of `path` in the order written, with all columns or those named.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no Parquet file, or lacks one of `columns`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; has the step that writes it been run?")
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, columns)
            return file.read(columns=None if columns is None else list(columns)).to_pylist()
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a readable Parquet file: {error}") from error


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    remaining = iter(rows)
    while group := list(islice(remaining, ROWS_PER_GROUP)):
        yield group


def _table(
    group: Sequence[Mapping[str, Any]], schema: pa.Schema, path: Path, start: int
) -> pa.Table:
    for number, row in enumerate(group, start=start + 1):
        _check_row(row, schema, f"{path}: row {number}")
    try:
        return pa.Table.from_pylist(list(group), schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        span = f"rows {start + 1} to {start + len(group)}"
        raise ValueError(f"{path}: {span} hold a value that does not fit: {error}") from error


def _check_row(row: Mapping[str, Any], schema: pa.Schema, where: str) -> None:
    # Arrow fills an absent field with null and ignores one it does not know: both would be silent.
    if row.keys() != set(schema.names):
        wrong = sorted(row.keys() ^ set(schema.names))
        raise ValueError(f"{where}: missing or unknown fields: {', '.join(wrong)}")
    for field in schema:
        if row[field.name] is None and not field.nullable:
            raise ValueError(f"{where}: {field.name} is null, and this file requires it")


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or () if name not in present]
    if missing:
        raise ValueError(
            f"{path}: no column {', '.join(missing)}; the file has {', '.join(present)}"
        )
