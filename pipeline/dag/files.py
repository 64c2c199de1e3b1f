"""The BLAKE3 of a file's bytes, read in blocks.

A memory map would be faster for cached files. But if another process truncates a mapped file, the
reader gets no error: it is killed (SIGBUS). Steps do truncate files: for example with
``torch.save`` over an earlier checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any

import blake3

BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True)
class FileEntry:
    """One content file: its size in bytes and the BLAKE3 of its bytes, in hexadecimal."""

    size: int
    blake3: str


def describe(path: Path) -> FileEntry:
    """Size and digest of a file, both of the bytes that were read."""
    with open(path, "rb", buffering=0) as file:
        return describe_stream(file, path.stat().st_size)


def describe_stream(
    file: Any, size: int = BLOCK_BYTES, read: Callable[[int], None] = lambda _: None
) -> FileEntry:
    """Size and digest of the rest of an open file.

    Args:
        size: about the number of bytes, so that small files do not need a large block.
        read: called with the number of bytes after each block; an exception of it ends the reading.
    """
    hasher = blake3.blake3(max_threads=blake3.blake3.AUTO)
    total = 0
    for block in _blocks(file, min(size + 1, BLOCK_BYTES)):
        hasher.update(block)
        total += len(block)
        read(len(block))
    return FileEntry(total, hasher.hexdigest())


def _blocks(file: Any, size: int) -> Iterator[memoryview | bytes]:
    if isinstance(file, RawIOBase):
        block = memoryview(bytearray(size))
        while count := file.readinto(block):
            yield block[:count]
        return
    while data := file.read(size):  # files that fsspec has opened
        yield data
