"""``Made``: an artifact as whoever asked for it sees it, wherever its store is.

What :func:`pipeline.run` returns, and what a view function is given. A step sees its inputs as
:class:`pipeline.Artifact`, which has no metrics: nothing a step makes may depend on those.

    made = run({"DPO": train_dpo(...)})["DPO"]
    made.metrics["loss"], made.path / "config.json", made.load()

In a notebook an artifact shows its metrics, curves and samples: the views of its kind.
"""

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from pipeline.dag.files import FileEntry, describe
from pipeline.errors import TemperError
from pipeline.store.layout import Store
from pipeline.store.manifest import Manifest

LARGEST_FILE = 64 * 2**20
"""Bytes; a larger file is not read to be looked at."""


@dataclass(frozen=True)
class Made:
    """An artifact: what was made, how it went, and its files.

    Attributes:
        manifest: all that the store says of it: recipe, inputs, files, metrics, provenance.
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
        """``STEP@KEY``, as the ``temper`` command takes it."""
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
        """Where its files lie in the store."""
        return self.store.url_of(self.store.content_path(self.manifest))

    @property
    def path(self) -> Path:
        """A local folder with its files: of a store in a bucket, a copy that is kept on this
        machine. They are the artifact itself: read them, and never write there.

        Raises:
            TemperError: its data was evicted, or is lost or damaged.
        """
        if not self.store.is_local:
            return _local_copy(self)
        if lost := self.store.lost_files(self.manifest):
            raise self._lost(lost[0])
        return Path(self.store.content_path(self.manifest))

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def load(self, name: str = "") -> Any:
        """What the artifact holds, as Python values.

        A model is a pair of model and tokenizer of transformers. Otherwise Parquet files are an
        Arrow table, JSON Lines a list of dicts, JSON its value, and text a string; several of them
        a dict by name, in which the shards of one table are one.

        Args:
            name: of one file or folder in it, as in ``answers.jsonl`` or ``train``.

        Raises:
            TemperError: there is nothing of that name, nothing that can be loaded, or its data is
                lost.
        """
        from pipeline.show.loading import load

        return load(self, name)

    # --- for views -----------------------------------------------------------------------------

    def names(self, pattern: str) -> list[str]:
        """Files of the artifact whose names match, with the wildcards of a shell, sorted."""
        return sorted(n for n in self.manifest.files if fnmatch(n, pattern))

    def read(self, name: str) -> bytes | None:
        """The bytes of a file; ``None`` if there is none, or it is too large to look at.

        Raises:
            TemperError: the store cannot be read.
        """
        entry = self.manifest.files.get(name)
        if entry is None or entry.size > LARGEST_FILE:
            return None
        return self.store.read(f"{self.store.content_path(self.manifest)}/{name}")

    def text(self, name: str) -> str | None:
        data = self.read(name)
        return None if data is None else data.decode(errors="replace")

    def records(self, name: str) -> list[dict[str, Any]]:
        """The objects of a JSON Lines file; lines that are none are left out."""
        return json_records(self.read(name) or b"")

    def __repr__(self) -> str:
        """As in ``<Model train_dpo@1a2b3c4d: 5 files, 9.3 MB>``."""
        kind = (self.manifest.kind or "").rpartition(":")[2] or "Artifact"
        count = len(self.files)
        what = f"{count} file{'' if count == 1 else 's'}, {decimal(self.manifest.size)}"
        return f"<{kind} {self.name}: {what}>"

    def _repr_html_(self) -> str:
        from pipeline.show.notebook import drawn

        return drawn(self)

    def _lost(self, file: str) -> TemperError:
        return TemperError(
            f"the data of {self.name} is not there any more ({file} is missing or damaged); a run "
            "that asks for it makes it again"
        )


def json_records(data: bytes) -> list[dict[str, Any]]:
    """The objects of JSON Lines; lines that are none are left out."""
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                found.append(record)
    return found


def _local_copy(made: Made) -> Path:
    """The files of an artifact in a bucket, downloaded and compared with the manifest once."""
    store, manifest = made.store, made.manifest
    folder = _copies(store) / manifest.step / manifest.attempt
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
            with contextlib.suppress(OSError):  # another process was faster
                os.replace(new, folder)
    return folder


def _copies(store: Store) -> Path:
    """Where this machine keeps copies of a bucket's artifacts.

    Raises:
        TemperError: the folder is somebody else's.
    """
    folder = Path(tempfile.gettempdir()) / f"temper-copies-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TemperError(f"{folder} is no folder of yours; delete it, or set TMPDIR")
    return folder / sha256(store.url.encode()).hexdigest()[:12]
