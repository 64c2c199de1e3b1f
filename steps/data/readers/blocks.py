"""Read a file in decompressed blocks; a damaged archive gives the blocks before the damage."""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

BLOCK_BYTES = 2**18
_WIDE = {
    32: (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),  # the first begins as one of UTF-16 does
    16: (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
"""The marks with which a text begins whose characters have so many bits."""


class CutOff(ValueError):
    """A file is damaged or truncated from here on; everything before was delivered."""


class Watched(io.RawIOBase):
    """A file that records whether reading failed, to distinguish invalid bytes from a bad disk, and
    whether its last read was past its end."""

    def __init__(self, opened: IO[bytes]) -> None:
        self.opened = opened
        self.failed = self.at_end = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = self._watch(self.opened.read, size)
        self.at_end = size != 0 and not found
        return found

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
        """Turn Arrow's errors about invalid bytes into `CutOff`; pass on failures of the file."""
        import pyarrow as pa  # imported in functions, because planning reads no files

        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if self.failed:
                raise
            raise CutOff(" ".join(str(error).split())) from error


def read_blocks(opened: IO[bytes], codec: str | None) -> Iterator[bytes]:
    """The content of a text file, decompressed with Arrow's `codec` (`gzip`, `zstd`) if given.

    Raises:
        CutOff: the archive is damaged or breaks off; the blocks before the break were yielded. Or
            the text is UTF-16 or UTF-32, of which some lines would look like UTF-8.
    """
    for index, block in enumerate(_blocks(opened, codec)):
        marked = (bits for bits, marks in _WIDE.items() if block.startswith(marks))
        if index == 0 and (wide := next(marked, None)):
            raise CutOff(f"it is UTF-{wide}: convert it, as in `iconv -f utf-{wide} -t utf-8`")
        yield block


def _blocks(opened: IO[bytes], codec: str | None) -> Iterator[bytes]:
    if codec is None:
        while block := opened.read(BLOCK_BYTES):
            yield block
        return
    # Arrow's decompression rather than fsspec's: that needs a further package for zstd, and
    # without it `compression="infer"` hands back the compressed bytes.
    import pyarrow as pa

    watched = Watched(opened)
    with watched.damage_as_cut_off():
        stream = pa.CompressedInputStream(watched, codec)  # pyright: ignore[reportArgumentType]
        while block := stream.read(BLOCK_BYTES):
            yield block
        if not watched.tell():
            raise CutOff("the file is empty, which no archive is")
