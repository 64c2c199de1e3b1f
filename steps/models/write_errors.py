"""Clear errors when tensors cannot be written, as on a full disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of safetensors into an OSError that names the file or folder."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"cannot write {path} ({error}); what was saved before is kept: make room, and run "
            "again to go on from there"
        ) from error
