"""Copies a data set of the library `datasets` into an Arrow file whose bytes follow from its rows.

Equal rows with equal features give equal bytes, whatever was mapped or filtered before, in whatever
chunks and files of the library's cache the rows lie. Files that the rows name, such as images, are
in the copy.
"""

import io
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3

from steps.data.rows.parquet import ROWS_PER_GROUP

if TYPE_CHECKING:  # every plan imports this module
    from datasets import Dataset

_DAY = 24 * 60 * 60.0
_KEPT = 30 * _DAY
"""How many seconds a copy is kept behind the day of its last use."""


def arrow_copy(data: "Dataset", folder: Path) -> Path:
    """The file in `folder` with the rows of `data`, under a digest of its bytes. It is written if
    it is missing or damaged; others that were not used for a month are deleted."""
    digest = _Digest()
    _write(data, digest)
    path = folder / f"Dataset-{digest.blake3.hexdigest(16)}.arrow"
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.glob("*Dataset-*.arrow*"):
        if other != path and _age(other) > _KEPT:
            other.unlink(missing_ok=True)
    if path.exists() and blake3.blake3().update_mmap(path).digest() == digest.blake3.digest():
        if _age(path) > _DAY:
            os.utime(path)
        return path
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(unfinished, "wb") as file:
            _write(data, file)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _age(file: Path) -> float:
    """The seconds since a file was written or marked as used."""
    return time.time() - file.stat().st_mtime


class _Digest(io.RawIOBase):
    """A file that keeps only the digest of what is written."""

    def __init__(self) -> None:
        self.blake3 = blake3.blake3()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.blake3.update(data)
        return len(data)


def _write(data: "Dataset", file: Any) -> None:
    import pyarrow as pa
    from datasets.table import embed_table_storage

    schema = data.features.arrow_schema
    with pa.ipc.new_stream(file, schema) as writer:
        for table in data.with_format("arrow").iter(ROWS_PER_GROUP):
            rows = embed_table_storage(table.replace_schema_metadata(schema.metadata))  # type: ignore
            # `take` makes new buffers, without what lies beside or below the values
            writer.write_table(rows.combine_chunks().take(pa.array(range(rows.num_rows))))
