"""Tables: Parquet, Arrow's own files and streams (what `datasets` saves), and streams of the Hub.

A row with a value that Python cannot represent is malformed. In a damaged row group, all rows are
malformed, each with its number. A table with a damaged index gives no rows.
A map is an object. `features` makes the values plain.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from steps.data.readers import Item
from steps.data.readers.blocks import CutOff, Watched
from steps.data.readers.features import Decode, decoders, plain_row
from steps.data.readers.lines import MAX_ROW_BYTES, cut_off, too_large
from steps.data.rows.reasons import MalformedRow

if TYPE_CHECKING:  # a plan looks for files, and reads none
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS_AT_ONCE = 256


def parquet_rows(opened: IO[bytes], start: int = 1) -> Iterator[Item]:
    """The rows of a Parquet file from row `start` on; row groups before it are not read."""
    import pyarrow.parquet as pq

    watched = Watched(opened)
    try:
        with watched.damage_as_cut_off():
            file = pq.ParquetFile(watched)
            _require_names_once(file.schema_arrow)
    except CutOff as error:
        yield from _from(start, [(1, cut_off(error, "row 0"))])
        return
    before = 0
    for group in range(file.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if before + count >= start:
            yield from _from(start, _row_group(file, watched, group, before, count))
        before += count


def arrow_rows(opened: IO[bytes], start: int = 1) -> Iterator[Item]:
    """The rows of an Arrow IPC file or stream from row `start` on."""
    yield from batch_rows(_arrow_batches(Watched(opened)), start)


def batch_rows(batches: Iterable["pa.RecordBatch"], start: int, done: int = 0) -> Iterator[Item]:
    """The rows of batches from row `start` on; `done` rows come before the batches."""
    try:
        for batch in batches:
            if done + batch.num_rows >= start:
                yield from _from(start, _rows(batch, done))
            done += batch.num_rows
    except CutOff as error:
        yield from _from(start, [(done + 1, cut_off(error, f"row {done}"))])


def _from(start: int, items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item[0] >= start)


def _row_group(
    file: "pq.ParquetFile", watched: Watched, group: int, before: int, count: int
) -> Iterator[Item]:
    done = 0
    batches = file.iter_batches(ROWS_AT_ONCE, row_groups=[group])
    try:
        while True:
            with watched.damage_as_cut_off():
                batch = next(batches, None)
            if batch is None:
                return
            yield from _rows(batch, before + done)
            done += batch.num_rows
    except CutOff as error:
        for number in range(before + done + 1, before + count + 1):
            yield number, MalformedRow("damaged row group", f"row group {group}: {error}")


def _arrow_batches(watched: Watched) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    with watched.damage_as_cut_off():
        magic = watched.read(6)
        watched.seek(0)
        if magic != b"ARROW1":
            stream = pa.ipc.open_stream(watched)
            _require_names_once(stream.schema)
            yield from stream
            if watched.at_end:
                raise CutOff("the stream has no end mark")
            if watched.read(1):
                raise CutOff("more follows the stream's end mark")
            return
        file = pa.ipc.open_file(watched)
        _require_names_once(file.schema)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def _require_names_once(schema: "pa.Schema") -> None:
    """Refuse a table that names a column twice, as rows would have the last one without a word."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise CutOff(f"the table names the column {twice[0]!r} twice")


def _rows(batch: "pa.RecordBatch", before: int) -> Iterator[Item]:
    is_sound, decode = _is_sound(batch), decoders(batch.schema)
    for offset in range(0, batch.num_rows, ROWS_AT_ONCE):
        part = batch.slice(offset, ROWS_AT_ONCE)
        yield from enumerate(_records(part, is_sound, decode), start=before + offset + 1)


def _is_sound(batch: "pa.RecordBatch") -> bool:
    """Whether all values can be read. An IPC file is mapped as memory: with damaged offsets,
    reading a value would crash."""
    import pyarrow as pa

    try:
        batch.validate(full=True)
    except (ValueError, pa.ArrowException):
        return False
    return True


def _records(
    batch: "pa.RecordBatch", is_sound: bool, decode: Mapping[str, Decode]
) -> list[Mapping[str, Any] | MalformedRow]:
    import pyarrow as pa

    try:
        if not is_sound:
            batch.validate(full=True)
        if batch.nbytes <= MAX_ROW_BYTES:
            return [plain_row(record, decode) for record in _objects(batch)]
    except (ValueError, OverflowError, pa.ArrowException):
        pass  # the code below finds the invalid row
    slices = (batch.slice(index, 1) for index in range(batch.num_rows))
    return [_record(row, is_sound, decode) for row in slices]


def _record(
    row: "pa.RecordBatch", is_sound: bool, decode: Mapping[str, Decode]
) -> Mapping[str, Any] | MalformedRow:
    import pyarrow as pa

    try:
        if not is_sound:
            row.validate(full=True)
        (record,) = _objects(row)
        # Rows can share values (dictionaries, views): Arrow then counts those of all rows.
        if row.nbytes > MAX_ROW_BYTES and (size := _size(record)) > MAX_ROW_BYTES:
            return too_large(size)
        return plain_row(record, decode)
    except (ValueError, OverflowError, pa.ArrowException) as error:
        found = " ".join(str(error).split())
        return MalformedRow("not valid UTF-8" if "UTF8" in found else "unreadable value", found)


def _objects(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """The rows of a batch, whose maps are objects, too; ValueError if a map has a key twice."""
    has_maps = any("map<" in str(kind) for kind in batch.schema.types)
    try:  # Arrow is several times faster where it need not look for maps
        return batch.to_pylist(maps_as_pydicts="strict" if has_maps else None)
    except KeyError as error:
        raise ValueError("a map has a key twice") from error


def _size(value: Any) -> int:
    """The bytes of a value of a table, without the names of its fields."""
    if isinstance(value, dict | list | tuple):
        return sum(map(_size, value.values() if isinstance(value, dict) else value))
    if isinstance(value, str | bytes):
        return 8 + len(value.encode() if isinstance(value, str) else value)
    return 8
