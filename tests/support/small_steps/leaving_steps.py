"""Steps that leave something behind when they return: open files, forks, closed streams."""

import gzip
import os
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from pipeline import Artifact, Output, step

LEFT_OPEN: list[Any] = []
TEXT = "hello" * 10


class OpenFile:
    """A file in a circle of references, which only a garbage collection would close."""

    def __init__(self, path: Path) -> None:
        self.file, self.itself = open(path, "w"), self  # noqa: SIM115
        self.file.write(TEXT)


@step(version="1")
def leave_open(out: Output, how: str) -> dict:
    """Writes ``TEXT`` into ``content``, and does not close it."""
    path = out.path / "content"
    match how:
        case "text":
            LEFT_OPEN.append(file := open(path, "w"))  # noqa: SIM115
            file.write(TEXT)
        case "circle":
            OpenFile(path)
        case "gzip":
            LEFT_OPEN.append(file := gzip.open(path, "wt"))  # noqa: SIM115
            file.write(TEXT)
        case "zip":
            LEFT_OPEN.append(archive := zipfile.ZipFile(path, "w"))
            archive.writestr("text", TEXT)
        case "parquet":
            LEFT_OPEN.append(writer := ParquetWriter(path, pa.schema({"text": pa.string()})))
            writer.write_table(pa.table({"text": [TEXT]}))
    return {}


@step(version="1")
def fork(out: Output, how: str) -> dict:
    """Its child leaves the step function as well."""
    child_done, parent = os.pipe()
    if not os.fork():
        os.close(child_done)  # the other end is closed when the child ends
        if how == "raise":
            raise ValueError("the child's")
        if how == "exit":
            sys.exit(0)
        return {"who": "child"}
    os.close(parent)
    os.read(child_done, 1)
    (out.path / "a.txt").write_text("made")
    return {"who": "parent"}


@step(version="1")
def close_streams(out: Output, fails: bool = False) -> dict:
    """Closes what its prints go to."""
    sys.stdout.close()
    sys.stderr.close()
    if fails:
        raise LookupError("there is no such row; name another")
    (out.path / "a.txt").write_text("made")
    return {}


@step(version="1")
def write_over(out: Output, source: Artifact) -> dict:
    """Writes into its input what is as long, and sets the time back."""
    path = source.path / "a.txt"
    status = os.stat(path)
    path.chmod(0o644)
    time.sleep(0.01)  # file systems keep times in ticks of some milliseconds
    path.write_text("z" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return {}
