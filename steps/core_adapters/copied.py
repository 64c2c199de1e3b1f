"""A folder of inputs, copied for a library that writes beside what it reads."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec

from pipeline import Artifact, File


@contextmanager
def copied(source: File | Artifact) -> Iterator[Path]:
    """A copy of the folder, alone in a temporary one."""
    with tempfile.TemporaryDirectory() as copy:
        folder = Path(copy) / "tasks"
        fs, path = fsspec.url_to_fs(source.url if isinstance(source, File) else str(source.path))
        fs.get(path.rstrip("/") + "/", f"{folder}/", recursive=True)
        yield folder
