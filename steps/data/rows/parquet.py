"""Read and write the Parquet files that pass rows between steps.

Artifacts are addressed by content, so equal rows must give equal bytes: this module fixes the
schema, the row-group size and the compression, and writes nothing about the machine or the clock.
(The format requires the library's version in the file's footer.) A file gets its name only when it
is complete.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pyarrow is slow to import; every step file imports this module to plan
    import pyarrow as pa

ROWS_PER_GROUP = 256
"""The number of rows that readers and writers hold in memory at a time."""

_SHARD = "*-" + "[0-9]" * 5 + ".parquet"


def write_rows(path: str | Path, schema: "pa.Schema", rows: Iterable[Mapping[str, Any]]) -> int:
    """Write `rows` to the local file `path`, creating folders, and return their number.

    At most `ROWS_PER_GROUP` rows are in memory at a time. After an error, `path` is unchanged.

    Raises:
        ValueError: a row's fields are not those of `schema`, or its values do not fit; the message
            names the file, the row's position and the field.
    """
    import pyarrow.parquet as pq

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        settings: dict[str, Any] = {"compression": "zstd", "use_dictionary": _short_texts(schema)}
        with pq.ParquetWriter(unfinished, schema, store_schema=False, **settings) as writer:
            remaining = iter(rows)
            while group := list(islice(remaining, ROWS_PER_GROUP)):
                writer.write_table(_table(group, schema, path, count), row_group_size=len(group))
                count += len(group)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def read_rows(path: str | Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a file, or of a folder of shards in order, with all columns or those named.

    Raises:
        FileNotFoundError: there is no such file, or no shard in the folder.
        ValueError: a file is no Parquet file, or lacks one of `columns`.
    """
    return list(iter_rows(path, columns))


def iter_rows(path: str | Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows that `read_rows` reads, one row group in memory at a time; a missing file is
    reported at once."""
    return (row for group in iter_groups(path, columns) for row in group.to_pylist())


def iter_groups(path: str | Path, columns: Sequence[str] | None = None) -> Iterator["pa.Table"]:
    """The row groups of the rows that `read_rows` reads."""
    files = shards(path)
    return (group for file in files for group in _file_groups(file, columns))


def shards(path: str | Path) -> list[Path]:
    """The Parquet files that `path` stands for: itself, or the numbered ones in a folder.

    Raises:
        FileNotFoundError: there is none.
    """
    path = Path(path)
    files = sorted(path.glob(_SHARD)) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        what = f"no file like pairs-00000.parquet in {path}" if path.is_dir() else f"{path}"
        raise FileNotFoundError(f"{what}: no such file; has the step that writes it been run?")
    return files


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns."""
    import pyarrow.parquet as pq

    return pq.read_schema(path).names


def _file_groups(path: Path, columns: Sequence[str] | None) -> Iterator["pa.Table"]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names, columns)
            wanted = None if columns is None else list(columns)
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=wanted, use_threads=False)
    except pa.ArrowException as error:
        raise ValueError(f"{path}: not a readable Parquet file: {error}") from error


def _short_texts(schema: "pa.Schema") -> list[str]:
    """Columns of texts, which may repeat and so use a dictionary. For other columns, such as token
    ids, a dictionary costs time and space."""
    import pyarrow as pa

    return [field.name for field in schema if pa.types.is_string(field.type)]


def _table(
    group: Sequence[Mapping[str, Any]], schema: "pa.Schema", path: Path, start: int
) -> "pa.Table":
    import pyarrow as pa

    names, required = set(schema.names), [f.name for f in schema if not f.nullable]
    for number, row in enumerate(group, start=start + 1):
        _check_row(row, names, required, f"{path}: row {number}")
    try:
        return pa.Table.from_pylist(list(group), schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        span = f"rows {start + 1} to {start + len(group)}"
        raise ValueError(f"{path}: {span} hold a value that does not fit: {error}") from error


def _check_row(
    row: Mapping[str, Any], names: set[str], required: Sequence[str], where: str
) -> None:
    # Arrow silently fills a missing field with null and ignores an unknown one.
    if row.keys() != names:
        wrong = sorted(row.keys() ^ names)
        raise ValueError(f"{where}: missing or unknown fields: {', '.join(wrong)}")
    for name in required:
        if row[name] is None:
            raise ValueError(f"{where}: {name} is null, and this file requires it")


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or () if name not in present]
    if missing:
        raise ValueError(
            f"{path}: no column {', '.join(missing)}; the file has {', '.join(present)}"
        )
