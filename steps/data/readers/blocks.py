"""The bytes of a file in blocks, decompressed; all that an archive holds up to where it breaks."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

BLOCK_BYTES = 2**20


class CutOff(ValueError):
    """The bytes are not those of a whole file of its kind; what comes before was delivered."""


class Watched(io.RawIOBase):
    """A file that remembers whether it failed, so that bad bytes and a bad disk are told apart."""

    def __init__(self, opened: IO[bytes]) -> None:
        self.opened = opened
        self.failed = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._watch(self.opened.read, size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._watch(self.opened.seek, offset, whence)

    def tell(self) -> int:
        return self.opened.tell()

    def _watch(self, action: Any, *arguments: Any) -> Any:
        try:
            return action(*arguments)
        except BaseException:
            self.failed = True
            raise

    @contextmanager
    def damage_as_cut_off(self) -> Iterator[None]:
        """Turn what Arrow says of bad bytes into `CutOff`; failures of the file itself pass."""
        import pyarrow as pa  # here and below: a plan looks for files, and reads none

        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if self.failed:
                raise
            raise CutOff(" ".join(str(error).split())) from error


def read_blocks(opened: IO[bytes], codec: str | None) -> Iterator[bytes]:
    """The content of `opened`, decompressed with Arrow's `codec` (`gzip`, `zstd`) if given.

    Raises:
        CutOff: the archive is damaged or breaks off; everything before the break was yielded.
    """
    # Arrow's decompression rather than fsspec's: that needs a further package for zstd, and
    # without it `compression="infer"` hands back the compressed bytes.
    if codec is None:
        while block := opened.read(BLOCK_BYTES):
            yield block
        return
    delivered = 0
    try:
        for block in _decompressed(opened, codec, BLOCK_BYTES):
            delivered += len(block)
            yield block
    except CutOff as error:
        yield _up_to_the_break(opened, codec, delivered)
        raise error


def _decompressed(opened: IO[bytes], codec: str, size: int) -> Iterator[bytes]:
    import pyarrow as pa

    watched = Watched(opened)
    with watched.damage_as_cut_off():
        stream = pa.CompressedInputStream(watched, codec)  # pyright: ignore[reportArgumentType]
        while block := stream.read(size):
            yield block


def _up_to_the_break(opened: IO[bytes], codec: str, delivered: int) -> bytes:
    """What follows the first `delivered` bytes, which Arrow drops with the read that fails."""
    import pyarrow as pa

    opened.seek(0)
    found = bytearray()
    watched = Watched(opened)
    try:
        with watched.damage_as_cut_off():
            stream = pa.CompressedInputStream(watched, codec)  # pyright: ignore[reportArgumentType]
            while delivered:
                delivered -= len(stream.read(min(delivered, BLOCK_BYTES)))
            while byte := stream.read(1):
                found += byte
    except CutOff:
        pass
    return bytes(found)
