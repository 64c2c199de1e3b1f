"""Writing tensors to a disk that may be full."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what goes wrong in safetensors into an OSError that names the file or folder."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"cannot write {path} ({error}); what was saved before is kept: make room, and run "
            "again to go on from there"
        ) from error
