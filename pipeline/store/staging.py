"""Scratch that survives its machine: copies of a scratch folder in a remote store.

    scratch/<step>/<key>/<epoch>/<node>/<number>.json   a snapshot: {path: {"size", "blake3"}}
                                        <blake3>        the bytes of its files

A step writes scratch on local disk, as always. Beside it a thread looks every few seconds whether
the folder has changed and holds still, and if so keeps it: files that the last snapshot has are
not sent again, and the snapshot is written last, so that there is the old one or the new one and
never a mixture. A worker elsewhere begins with the latest snapshot, checked byte by byte. What is
lost with a machine is what was written since: at most one interval, if the step writes a file
under another name and renames it, as steps must do anyway because they can be killed.

On several nodes each keeps its own files, and who restores them gets the union. The last snapshot
but one is kept as well: in its place, should the last be damaged; and on several nodes beside it,
because one node may have lost its machine before it kept its part of the last checkpoint. (A
checkpoint of several parts must know by itself whether it is whole.)
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from pipeline.dag.files import FileEntry, describe
from pipeline.store.manifest import file_entries
from pipeline.store.objects import Objects
from pipeline.store.stored import parse_json

EVERY_SECONDS = 10.0
KEPT = 2
COPIED_BYTES = 2**20
"""Smaller files are copied before they are sent; of larger ones, which nobody appends to, the
step's own copy is linked."""
FREEZE_TRIES = 20
FREEZE_SECONDS = 0.05

_SNAPSHOT = re.compile(r"(([0-9]{1,9})/[0-9]{1,9})/([0-9]{8,9})\.json")

State = Mapping[str, tuple[int, int, int]]
"""Size, time of change and inode of each file of a folder."""


class Damaged(OSError):
    """A copy is not what was kept."""


_NOT_AS_KEPT = (
    Damaged,
    FileNotFoundError,
    FileExistsError,  # a file where another name wants a folder
    IsADirectoryError,
    NotADirectoryError,
)


@dataclass(frozen=True)
class Snapshot:
    """A state of the folder on one node. ``place`` is its ``<epoch>/<node>``."""

    place: str
    number: int
    files: Mapping[str, FileEntry]

    @property
    def name(self) -> str:
        return f"{self.place}/{self.number:08d}.json"

    def blobs(self) -> set[str]:
        return {entry.blake3 for entry in self.files.values()}


class Staging:
    """One node's scratch folder and its copies.

    Args:
        local: the folder on local disk.
        remote: ``scratch/<step>/<key>`` within the store.
        epoch: of the lease; see :meth:`pipeline.store.layout.Store.scratch_path`.
        nodes: how many machines the step runs on.

    Attributes:
        is_used: there are copies in the store.
    """

    def __init__(
        self, objects: Objects, local: Path, remote: str, epoch: int, node: int = 0, nodes: int = 1
    ):
        self._objects = objects
        self._local = local
        self._remote = remote
        self._epoch = epoch
        self._place = f"{epoch}/{node}"
        self._nodes = nodes
        self._mark = local.with_name(f".{local.name}.staged-{node}")
        self._turn = threading.Lock()
        self._over = threading.Event()
        self._kept: State = {}
        self._known: dict[tuple[str, tuple[int, int, int]], FileEntry] = {}
        self._own: list[Snapshot] = []
        self.is_used = False

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Restore the folder, keep it while the block runs, and once more if the block fails."""
        self.restore()
        thread = threading.Thread(target=self._keep, name="staging", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self.keep_at_last()  # what made the step fail is what is to be told
            raise
        finally:
            self._over.set()

    # --- down -----------------------------------------------------------------------------------

    def restore(self) -> None:
        """Make the folder what it was when it was last kept, on whichever machine that was.

        A folder of this machine from which the last snapshot was made may be newer; it stays.

        Raises:
            OSError: the store cannot be read.
        """
        found = self._snapshots()
        self.is_used = bool(found)
        self._own = [snapshot for snapshot in found if snapshot.place == self._place]
        last = list({snapshot.place: snapshot for snapshot in found}.values())
        earlier = [snapshot for snapshot in found if snapshot not in last]
        latest = " ".join(sorted(snapshot.name for snapshot in last))
        if not found or (self._local.exists() and self._marked() == latest):
            return
        for chosen in (last, earlier) if self._nodes == 1 else (found, earlier):
            try:
                self._fetch(chosen)
            except _NOT_AS_KEPT as error:
                print(f"scratch: {error}; an earlier state is taken", flush=True)
                continue
            self._note(latest)
            return

    def _snapshots(self) -> list[Snapshot]:
        """The kept snapshots of the latest epoch that has any, in their order."""
        numbers: dict[int, list[tuple[int, str]]] = {}
        for path in self._objects.sizes(self._remote):
            if (found := _SNAPSHOT.fullmatch(path)) and int(found[2]) <= self._epoch:
                numbers.setdefault(int(found[2]), []).append((int(found[3]), found[1]))
        latest = numbers[max(numbers)] if numbers else []
        snapshots = (self._read(place, number) for number, place in sorted(latest))
        return [snapshot for snapshot in snapshots if snapshot is not None]

    def _read(self, place: str, number: int) -> Snapshot | None:
        """A snapshot; ``None`` if it was removed meanwhile, or is damaged."""
        data = self._objects.read(f"{self._remote}/{place}/{number:08d}.json")
        try:
            return Snapshot(place, number, file_entries(parse_json(data or b"")))
        except (ValueError, TypeError, AttributeError):
            return None

    def _fetch(self, snapshots: Sequence[Snapshot]) -> None:
        """Put what these snapshots hold where the folder is; of two with one file, the later."""
        wanted = {
            name: (f"{self._remote}/{snapshot.place}/{entry.blake3}", entry)
            for snapshot in snapshots
            for name, entry in snapshot.files.items()
        }
        names: dict[str, list[str]] = {}
        for name, (blob, _) in wanted.items():
            names.setdefault(blob, []).append(name)
        with _beside(self._local, "restore") as target:
            blobs = {blob: target.with_name(f"blob-{i}") for i, blob in enumerate(names)}
            if blobs:
                self._objects.get(blobs)
            for blob, entry in wanted.values():
                if describe(blobs[blob]) != entry:
                    raise Damaged(f"{self._objects.url_of(blob)} is damaged")
            for blob, same in names.items():
                for name in same:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(blobs[blob], target / name)
                blobs[blob].unlink()
            shutil.rmtree(self._local, ignore_errors=True)
            os.replace(target, self._local)

    def _marked(self) -> str:
        with contextlib.suppress(OSError):
            return self._mark.read_text()
        return ""

    def _note(self, latest: str) -> None:
        with contextlib.suppress(OSError):
            self._mark.write_text(latest)

    # --- up -------------------------------------------------------------------------------------

    def keep(self) -> bool:
        """Put the folder's present state into the store. False if it does not hold still.

        Raises:
            OSError: the store cannot be written.
        """
        with self._turn:
            if _look(self._local) == self._kept:
                return True
            with _beside(self._local, "frozen") as frozen:
                state = self._freeze(frozen)
                if state is None:
                    return False
                files = {name: self._describe(frozen, name, state[name]) for name in state}
                self._send(frozen, files)
                if any(_changed(frozen / name, state[name]) for name in state):
                    return False  # somebody appends to a large file
                self._publish(files)
                self._kept = state
        return True

    def keep_at_last(self) -> None:
        """:meth:`keep`, where nothing can be done about a failure."""
        self._over.set()
        with contextlib.suppress(OSError):
            self.keep()

    def _keep(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            try:
                self.keep()
            except OSError as error:  # it may pass; the step goes on meanwhile
                print(f"scratch could not be kept: {error}", flush=True)

    def _freeze(self, frozen: Path) -> State | None:
        """A copy of the folder as it was at one moment; ``None`` if there was no such moment."""
        for _ in range(FREEZE_TRIES):
            state = _look(self._local)
            with contextlib.suppress(FileNotFoundError):
                for name, (size, _, _) in state.items():
                    (frozen / name).parent.mkdir(parents=True, exist_ok=True)
                    _copy_or_link(self._local / name, frozen / name, size)
                if _look(self._local) == state:
                    return state
            shutil.rmtree(frozen)
            frozen.mkdir()
            time.sleep(FREEZE_SECONDS)
        return None

    def _describe(self, frozen: Path, name: str, state: tuple[int, int, int]) -> FileEntry:
        if (name, state) not in self._known:
            self._known[name, state] = describe(frozen / name)
        return self._known[name, state]

    def _send(self, frozen: Path, files: Mapping[str, FileEntry]) -> None:
        there = set[str]().union(*(snapshot.blobs() for snapshot in self._own))
        blobs = {
            f"{self._remote}/{self._place}/{entry.blake3}": (frozen / name, entry.size)
            for name, entry in files.items()
            if entry.blake3 not in there
        }
        if not blobs:
            return
        self._objects.put({blob: path for blob, (path, _) in blobs.items()})
        sizes = self._objects.sizes(f"{self._remote}/{self._place}")
        for blob, (_, size) in blobs.items():
            if sizes.get(blob.rpartition("/")[2]) != size:
                raise OSError(f"{self._objects.url_of(blob)} is not what was sent")

    def _publish(self, files: Mapping[str, FileEntry]) -> None:
        number = self._own[-1].number + 1 if self._own else 1
        snapshot = Snapshot(self._place, number, files)
        data = json.dumps({name: asdict(entry) for name, entry in files.items()}).encode()
        self._objects.replace(f"{self._remote}/{snapshot.name}", data)
        self.is_used = True
        if self._nodes == 1:
            self._note(snapshot.name)
        self._own.append(snapshot)
        gone, self._own = self._own[:-KEPT], self._own[-KEPT:]
        needed = set[str]().union(*(kept.blobs() for kept in self._own))
        with contextlib.suppress(OSError):  # leftovers only cost space
            for earlier in gone:
                self._objects.remove(f"{self._remote}/{earlier.name}")
                for blob in earlier.blobs() - needed:
                    self._objects.remove(f"{self._remote}/{self._place}/{blob}")


def _look(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                name = str(PurePosixPath(path.relative_to(folder)))
                found[name] = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
    return found


def _copy_or_link(source: Path, target: Path, size: int) -> None:
    if size > COPIED_BYTES:
        with contextlib.suppress(OSError):  # no links here
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _changed(frozen: Path, state: tuple[int, int, int]) -> bool:
    """Whether a file that was linked is not what it was."""
    stat = frozen.stat()
    return stat.st_ino == state[2] and (stat.st_size, stat.st_mtime_ns) != state[:2]


@contextlib.contextmanager
def _beside(folder: Path, purpose: str) -> Iterator[Path]:
    """An empty folder on the same disk as another, removed in the end unless it was moved."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{purpose}-") as temporary:
        (made := Path(temporary) / "scratch").mkdir()
        yield made
