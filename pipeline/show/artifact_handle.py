"""``Made``: an artifact as the caller of ``run`` sees it, wherever its store is.

:func:`pipeline.run` returns these, and view functions receive one. A step sees its inputs as
:class:`pipeline.Artifact`, which has no metrics: no output of a step may depend on metrics.

    made = run({"DPO": train_dpo(...)})["DPO"]
    made.metrics["loss"], made.path / "config.json", made.load()

In a notebook an artifact shows its metrics and the views of its kind, such as curves and samples.
"""

import contextlib
import io
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from pipeline.base.errors import TemperError
from pipeline.base.text import counted
from pipeline.dag.digests import file_digests
from pipeline.dag.files import FileEntry, describe, describe_stream
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest

LARGEST_FILE = 64 * 2**20
"""Bytes; views do not read a larger file."""


class DamagedFile(TemperError):
    """A file of an artifact has other bytes than were committed."""


@dataclass(frozen=True)
class Made:
    """An artifact with its metrics and files.

    Attributes:
        manifest: everything that the store records of it: recipe, inputs, files, metrics,
            provenance.
    """

    manifest: Manifest
    store: Store = field(repr=False, compare=False)

    @property
    def step(self) -> str:
        return self.manifest.step

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def name(self) -> str:
        """``STEP@KEY``, as the ``temper`` command accepts it."""
        return self.manifest.name

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What the step function returned."""
        return self.manifest.metrics

    @property
    def seconds(self) -> float:
        return self.manifest.seconds

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Size and digest of every file, by name."""
        return self.manifest.files

    @property
    def url(self) -> str:
        """The address of its files in the store."""
        return self.store.url_of(self.store.content_path(self.manifest))

    @property
    def path(self) -> Path:
        """A local folder with its files. If the store is a bucket, it is a copy on this machine.

        In a local store these files are the artifact itself: only read them.

        Raises:
            TemperError: its data was evicted, or is lost or damaged.
        """
        if not self.store.is_local:
            return _local_copy(self)
        if lost := self.store.lost_files(self.manifest):
            raise self._lost(lost[0])
        return Path(self.store.content_path(self.manifest))

    def require_intact(self, names: Iterable[str]) -> None:
        """Raise `TemperError` if the bytes of a file are not those that were committed."""
        is_new = not self.store.is_local and not _folder_of_copy(self).is_dir()
        folder = self.path
        if is_new:  # its digests were checked after the download
            return
        known = {name: self.manifest.files[name].blake3 for name in names}
        found = file_digests(str(folder / name) for name in known)
        if damaged := [n for n, digest in zip(known, found, strict=True) if digest != known[n]]:
            raise self._damaged(damaged[0])

    def __truediv__(self, name: str) -> Path:
        """The path of a file or folder, after a check of its bytes; raises as :meth:`load` does."""
        folder = f"{name.rstrip('/')}/"
        self.require_intact(n for n in self.files if f"{n}/".startswith(folder))
        return self.path / name

    def load(self, name: str = "") -> Any:
        """Load the content of the artifact as Python values.

        A model becomes a pair of transformers model and tokenizer. Otherwise, a Parquet file
        becomes an Arrow table, JSON Lines a list of dicts, JSON its value, and text a string.
        Several files become a dict by name, in which the shards of a table are one entry.

        Args:
            name: one file, folder or entry of that dict, such as ``answers.jsonl`` or ``train``.

        Raises:
            TemperError: there is no file or folder of this name, no file of a supported type, or
                the data is lost or damaged.
        """
        from pipeline.show.loading import load

        return load(self, name)

    # --- for views -----------------------------------------------------------------------------

    def names(self, pattern: str) -> list[str]:
        """The artifact's files whose names match a shell pattern, sorted."""
        return sorted(n for n in self.manifest.files if fnmatch(n, pattern))

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if there is none, or it is larger than ``LARGEST_FILE``.

        Raises:
            TemperError: the store cannot be read, or the file is damaged.
        """
        entry = self.manifest.files.get(name)
        if entry is None or entry.size > LARGEST_FILE:
            return None
        data = self.store.read(f"{self.store.content_path(self.manifest)}/{name}")
        if data is not None and describe_stream(io.BytesIO(data), len(data)) != entry:
            raise self._damaged(name)
        return data

    def text(self, name: str) -> str | None:
        data = self.read(name)
        return None if data is None else data.decode(errors="replace")

    def records(self, name: str) -> list[dict[str, Any]]:
        """The objects of a JSON Lines file, without lines that are no JSON object."""
        return json_records(self.read(name) or b"")

    def __repr__(self) -> str:
        """For example ``<Model train_dpo@1a2b3c4d: 5 files, 9.3 MB>``."""
        kind = (self.manifest.kind or "").rpartition(":")[2] or "Artifact"
        files = counted(len(self.files), "file")
        return f"<{kind} {self.name}: {files}, {decimal(self.manifest.size)}>"

    def _repr_html_(self) -> str:
        from pipeline.show.notebook import drawn

        return drawn(self)

    def _lost(self, file: str) -> TemperError:
        return TemperError(
            f"the data of {self.name} is not there any more ({file} is missing or damaged); a run "
            "that asks for it makes it again"
        )

    def _damaged(self, file: str) -> DamagedFile:
        return DamagedFile(
            f"{file} of {self.name} has other bytes than the step wrote; mark it as damaged with: "
            f"temper verify {self.step}, and the next run makes it again"
        )


def json_records(data: bytes) -> list[dict[str, Any]]:
    """The objects of JSON Lines, without lines that are no JSON object."""
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                found.append(record)
    return found


def _local_copy(made: Made) -> Path:
    """A local copy of an artifact in a bucket; its digests are checked once, after the download."""
    store, manifest, folder = made.store, made.manifest, _folder_of_copy(made)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".copy-") as copying:
            new = Path(copying) / "content"
            new.mkdir()
            content = store.content_path(manifest)
            with store.reading(content):
                try:
                    store.objects.get({f"{content}/{n}": new / n for n in manifest.files})
                except FileNotFoundError:
                    raise made._lost(next(iter(manifest.files))) from None
            for name, entry in manifest.files.items():
                if describe(new / name) != entry:
                    raise made._lost(name)
            with contextlib.suppress(OSError):  # another process has made the same copy
                os.replace(new, folder)
    return folder


def _folder_of_copy(made: Made) -> Path:
    return _copies(made.store) / made.manifest.step / made.manifest.attempt


def _copies(store: Store) -> Path:
    """The folder in which this machine keeps copies of a bucket's artifacts.

    Raises:
        TemperError: the folder belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"temper-copies-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TemperError(f"{folder} is no folder of yours; delete it, or set TMPDIR")
    return folder / sha256(store.url.encode()).hexdigest()[:12]
