"""Records from files and from the Hub, each with a label by which a person can find it again.

A source yields `(row, record)`. `row` is the record's own `id` or `prompt_id`, else `line N`
(`row N` where a file has no lines), counted from one. No file name is in it: the same rows under
another name are the same data, and give the same labels. A line that is no JSON object is yielded
as a `MalformedRow` in the record's place: one bad line is the caller's to count, not a reason to
lose the rest.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from steps.data.preferences import MalformedRow

Record = tuple[str, Mapping[str, Any] | MalformedRow]

_JSONL_CODECS = {".jsonl": None, ".jsonl.gz": "gzip", ".jsonl.zst": "zstd"}
_SUFFIXES = (*_JSONL_CODECS, ".parquet")


def iter_records(url: str) -> Iterator[Record]:
    """The records of one file, in order; blank lines are skipped. `url`: a path or an fsspec URL.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the suffix is none of `.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.parquet`; or, on
            iteration, the file is not what its suffix says or is cut off.
    """
    suffix = next((known for known in _SUFFIXES if url.endswith(known)), None)
    if suffix is None:
        raise ValueError(f"{url}: cannot tell its format; name it one of {', '.join(_SUFFIXES)}")
    filesystem, path = fsspec.url_to_fs(url)
    if not filesystem.isfile(path):
        raise FileNotFoundError(f"{url}: no such file; check the path of the data")
    return _file_records(url, suffix)


def iter_hub_records(repo: str, revision: str, split: str) -> Iterator[Record]:
    """The records of `split` of the Hub dataset `repo` at the commit `revision`.

    Raises:
        ValueError: `revision` is not a full commit hash; a branch or tag can come to mean other
            rows, and results made from it could not be told apart.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        raise ValueError(
            f"{repo}: revision {revision!r} is not a commit; give the 40 hex digits that the "
            "dataset's Hub page lists under 'History'"
        )
    return _hub_records(repo, revision, split)


def _hub_records(repo: str, revision: str, split: str) -> Iterator[Record]:
    from datasets import load_dataset

    rows = load_dataset(repo, revision=revision, split=split)
    for number, record in enumerate(cast(Iterable[Mapping[str, Any]], rows), start=1):
        yield _labelled(record, f"row {number}")


def _file_records(url: str, suffix: str) -> Iterator[Record]:
    try:
        filesystem, path = fsspec.url_to_fs(url)
        with filesystem.open(path, "rb") as opened:
            if suffix == ".parquet":
                yield from _parquet_records(opened)
            else:
                yield from _jsonl_records(opened, _JSONL_CODECS[suffix])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{url}: cannot be read to its end: {error}") from error


def _jsonl_records(opened: IO[bytes], codec: str | None) -> Iterator[Record]:
    for number, line in enumerate(_lines(opened, codec), start=1):
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text.strip():
            yield _parse_line(text, f"line {number}")


def _lines(opened: IO[bytes], codec: str | None) -> Iterator[bytes]:
    # Arrow's decompression rather than fsspec's: that needs a further package for zstd, and
    # without it `compression="infer"` hands back the compressed bytes.
    if codec is None:
        yield from opened
    else:
        yield from io.BufferedReader(pa.CompressedInputStream(opened, codec))  # pyright: ignore[reportArgumentType]


def _parse_line(line: bytes, row: str) -> Record:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        return row, MalformedRow("broken JSON", f"{row}: {error}")
    if not isinstance(record, Mapping):
        kind = type(record).__name__
        return row, MalformedRow("not an object", f"{row}: the line holds a {kind}, not an object")
    return _labelled(record, row)


def _parquet_records(opened: IO[bytes]) -> Iterator[Record]:
    number = 0
    for batch in pq.ParquetFile(opened).iter_batches(batch_size=1024):
        for record in batch.to_pylist():
            number += 1
            yield _labelled(record, f"row {number}")


def _labelled(record: Mapping[str, Any], fallback: str) -> Record:
    for field in ("id", "prompt_id"):
        value = record.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value), record
        # A label is read by people and written as UTF-8: no line breaks, no lone surrogates.
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value, record
    return fallback, record
