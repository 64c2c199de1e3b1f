"""The store: the root URL under which everything that steps make lies.

    temper.json                               layout version, written first
    manifests/<step>/<key>.json               the commit of an artifact; created, never replaced
    attempts/<step>/<key>/<attempt>/content/  an attempt's files: the artifact's, once committed
                                    spec.json, report.json, log.txt
    scratch/<step>/<key>/                     checkpoints and finished shards; outlives attempts
                         .lock                held by the driver while it makes the artifact
    progress/<step>/<key>.json                how far a running step is
    runs/<run>.json                           one record per invocation

A commit is the creation of the manifest, which only one writer can win; the manifest names the
attempt and every file in it. An attempt that was killed, or that lost the race, is never named by
a manifest and so can never be taken for a result. Nothing is renamed across folders: object
stores cannot. Scratch lies on local disk; for a remote store that is a folder of this machine.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from filelock import FileLock
from fsspec.implementations.local import LocalFileSystem

from pipeline.errors import TemperError
from pipeline.manifest import Manifest

LAYOUT_VERSION = 1
LOCK_POLL_SECONDS = 0.2


class Store:
    """Artifacts, attempts, scratch and run records under one local path or fsspec URL.

    Raises:
        TemperError: the URL is not understood, not writable, or holds another layout.
    """

    def __init__(self, url: str):
        if not url:
            raise TemperError("the store has no name; set store=PATH_OR_URL (or TEMPER_STORE)")
        try:
            self.fs, root = fsspec.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise TemperError(
                f"store {url!r} is not a path or URL that can be opened: {error}"
            ) from None
        self.root = root.rstrip("/")
        self.is_local = isinstance(self.fs, LocalFileSystem)
        self.url = self.url_of(self.root)

    def url_of(self, path: str) -> str:
        """A path within the store as a person or another process can open it."""
        return path if self.is_local else self.fs.unstrip_protocol(path)

    def prepare(self) -> None:
        """Make the store ready to write to, and check that what is there has this layout."""
        path = f"{self.root}/temper.json"
        try:
            self.create(path, json.dumps({"layout": LAYOUT_VERSION}).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            found = json.loads(self.read(path) or b"")["layout"]
        except (ValueError, TypeError, KeyError) as error:
            raise TemperError(f"{self.url_of(path)} is damaged; is {self.url} a store?") from error
        if found != LAYOUT_VERSION:
            raise TemperError(
                f"the store {self.url} has layout {found}, this version reads {LAYOUT_VERSION}; "
                "use another store, or the version of Temper that wrote it"
            )

    def create(self, path: str, data: bytes) -> bool:
        """Create a file whole, or leave the one that is there. True if this call created it.

        Atomic on every store: a reader sees nothing or all of it, and of several writers one wins.
        """
        try:
            if self.is_local:
                _create_local(Path(path), data)
            else:
                self.fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Write a small file whole over whatever was there."""
        if self.is_local:
            with _temporary_beside(Path(path)) as temporary:
                temporary.write_bytes(data)
                os.replace(temporary, path)
        else:
            self.fs.pipe_file(path, data)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, or ``None`` if there is none."""
        try:
            return self.fs.cat_file(path)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except OSError as error:
            raise TemperError(
                f"cannot read {self.url_of(path)}: {_reason(error)}; is store={self.url} right?"
            ) from error

    # --- manifests ---------------------------------------------------------------------------

    def manifest_path(self, step: str, key: str) -> str:
        return f"{self.root}/manifests/{step}/{key}.json"

    def manifest(self, step: str, key: str) -> Manifest | None:
        """The committed artifact at ``key``, or ``None``."""
        path = self.manifest_path(step, key)
        data = self.read(path)
        return None if data is None else Manifest.from_json(data, path)

    def keys(self, step: str) -> set[str]:
        """Keys of every committed artifact of a step: one listing."""
        return {name.removesuffix(".json") for name in self._names(f"manifests/{step}")}

    def steps(self) -> list[str]:
        """Names of all steps that have an artifact here."""
        return sorted(self._names("manifests"))

    def manifests(self, steps: Iterable[str] | None = None) -> list[Manifest]:
        """Every committed artifact of the named steps (by default of all), oldest first.

        A damaged manifest is left out: whoever needs that artifact is told by :meth:`manifest`.
        """
        found = []
        for step in self.steps() if steps is None else steps:
            for key in self.keys(step):
                with contextlib.suppress(TemperError):
                    found.append(self.manifest(step, key))
        made = [manifest for manifest in found if manifest is not None]
        return sorted(made, key=lambda manifest: manifest.attempt)

    def commit(self, manifest: Manifest) -> Manifest:
        """Commit an attempt; the winner's manifest, if another committed this key first."""
        self.create(self.manifest_path(manifest.step, manifest.key), manifest.to_json())
        committed = self.manifest(manifest.step, manifest.key)
        if committed is None:
            raise TemperError(f"the manifest of {manifest.step} vanished from {self.url} on commit")
        return committed

    def require_files(self, manifest: Manifest) -> None:
        """Refuse an artifact with content files that are gone or have another size.

        Raises:
            TemperError: naming them, and what to delete so that it is made again.
        """
        content = self.content_path(manifest)
        sizes = {
            path[len(content) + 1 :]: info["size"]
            for path, info in self.fs.find(content, detail=True).items()
        }
        lost = [name for name, entry in manifest.files.items() if sizes.get(name) != entry.size]
        if lost:
            raise TemperError(
                f"the artifact of {manifest.step} has lost {', '.join(lost[:3])}; delete "
                f"{self.manifest_path(manifest.step, manifest.key)} and run again to rebuild it"
            )

    def _names(self, folder: str) -> list[str]:
        try:
            listing = self.fs.ls(f"{self.root}/{folder}", detail=False, refresh=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TemperError(
                f"cannot read the store {self.url}: {_reason(error)}; is that the right place?"
            ) from error
        names = [path.rstrip("/").rsplit("/", 1)[-1] for path in listing]
        return [name for name in names if not name.startswith(".")]

    # --- where things lie --------------------------------------------------------------------

    def new_attempt(self, step: str, key: str) -> str:
        """Path of a fresh attempt folder; its name sorts by time."""
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        return f"{self.root}/attempts/{step}/{key}/{name}"

    def attempt_path(self, manifest: Manifest) -> str:
        return f"{self.root}/attempts/{manifest.step}/{manifest.key}/{manifest.attempt}"

    def content_path(self, manifest: Manifest) -> str:
        return f"{self.attempt_path(manifest)}/content"

    def progress_path(self, step: str, key: str) -> str:
        return f"{self.root}/progress/{step}/{key}.json"

    def scratch_path(self, step: str, key: str) -> Path:
        """A local folder that outlives attempts of one key, also for a remote store."""
        if self.is_local:
            return Path(self.root) / "scratch" / step / key
        name = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"temper-scratch-{os.getuid()}" / name / step / key

    @contextlib.contextmanager
    def alone(self, step: str, key: str) -> Iterator[None]:
        """Wait until no other process makes the same artifact in this scratch, and keep it so.

        Correctness does not need it: of two attempts at a key, one commits. The kernel lets go of
        the lock when its holder dies.
        """
        scratch = self.scratch_path(step, key)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(scratch.with_suffix(".lock"), poll_interval=LOCK_POLL_SECONDS):
            yield

    def forget_scratch(self, step: str, key: str) -> None:
        """Delete what only an unfinished step needed. Never fails: leftovers cost only space."""
        shutil.rmtree(self.scratch_path(step, key), ignore_errors=True)
        with contextlib.suppress(OSError):
            self.fs.rm_file(self.progress_path(step, key))

    def record_run(self, record: dict[str, Any]) -> str:
        """Write the record of one invocation; its path."""
        path = f"{self.root}/runs/{record['run']}.json"
        try:
            self.replace(path, json.dumps(record, indent=1).encode())
        except OSError as error:
            raise self._unwritable(error) from error
        return path

    def _unwritable(self, error: OSError) -> TemperError:
        return TemperError(
            f"cannot write to the store {self.url}: {_reason(error)}; "
            "set store=PATH_OR_URL (or TEMPER_STORE) to a place you can write to"
        )


def _create_local(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, then link: the link is what either happens or fails."""
    if path.exists():
        raise FileExistsError(path)
    with _temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)


@contextlib.contextmanager
def _temporary_beside(path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
